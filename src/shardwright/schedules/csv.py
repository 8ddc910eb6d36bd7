"""Action tables as CSV: one row a rank, one column a slot, an empty cell where the rank is idle.

It is the compute-only format of PyTorch (``_PipelineScheduleRuntime._load_csv(path, format="compute_only")``), with our letters for lanes
and slices where a table has them. Idle cells are for the eye: the order in a row is all that counts, and reading drops them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

from shardwright.errors import DataError, StrategyError
from shardwright.schedules.entries import Entry, actions_of, row_entries, slots, table_of
from shardwright.schedules.letters import format_action, parse_action
from shardwright.schedules.table import ActionTable
from shardwright.strategy.plan.order import Action, Kind


def format_csv(table: ActionTable, *, lanes: tuple[str, ...] = ()) -> str:
    """`table` as text, each action at its earliest slot.

    Args:
        lanes: names of the table's lanes; not needed for one lane.

    Raises:
        StrategyError: the table deadlocks, has lanes without names, or recompute as an action.
    """
    if int(table.lane.max(initial=0)) >= max(len(lanes), 1):
        raise StrategyError(f"a table of {int(table.lane.max()) + 1} lanes needs their names", rule="order.csv")
    place = slots(table)
    lines = []
    for rank in range(table.num_ranks):
        cells: list[str] = []
        at = int(table.row_start[rank])
        for entry in row_entries(table, rank=rank):
            if any(action.kind is Kind.R for action in actions_of(entry)):
                raise StrategyError("PyTorch's tables have no recompute action", rule="order.csv")
            cells.extend("" for _ in range(int(place[at]) - len(cells)))
            cells.append(format_action(entry, lanes=lanes))
            at += len(actions_of(entry))
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def parse_csv(text: str, *, lanes: tuple[str, ...] = ()) -> ActionTable:
    """The table that `text` holds; `lanes` are the names its actions may have before them.

    Raises:
        DataError: a cell is no action, an action is there twice or missing, or the table deadlocks.
    """
    rows = [
        [_cell(cell, rank, column, lanes) for column, cell in enumerate(line.split(",")) if cell.strip()]
        for rank, line in enumerate(_lines(text))
    ]
    if not rows:
        raise DataError("the table is empty", hint="one row a rank, cells such as 2F0")
    _check_complete(rows)
    table = table_of(rows)
    try:
        slots(table)
    except StrategyError as error:
        raise DataError(error.message, hint=error.hint) from error
    return table


def read_csv(path: Path) -> ActionTable:
    """The table in a file; DataError if it cannot be read or says no table."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"cannot read {path.name!r} as a table: {type(error).__name__}", hint="a UTF-8 CSV file, one row a rank") from error
    return parse_csv(text)


def _lines(text: str) -> list[str]:
    """Lines without the blank ones at the end."""
    lines = text.replace("\r\n", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _cell(cell: str, rank: int, column: int, lanes: tuple[str, ...]) -> Entry:
    """One cell; an error says which."""
    try:
        return parse_action(cell, lanes=lanes)
    except DataError as error:
        raise DataError(f"row {rank}, column {column}: {error.message}", hint=error.hint) from error


def _check_complete(rows: list[list[Entry]]) -> None:
    """Each chunk has one forward of each microbatch and slice, nothing is there twice, and B stands beside no I or W of the same thing."""
    seen: set[Action] = set()
    for rank, row in enumerate(rows):
        if not row:
            raise DataError(f"row {rank} has no action", hint="one row a rank")
        for action in (action for entry in row for action in actions_of(entry)):
            if action in seen:
                raise DataError(f"{format_action(action)} is there twice, again in row {rank}")
            seen.add(action)
    for action in seen:
        if action.kind in (Kind.I, Kind.W) and replace(action, kind=Kind.B) in seen:
            raise DataError(f"{format_action(action)} is there beside the full backward of the same chunk and microbatch")
    counts = [max(values) + 1 for values in zip(*((a.lane, a.chunk, a.microbatch, a.slice) for a in seen), strict=True)]
    forwards = {(a.lane, a.chunk, a.microbatch, a.slice) for a in seen if a.kind is Kind.F}
    if len(forwards) < prod(counts):
        lane, chunk, microbatch, part = _first_missing(forwards, counts)
        missing = Action(chunk=chunk, kind=Kind.F, microbatch=microbatch, lane=lane, slice=part)
        raise DataError(
            f"{format_action(missing)} is missing{f' in lane {lane}' if lane else ''}",
            hint=f"the table speaks of {counts[1]} chunks and {counts[2]} microbatches: each needs its forward",
        )


def _first_missing(forwards: set[tuple[int, int, int, int]], counts: list[int]) -> tuple[int, int, int, int]:
    """The first (lane, chunk, microbatch, slice) below `counts` that has no forward."""
    lanes, chunks, microbatches, parts = counts
    return next(
        place
        for lane in range(lanes)
        for chunk in range(chunks)
        for microbatch in range(microbatches)
        for part in range(parts)
        if (place := (lane, chunk, microbatch, part)) not in forwards
    )
