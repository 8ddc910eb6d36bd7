"""Action tables as CSV: one row a rank, one column a slot, an empty cell where the rank is idle.

It is the compute-only format of PyTorch (``_PipelineScheduleRuntime._load_csv(path, format="compute_only")``). Idle cells are for the
eye: the order in a row is all that counts, and reading drops them.
"""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import DataError, StrategyError
from shardwright.schedules.entries import Entry, actions_of, row_entries, slots, table_of
from shardwright.schedules.letters import format_action, parse_action
from shardwright.schedules.table import ActionTable
from shardwright.strategy.order import Action, Kind


def format_csv(table: ActionTable) -> str:
    """`table` as text, each action at its earliest slot.

    Raises:
        StrategyError: the table deadlocks, or says what PyTorch's table cannot (lanes, slices, recompute as an action).
    """
    if table.lane.any() or table.slice.any():
        raise StrategyError("a CSV table has one lane and no slices", rule="order.csv")
    place = slots(table)
    lines = []
    for rank in range(table.num_ranks):
        cells: list[str] = []
        at = int(table.row_start[rank])
        for entry in row_entries(table, rank=rank):
            if any(action.kind is Kind.R for action in actions_of(entry)):
                raise StrategyError("PyTorch's tables have no recompute action", rule="order.csv")
            cells.extend("" for _ in range(int(place[at]) - len(cells)))
            cells.append(format_action(entry))
            at += len(actions_of(entry))
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def parse_csv(text: str) -> ActionTable:
    """The table that `text` holds.

    Raises:
        DataError: a cell is no action, an action is there twice or missing, or the table deadlocks.
    """
    rows = [
        [_cell(cell, rank, column) for column, cell in enumerate(line.split(",")) if cell.strip()] for rank, line in enumerate(_lines(text))
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


def _cell(cell: str, rank: int, column: int) -> Entry:
    """One cell; an error says which."""
    try:
        return parse_action(cell)
    except DataError as error:
        raise DataError(f"row {rank}, column {column}: {error.message}", hint=error.hint) from error


def _check_complete(rows: list[list[Entry]]) -> None:
    """Each chunk has one forward of each microbatch, nothing is there twice, and B does not stand beside I or W of the same thing."""
    seen: set[Action] = set()
    for rank, row in enumerate(rows):
        if not row:
            raise DataError(f"row {rank} has no action", hint="one row a rank")
        for action in (action for entry in row for action in actions_of(entry)):
            if action in seen:
                raise DataError(f"{format_action(action)} is there twice, again in row {rank}")
            seen.add(action)
    for action in seen:
        if (
            action.kind in (Kind.I, Kind.W)
            and Action(chunk=action.chunk, kind=Kind.B, microbatch=action.microbatch, slice=action.slice) in seen
        ):
            raise DataError(f"{format_action(action)} is there beside the full backward of the same chunk and microbatch")
    chunks, microbatches = max(action.chunk for action in seen) + 1, max(action.microbatch for action in seen) + 1
    forwards = {(action.chunk, action.microbatch) for action in seen if action.kind is Kind.F}
    if len(forwards) < chunks * microbatches:
        missing = next((c, m) for c in range(chunks) for m in range(microbatches) if (c, m) not in forwards)
        raise DataError(
            f"{missing[0]}F{missing[1]} is missing",
            hint=f"the table speaks of {chunks} chunks and {microbatches} microbatches: each needs its forward",
        )
