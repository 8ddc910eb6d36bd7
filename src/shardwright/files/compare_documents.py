"""Two documents, compared leaf by leaf: what a file says against what was made again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.files.document_text import canonical_value
from shardwright.lazy_dataclass import dataclass

DRIFT: Final = 1e-8
"""Relative difference of numbers that are the same at the nine digits that files keep."""
MOST_NAMED: Final = 24
"""Leaves that a message names."""
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A leaf whose values differ; the path is dotted, items of lists by their number."""

    path: str
    said: Any
    found: Any

    def __str__(self) -> str:
        """``prediction.step_time_s says 0.2, found 2.0``."""
        return f"{self.path} says {_value_text(self.said)}, found {_value_text(self.found)}"


def _value_text(value: Any) -> str:
    return "nothing" if value is _ABSENT else repr(value)[:40]


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every leaf; an empty object or list is one."""
    items = (
        document.items()
        if isinstance(document, Mapping)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    if not items or not document:
        yield path, document
    for key, item in items:
        yield from leaves(item, f"{path}.{key}" if path else str(key))


def differences(said: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Leaves that differ, in the order of their paths: numbers by more than `DRIFT` of themselves,
    all else at all.
    """
    one, other = dict(leaves(canonical_value(said))), dict(leaves(canonical_value(found)))
    paths = sorted(one.keys() | other.keys())
    pairs = ((path, one.get(path, _ABSENT), other.get(path, _ABSENT)) for path in paths)
    return tuple(Difference(path, a, b) for path, a, b in pairs if not _is_same_leaf(a, b))


def _is_same_leaf(said: Any, found: Any) -> bool:
    if isinstance(said, float) or isinstance(found, float):
        numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool)
            for value in (said, found)
        )
        return numbers and isclose(said, found, rel_tol=DRIFT)
    return type(said) is type(found) and bool(said == found)


def require_same(said: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    """How many leaves there are, all the same.

    Raises:
        DataError: some differ; names them.
    """
    wrong = differences(said, found)
    if wrong:
        named = "; ".join(map(str, wrong[:MOST_NAMED]))
        more = f"; and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise DataError(
            f"made again, the file differs: {named}{more}",
            hint="was the file edited, or made by another version?",
        )
    return sum(1 for _ in leaves(found))
