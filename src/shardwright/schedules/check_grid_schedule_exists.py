"""Check that the schedule that a grid names exists for the grid's sizes."""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.schedules.schedule_registry import schedule
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.rule_violations import Violation


def order_violations(grid: Grid, *, microbatches: int) -> tuple[Violation, ...]:
    """Rules that keep the grid's schedule from having a table for its sizes; empty if it has one.

    The rules are the schedule's: ``order.ranks``, ``order.microbatches``, ``order.chunks`` and
    others.

    Args:
        microbatches: microbatches of each replica, over all lanes.
    """
    try:
        grid_schedule = schedule(grid.schedule)
        grid_schedule.peak_in_flight(
            num_ranks=grid.pp,
            chunks_per_rank=grid.vpp,
            num_microbatches=microbatches // grid_schedule.placement.lanes,
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
