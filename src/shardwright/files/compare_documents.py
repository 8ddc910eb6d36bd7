"""Comparison of two JSON documents leaf by leaf, such as a stored file and its recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.files.canonical_json import canonical_value
from shardwright.lazily_compiled_dataclass import dataclass

DRIFT: Final = 1e-8
"""Relative difference at which two numbers count as equal: files keep nine digits."""
MOST_NAMED: Final = 24
"""Most leaves that a message names."""
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A leaf whose values differ: its dotted path, the stored value and the recomputed value.

    Items of lists have their number in the path.
    """

    path: str
    said: Any
    found: Any

    def __str__(self) -> str:
        """Text such as ``prediction.step_time_s says 0.2, found 2.0``."""
        return f"{self.path} says {_value_text(self.said)}, found {_value_text(self.found)}"


def _value_text(value: Any) -> str:
    """Repr of a value, cut to 40 characters; ``nothing`` where the leaf is missing."""
    return "nothing" if value is _ABSENT else repr(value)[:40]


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of every leaf of a document, empty objects and lists included.

    An empty object or list is a leaf.
    """
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


def differences(stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Leaves (by dotted path, sorted) whose values differ, or that one document lacks.

    Numbers differ by more than `DRIFT` of themselves; other values differ if they are not equal.
    """
    one, other = dict(leaves(canonical_value(stored))), dict(leaves(canonical_value(recomputed)))
    paths = sorted(one.keys() | other.keys())
    pairs = ((path, one.get(path, _ABSENT), other.get(path, _ABSENT)) for path in paths)
    return tuple(Difference(path, a, b) for path, a, b in pairs if not _is_same_leaf(a, b))


def _is_same_leaf(stored: Any, recomputed: Any) -> bool:
    """True if two leaves are equal in type and value, floats within relative `DRIFT`."""
    if isinstance(stored, float) or isinstance(recomputed, float):
        numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool)
            for value in (stored, recomputed)
        )
        return numbers and isclose(stored, recomputed, rel_tol=DRIFT)
    return type(stored) is type(recomputed) and bool(stored == recomputed)


def require_same(stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> int:
    """Number of compared leaves; DataError that names the leaves that differ."""
    wrong = differences(stored, recomputed)
    if wrong:
        named = "; ".join(map(str, wrong[:MOST_NAMED]))
        more = f"; and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise DataError(
            f"made again, the file differs: {named}{more}",
            hint="was the file edited, or made by another version?",
        )
    return sum(1 for _ in leaves(recomputed))
