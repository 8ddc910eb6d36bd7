"""A table as a picture in plain text: one line a rank, one column a slot."""

from __future__ import annotations

from shardwright.schedules.entries import actions_of, row_entries, slots
from shardwright.schedules.letters import format_action
from shardwright.schedules.table import ActionTable


def draw(table: ActionTable, *, width: int = 140, lanes: tuple[str, ...] = ()) -> str:
    """`table` with every action at its earliest unit slot, cut at `width` characters.

    A dot is an idle slot, ``|`` joins an overlapped pair, ``>`` ends a line that goes on. All kinds
    take one slot: it shows the order, not the time.
    """
    place = slots(table)
    rows: list[list[str]] = []
    for rank in range(table.num_ranks):
        cells: list[str] = []
        at = int(table.row_start[rank])
        for entry in row_entries(table, rank=rank):
            cells.extend("." for _ in range(int(place[at]) - len(cells)))
            cells.append(
                "|".join(format_action(action, lanes=lanes) for action in actions_of(entry))
            )
            at += len(actions_of(entry))
        rows.append(cells)
    cell_width = max((len(cell) for cells in rows for cell in cells), default=1)
    label = len(str(table.num_ranks - 1))
    lines = []
    for rank, cells in enumerate(rows):
        line = f"{rank:>{label}}  " + " ".join(cell.ljust(cell_width) for cell in cells).rstrip()
        lines.append(line if len(line) <= width else line[: width - 1] + ">")
    return "\n".join(lines) + "\n"
