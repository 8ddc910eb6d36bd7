"""The error of a file that does not have its form, in one line and a hint."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydantic import ValidationError

from shardwright.errors import ClusterError, nearest

Place = tuple[int | str, ...]
"""Keys and numbers from the whole file to a value."""


def first_error(
    error: ValidationError,
    *,
    what: str,
    form: str,
    keys_at: Callable[[Place], Iterable[str]],
    hint_of: Callable[[str, str], str],
) -> ClusterError:
    """The first of what a model found, by its place.

    Args:
        what: the file is.
        form: a hint that shows how one is written.
        keys_at: legal keys where the last of a place was written.
        hint_of: by pydantic's name of the error, and the key.
    """
    # A key that is misspelt is missing, too: what is unknown says more.
    first = min(
        error.errors(include_url=False, include_input=False),
        key=lambda one: one["type"] == "missing",
    )
    place = [str(part)[:60] for part in first["loc"]]
    path = ".".join(place) or what
    if first["type"] == "extra_forbidden":
        return ClusterError(
            f"{path}: unknown key", hint=nearest(place[-1], keys_at(tuple(first["loc"])))
        )
    if first["type"] == "missing":
        return ClusterError(f"{path}: required key is missing", hint=form)
    return ClusterError(
        f"{path}: {first['msg'][:200]}", hint=hint_of(first["type"], place[-1] if place else "")
    )
