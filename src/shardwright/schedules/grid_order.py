"""Whether the schedule that a grid names exists for the grid's numbers."""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.schedules.registry import schedule
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.violation import Violation


def order_violations(grid: Grid, *, microbatches: int) -> tuple[Violation, ...]:
    """What the schedule itself refuses, under its own rule (``order.ranks``,
    ``order.microbatches``, ``order.chunks``, ...).

    Args:
        microbatches: of each replica, over all lanes.
    """
    try:
        found = schedule(grid.schedule)
        found.peak_in_flight(
            num_ranks=grid.pp,
            chunks_per_rank=grid.vpp,
            num_microbatches=microbatches // found.placement.lanes,
            **({"slices": grid.slices} if grid.slices > 1 else {}),
        )
    except StrategyError as error:
        return (
            Violation(
                rule=error.rule,
                message=error.message.removesuffix(f" [{error.rule}]"),
                hint=error.hint,
            ),
        )
    return ()
