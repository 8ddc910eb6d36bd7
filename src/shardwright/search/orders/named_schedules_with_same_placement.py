"""Named schedules whose placement has a problem's chunks on the same ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardwright.errors import StrategyError
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement, chunk_ranks
from shardwright.schedules.schedule_registry import SCHEDULES, schedule, schedule_table
from shardwright.search.orders.order_problem import OrderProblem


def named_tables(problem: OrderProblem) -> Iterator[tuple[str, ActionTable]]:
    """Yield every registry schedule that has the problem's chunks on the same ranks, as a table.

    Memory is not checked.
    """
    if problem.chunks % problem.ranks:
        return
    each = problem.chunks // problem.ranks
    for name in SCHEDULES:
        placement = schedule(name).placement
        if not _has_placement(problem, placement, each):
            continue
        try:
            table = schedule_table(
                name,
                num_ranks=problem.ranks,
                chunks_per_rank=each,
                num_microbatches=problem.microbatches,
            )
        except StrategyError:
            continue
        yield name, table


def _has_placement(problem: OrderProblem, placement: ChunkPlacement, chunks_per_rank: int) -> bool:
    """True if the problem's chunks are on the ranks of a schedule's placement."""
    if placement.lanes != problem.lanes:
        return False
    return np.array_equal(
        chunk_ranks(placement, num_ranks=problem.ranks, chunks_per_rank=chunks_per_rank),
        problem.owner,
    )
