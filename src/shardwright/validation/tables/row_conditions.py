"""Which rows something is said of: conditions on the cells of a row, all of which must hold.

A condition on words is a regular expression, or several, searched for in the cell whatever the
case: one of them must be found. A condition on a number is that number, or bounds; an empty cell
counts as 0. The name ``text`` stands for model, place in the table and notes together.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from shardwright.errors import nearest
from shardwright.lazy_dataclass import dataclass
from shardwright.validation.tables.csv_rows import Columns
from shardwright.validation.tables.measured_rows import COLUMNS

TEXT: Final = "text"
MAX_PATTERN: Final = 1000


@dataclass(frozen=True, slots=True)
class Words:
    """One of these is found in the cell."""

    patterns: tuple[re.Pattern[str], ...]

    def holds(self, cell: Any) -> bool:
        """Whether a cell's text has one of the patterns."""
        text = "" if cell is None else str(cell)
        return any(pattern.search(text) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The cell's number is within these."""

    at_least: float
    at_most: float

    def holds(self, cell: Any) -> bool:
        """Whether a cell's number is within the bounds; an empty cell is 0, words are never."""
        return (cell is None or isinstance(cell, int | float)) and self.at_least <= (
            cell or 0
        ) <= self.at_most


@dataclass(frozen=True, slots=True)
class Selector:
    """(column, condition) pairs."""

    conditions: tuple[tuple[str, Words | Bounds], ...] = ()

    def matches(self, cells: Mapping[str, Any]) -> bool:
        """Whether all conditions hold for a row's cells (see `cells_of`)."""
        return all(condition.holds(cells.get(column)) for column, condition in self.conditions)

    def narrowed(self, other: Selector) -> Selector:
        """Both sets of conditions."""
        return Selector((*self.conditions, *other.conditions))


def cells_of(row: Any) -> dict[str, Any]:
    """Name -> value of the cells of a row of any kind of table, and ``text``: model, place and
    notes together.
    """
    return {f.name: getattr(row, f.name) for f in fields(row)} | {
        TEXT: f"{row.model_name}; {row.table_or_row}; {row.notes}"
    }


def parse_selector(
    value: Any, *, columns: Columns = COLUMNS, more: tuple[str, ...] = ()
) -> Selector:
    """A selector from a mapping: column -> pattern, patterns, number, or {at_least, at_most}.

    Args:
        columns: of the kind of table.
        more: names that may be used besides them.

    Raises:
        ValueError: it is none; the column is named.
    """
    if not isinstance(value, dict):
        raise ValueError("not a mapping of columns to conditions")
    known = (*columns, TEXT, *more)
    for column in value:
        if column not in known:
            raise ValueError(
                f"there is no column {str(column)[:40]!r}: {nearest(str(column)[:40], known)}"
            )
    return Selector(
        tuple((column, _condition(column, condition)) for column, condition in value.items())
    )


def parse_pattern(text: Any) -> re.Pattern[str]:
    """A regular expression that ignores case. Raises ValueError where it is none."""
    if not isinstance(text, str) or len(text) > MAX_PATTERN:
        raise ValueError(f"not a text of at most {MAX_PATTERN} characters")
    try:
        with warnings.catch_warnings():
            # Python warns of what a later version reads otherwise.
            warnings.simplefilter("error", FutureWarning)
            return re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise ValueError(f"{text[:40]!r} is not a regular expression: {error}") from None


def _condition(column: str, value: Any) -> Words | Bounds:
    try:
        if isinstance(value, str):
            return Words((parse_pattern(value),))
        if isinstance(value, list) and value:
            return Words(tuple(parse_pattern(text) for text in value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Bounds(value, value)
        if isinstance(value, dict) and value and value.keys() <= {"at_least", "at_most"}:
            low, high = value.get("at_least", float("-inf")), value.get("at_most", float("inf"))
            if all(
                isinstance(bound, int | float) and not isinstance(bound, bool)
                for bound in (low, high)
            ):
                return Bounds(low, high)
    except ValueError as error:
        raise ValueError(f"{column}: {error}") from None
    raise ValueError(
        f"{column}: a condition is a pattern, a list of patterns, a number, or {{at_least,"
        " at_most}"
    )
