"""Cells, options and model fields that facts add to a row, or the reason to skip the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from itertools import accumulate, pairwise
from typing import Any

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.tables.csv_rows import EMPTY, Columns
from shardwright.validation.tables.evaluate_expressions_in_option_text import (
    with_expressions_evaluated,
)
from shardwright.validation.tables.row_conditions import cells_of
from shardwright.validation.tables.skipped_rows import SkipReason, UnusableRowError
from shardwright.validation.tables.table_facts_from_toml import (
    CellReading,
    RowRule,
    TableFacts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Cells, configuration fields and options that facts add to one row, with their sources.

    Args:
        cells: column -> value of cells that the facts fill or replace.
        config: fields of the model's configuration.
        options: name -> value of the options of the runtime or engine.
        assumptions: a line for each rule that gave cells or options, with its source.
    """

    cells: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


def facts_of_row(row: Any, *, facts: TableFacts, columns: Columns) -> RowFacts:
    """Cells, options, assumptions that rules add by a row's published cells; the first rule wins.

    Rules read the row's cells as published, never a cell that another rule filled.

    Raises:
        UnusableRowError: a rule skips the row, or gives a value that its column does not take.
    """
    published = cells_of(row)
    filled: dict[str, Any] = {}
    config: dict[str, Any] = {}
    options: dict[str, str] = {}
    assumptions = []
    for rule in facts.rules:
        if not rule.where.matches(published):
            continue
        if rule.skip is not None:
            raise UnusableRowError(rule.skip, rule.because)
        try:
            cells = _cells_of_rule(rule, published, columns=columns)
            settings = options_of_text(with_expressions_evaluated(rule.options, published))
        except ValueError as error:
            raise UnusableRowError(SkipReason.INCONSISTENT_CONFIGURATION, str(error)) from None
        new_cells = {column: value for column, value in cells.items() if column not in filled}
        new_options = {name: value for name, value in settings.items() if name not in options}
        filled |= new_cells
        options |= new_options
        config = {**rule.config, **config}
        if (new_cells or new_options) and rule.because:
            texts = [f"{column} {cell_text(value)}" for column, value in new_cells.items()]
            texts += map("=".join, new_options.items())
            assumptions.append(f"{', '.join(texts)}: {rule.because}")
    return RowFacts(cells=filled, config=config, options=options, assumptions=tuple(assumptions))


def options_of_text(text: str) -> dict[str, str]:
    """Parse options ``name=value name=value`` into name -> value."""
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


def text_of_options(options: Mapping[str, str]) -> str:
    """Text ``name=value name=value`` of options; the inverse of `options_of_text`."""
    return " ".join(map("=".join, options.items()))


def cell_text(value: Any) -> str:
    """Text of a cell's value: tuples with commas, ``nothing`` for an empty cell."""
    if isinstance(value, tuple) and value:
        return ",".join(map(str, value))
    return "nothing" if value in EMPTY else str(value)


def _cells_of_rule(
    rule: RowRule, published: Mapping[str, Any], *, columns: Columns
) -> dict[str, Any]:
    """Column -> value that a rule adds: replaced, or filled or read where the cell is empty."""
    empty = {column for column, value in published.items() if value in EMPTY}
    cells = {column: value for column, value in rule.replace.items() if published[column] != value}
    cells |= {column: value for column, value in rule.fill.items() if column in empty}
    for column, reading in rule.read.items():
        if column in empty:
            value = _read_cell(reading, published, column=column, columns=columns)
            if value not in EMPTY:
                cells[column] = value
    return cells


def _read_cell(
    reading: CellReading, published: Mapping[str, Any], *, column: str, columns: Columns
) -> Any:
    """Parse a column's value from another cell's text, by the group of a pattern; None if no match.

    Raises:
        ValueError: the text is not a value of the column.
    """
    text = published[reading.column]
    match = reading.pattern.search("" if text is None else str(text))
    if match is None:
        return None
    try:
        value = columns[column](match[1])
    except ValueError as error:
        raise ValueError(f"{column} in {reading.column}: {match[1][:40]!r} is {error}") from None
    return _stage_layers(value, reading) if isinstance(value, tuple) else value


def _stage_layers(listed: tuple[int, ...], reading: CellReading) -> tuple[int, ...]:
    """Layers of each stage from counts of modules (`cuts`: bounds), less modules before and after.

    For example bounds 0, 7, 14, 30 with 3 modules before the 24 layers and 3 after are 4, 7, 13.
    """
    bounds = listed if reading.cuts else (0, *accumulate(listed))
    end = bounds[-1] - reading.after
    return tuple(min(high, end) - max(low, reading.before) for low, high in pairwise(bounds))
