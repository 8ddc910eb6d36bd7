"""Action tables as CSV: one row for each rank, one column for each slot.

It is the compute-only format of PyTorch (``_PipelineScheduleRuntime._load_csv(path,
format="compute_only")``), with our letters for lanes and slices where a table has them. Idle cells
are for the eye: the order in a row is all that counts.
"""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.schedules.action_order_arrays import ActionTable, R
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import entries_by_slot
from shardwright.schedules.format_action import format_action


def format_csv(table: ActionTable, *, lanes: tuple[str, ...] = ()) -> str:
    """Action table as CSV text in PyTorch's letters: a line a rank, a column a time slot.

    Args:
        lanes: names of the table's lanes; not needed for one lane.

    Raises:
        StrategyError: the table deadlocks, has lanes without names, or recompute as an action.
    """
    if int(table.lane.max(initial=0)) >= max(len(lanes), 1):
        raise StrategyError(
            f"a table of {int(table.lane.max()) + 1} lanes needs their names", rule="order.csv"
        )
    timelines = entries_by_slot(table)
    if (table.kind == R).any():
        raise StrategyError("PyTorch's tables have no recompute action", rule="order.csv")
    return "".join(
        ",".join(format_action(entry, lanes=lanes) if entry else "" for entry in timeline) + "\n"
        for timeline in timelines
    )
