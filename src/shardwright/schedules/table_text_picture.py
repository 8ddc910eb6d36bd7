"""Plain-text picture of an action table: one line for each rank, one column for each slot."""

from __future__ import annotations

from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import entries_by_slot
from shardwright.schedules.format_action import format_action
from shardwright.strategy.plan.pipeline_order import actions_of


def draw(table: ActionTable, *, width: int = 140, lanes: tuple[str, ...] = ()) -> str:
    """Text picture of a table: a line a rank, actions at earliest slots, "." idle; `width` at most.

    Cut at `width` characters.

    A dot is an idle slot, ``|`` joins an overlapped pair, ``>`` ends a line that goes on. All kinds
    take one slot: it shows the order, not the time.
    """
    rows = [
        [
            "|".join(format_action(action, lanes=lanes) for action in actions_of(entry))
            if entry
            else "."
            for entry in timeline
        ]
        for timeline in entries_by_slot(table)
    ]
    cell_width = max((len(cell) for cells in rows for cell in cells), default=1)
    label = len(str(table.num_ranks - 1))
    lines = []
    for rank, cells in enumerate(rows):
        line = f"{rank:>{label}}  " + " ".join(cell.ljust(cell_width) for cell in cells).rstrip()
        lines.append(line if len(line) <= width else line[: width - 1] + ">")
    return "\n".join(lines) + "\n"
