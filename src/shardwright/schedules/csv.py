"""Action tables as CSV: one row a rank, one column a slot, an empty cell where the rank is idle.

It is the compute-only format of PyTorch (``_PipelineScheduleRuntime._load_csv(path,
format="compute_only")``), with our letters for lanes and slices where a table has them. Idle cells
are for the eye: the order in a row is all that counts.
"""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.schedules.entries import actions_of, row_entries, slots
from shardwright.schedules.letters import format_action
from shardwright.schedules.table import ActionTable
from shardwright.strategy.plan.order import Kind


def format_csv(table: ActionTable, *, lanes: tuple[str, ...] = ()) -> str:
    """`table` as text, each action at its earliest slot.

    Args:
        lanes: names of the table's lanes; not needed for one lane.

    Raises:
        StrategyError: the table deadlocks, has lanes without names, or recompute as an action.
    """
    if int(table.lane.max(initial=0)) >= max(len(lanes), 1):
        raise StrategyError(
            f"a table of {int(table.lane.max()) + 1} lanes needs their names", rule="order.csv"
        )
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
