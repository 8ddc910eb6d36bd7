"""A plan's order as the CSV text that PyTorch's pipeline runtime loads."""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.action_table_to_csv import format_csv
from shardwright.strategy.plan.plan import Plan


def schedule_csv(plan: Plan) -> str:
    """CSV text of a plan's pipeline actions, one row a rank, in PyTorch's letters.

    An empty cell where a rank waits.

    Rows stand by the ranks' lowest devices, which is the order of the ranks of a grid. Letters are
    PyTorch's: ``2F0`` is the forward of chunk 2 on microbatch 0, I the input gradient, W the weight
    gradient, B both, ``(0F1;1B0)OVERLAP_F_B`` a pair.

    Raises:
        StrategyError: the plan has several lanes or slices (rule ``native.schedule``), or recompute
            as an action (``order.csv``).
    """
    rows = action_rows(plan)
    if len(plan.lanes) != 1 or rows.slice.any():
        unsupported = f"{len(plan.lanes)} lanes" if len(plan.lanes) != 1 else "slices of a sequence"
        raise StrategyError(
            f"PyTorch's tables have no {unsupported}",
            hint="use a schedule of one lane and whole sequences",
            rule="native.schedule",
        )
    (lane,) = plan.lanes
    return format_csv(
        ActionTable(
            num_ranks=rows.num_rows,
            num_chunks=len(lane.stages),
            num_microbatches=lane.microbatches,
            row_start=rows.row_start,
            kind=rows.kind,
            chunk=rows.chunk,
            microbatch=rows.microbatch,
            lane=rows.lane.astype("int8"),
            slice=rows.slice,
            overlapped=rows.overlapped,
        )
    )
