"""Row selectors: conditions on the cells of a row, all of which must hold.

A condition on text is one or several regular expressions, without regard to case: the cell must
match one of them. A condition on a number is that number, or bounds; an empty cell counts as 0. The
name ``text`` stands for model, place in the table and notes together.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from shardwright.errors import nearest
from shardwright.lazily_compiled_dataclass import dataclass

TEXT: Final = "text"
MAX_PATTERN: Final = 1000


@dataclass(frozen=True, slots=True)
class TextCondition:
    """Regular expressions; the condition holds if any of them matches the cell's text."""

    patterns: tuple[re.Pattern[str], ...]

    def holds(self, cell: Any) -> bool:
        """True if one of the patterns is found anywhere in the cell's text."""
        text = "" if cell is None else str(cell)
        return any(pattern.search(text) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class NumberCondition:
    """Bounds for the cell's number."""

    at_least: float
    at_most: float

    def holds(self, cell: Any) -> bool:
        """True if the cell's number is within the bounds; empty counts as 0, text never holds."""
        return (cell is None or isinstance(cell, int | float)) and self.at_least <= (
            cell or 0
        ) <= self.at_most


@dataclass(frozen=True, slots=True)
class RowSelector:
    """Conditions on columns that must all hold for a row."""

    conditions: tuple[tuple[str, TextCondition | NumberCondition], ...] = ()

    def matches(self, cells: Mapping[str, Any]) -> bool:
        """True if all conditions hold for the cells of a row (see `cells_of`)."""
        return all(condition.holds(cells.get(column)) for column, condition in self.conditions)

    def narrowed(self, other: RowSelector) -> RowSelector:
        """Selector that requires the conditions of both selectors."""
        return RowSelector((*self.conditions, *other.conditions))


def cells_of(row: Any) -> dict[str, Any]:
    """Column -> value of a row, plus ``text``: its model name, table row and notes, joined."""
    return {f.name: getattr(row, f.name) for f in fields(row)} | {
        TEXT: f"{row.model_name}; {row.table_or_row}; {row.notes}"
    }


def selected(cells: Mapping[str, Any], selectors: Iterable[RowSelector]) -> bool:
    """True if any of the selectors matches the cells of a row."""
    return any(selector.matches(cells) for selector in selectors)


def require_column(name: Any, known: Iterable[str]) -> None:
    """Raise ValueError, with the nearest column, if `name` is not among `known`."""
    known = tuple(known)
    if name not in known:
        raise ValueError(f"there is no column {str(name)[:40]!r}: {nearest(str(name)[:40], known)}")


def parse_selector(value: Any, *, columns: Iterable[str]) -> RowSelector:
    """Parse a selector from a mapping: column -> pattern, patterns, number, or {at_least, at_most}.

    Args:
        columns: names that conditions may use, besides ``text``.

    Raises:
        ValueError: the value has another form; the column is named.
    """
    if not isinstance(value, dict):
        raise ValueError("not a mapping of columns to conditions")
    known = (*columns, TEXT)
    for column in value:
        require_column(column, known)
    return RowSelector(
        tuple((column, _condition(column, condition)) for column, condition in value.items())
    )


def parse_pattern(text: Any) -> re.Pattern[str]:
    """Compile a regular expression that ignores case; raises ValueError if the text is none."""
    if not isinstance(text, str) or len(text) > MAX_PATTERN:
        raise ValueError(f"not a text of at most {MAX_PATTERN} characters")
    try:
        with warnings.catch_warnings():
            # Python warns of patterns that a later version will read differently.
            warnings.simplefilter("error", FutureWarning)
            return re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise ValueError(f"{text[:40]!r} is not a regular expression: {error}") from None


def _condition(column: str, value: Any) -> TextCondition | NumberCondition:
    """Parse a pattern, patterns, a number or {at_least, at_most} as a column's condition."""
    try:
        if isinstance(value, str):
            return TextCondition((parse_pattern(value),))
        if isinstance(value, list) and value:
            return TextCondition(tuple(parse_pattern(text) for text in value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return NumberCondition(value, value)
        if isinstance(value, dict) and value and value.keys() <= {"at_least", "at_most"}:
            low, high = value.get("at_least", float("-inf")), value.get("at_most", float("inf"))
            if all(
                isinstance(bound, int | float) and not isinstance(bound, bool)
                for bound in (low, high)
            ):
                return NumberCondition(low, high)
    except ValueError as error:
        raise ValueError(f"{column}: {error}") from None
    raise ValueError(
        f"{column}: a condition is a pattern, a list of patterns, a number, or {{at_least,"
        " at_most}"
    )
