"""A row with what facts say of it: empty cells filled, wrong ones replaced, or the reason why it
cannot be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from itertools import accumulate, pairwise
from typing import Any

from shardwright.lazy_dataclass import dataclass
from shardwright.validation.tables.cell_expressions import computed
from shardwright.validation.tables.csv_rows import EMPTY, Columns
from shardwright.validation.tables.measured_rows import COLUMNS, Measurement
from shardwright.validation.tables.measured_run import Skip, SkipReason
from shardwright.validation.tables.row_conditions import cells_of
from shardwright.validation.tables.table_facts import Facts, Reading, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What facts say of a row, of any kind of table.

    Args:
        given: column -> value of cells that they fill or replace.
        config: fields of the model's configuration.
        options: of what ran, name -> value.
        assumptions: the cells that the table does not have, and how they are known; a line a rule.
        skip: why the row is not judged, and the words that say why.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    skip: tuple[SkipReason, str] | None = None


def told(row: Any, *, facts: Facts, columns: Columns) -> Told:
    """What the rules of `facts` say of a row. They see it as published, never what another rule
    filled.
    """
    cells = cells_of(row)
    given: dict[str, Any] = {}
    config: dict[str, Any] = {}
    options: dict[str, str] = {}
    assumptions = []
    for rule in facts.rules:
        if not rule.where.matches(cells):
            continue
        if rule.skip is not None:
            return Told(skip=(rule.skip, rule.because))
        try:
            fresh = {
                column: value
                for column, value in _says(rule, cells, columns=columns)
                if column not in given
            }
            chosen = dict(_pair(option) for option in computed(rule.options, cells).split())
        except ValueError as error:
            return Told(skip=(SkipReason.INCONSISTENT_CONFIGURATION, str(error)))
        given |= fresh
        set_here = {name: value for name, value in chosen.items() if name not in options}
        options |= set_here
        config = {**rule.config, **config}
        if (fresh or set_here) and rule.because:
            words = ", ".join(
                [
                    *(f"{column} {_shown(value)}" for column, value in fresh.items()),
                    *map("=".join, set_here.items()),
                ]
            )
            assumptions.append(f"{words}: {rule.because}")
    return Told(given=given, config=config, options=options, assumptions=tuple(assumptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A row as it is judged.

    Args:
        row: with all its cells.
        config, assumptions: see `Told`.
    """

    row: Measurement
    config: Mapping[str, Any]
    assumptions: tuple[str, ...]


def complete(row: Measurement, *, facts: Facts) -> Completed | Skip:
    """The row with its facts."""
    said = told(row, facts=facts, columns=COLUMNS)
    if said.skip is not None:
        return Skip(measurement=row, reason=said.skip[0], detail=said.skip[1])
    given = dict(said.given)
    if "runtime" in given:
        base, *own = given["runtime"].split()
        options = {**said.options, **dict(_pair(option) for option in own)}
        given["runtime"] = " ".join([base, *(f"{name}={value}" for name, value in options.items())])
    return Completed(row=replace(row, **given), config=said.config, assumptions=said.assumptions)


def _pair(option: str) -> tuple[str, str]:
    name, _, value = option.partition("=")
    return name, value


def _says(rule: Rule, cells: Mapping[str, Any], *, columns: Columns) -> list[tuple[str, Any]]:
    """(column, value) of the cells that a rule gives to a row."""
    found = [(column, value) for column, value in rule.replace.items() if cells[column] != value]
    found += [(column, value) for column, value in rule.fill.items() if cells[column] in EMPTY]
    for column, reading in rule.read.items():
        value = (
            _read(reading, cells, column=column, columns=columns)
            if cells[column] in EMPTY
            else None
        )
        if value not in EMPTY:
            found.append((column, value))
    return found


def _read(reading: Reading, cells: Mapping[str, Any], *, column: str, columns: Columns) -> Any:
    """The value of a cell in another cell's words; None where the pattern is not there. Raises
    ValueError where it is no such value.
    """
    words = cells[reading.column]
    match = reading.pattern.search("" if words is None else str(words))
    if match is None:
        return None
    try:
        value = columns[column](match[1])
    except ValueError as error:
        raise ValueError(f"{column} in {reading.column}: {match[1][:40]!r} is {error}") from None
    return _layers(value, reading) if isinstance(value, tuple) else value


def _layers(listed: tuple[int, ...], reading: Reading) -> tuple[int, ...]:
    """Layers of each stage from a list of modules, or of the places where stages begin and end: [0,
    7, 14, 30] with 3 modules before the 24 layers and 3 after them is 4, 7, 13.
    """
    cuts = listed if reading.cuts else (0, *accumulate(listed))
    total = cuts[-1] - reading.after
    return tuple(min(high, total) - max(low, reading.before) for low, high in pairwise(cuts))


def _shown(value: Any) -> str:
    return (
        ",".join(map(str, value))
        if isinstance(value, tuple)
        else "nothing"
        if value in EMPTY
        else str(value)
    )
