"""One-line error for a file that does not match its schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydantic import ValidationError

from shardwright.errors import ClusterError, nearest

Place = tuple[int | str, ...]
"""Keys and list positions from the root of the file to a value."""


def first_schema_error(
    error: ValidationError,
    *,
    what: str,
    form: str,
    keys_at: Callable[[Place], Iterable[str]],
    hint_of: Callable[[str, str], str],
) -> ClusterError:
    """Convert the first error (missing keys last) of a validation to a ClusterError with a hint.

    Args:
        what: name of the file in messages.
        form: hint with an example of the file.
        keys_at: legal keys at the place of the last key.
        hint_of: hint for pydantic's name of the error, and the key.
    """
    # A key that is misspelt is missing, too: the unknown key says more.
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
