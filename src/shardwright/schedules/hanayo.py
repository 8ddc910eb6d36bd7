"""Hanayo: chunks in waves over the ranks, one model copy that fills the gaps.

As Chimera's two copies do.

Liu et al. 2023, arXiv:2308.15762, sections 3 and 4. With w waves a rank has 2 w chunks,
`chunks_per_rank`. The order is the one that ranks find when a forward of a chunk takes one slot and
a backward two, and each takes what is furthest on its way: backwards before forwards, deep before
shallow. For the paper's p microbatches and one wave the bubble is 4 (p - 1) slots beside 6 p of
work, and it hardly grows with more waves while work in slots does.
"""

from __future__ import annotations

import heapq

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable, B, F
from shardwright.schedules.action_row_builders import slotted_table
from shardwright.schedules.chunk_placement import ChunkPlacement, chunk_ranks
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _legal(sizes: Sizes) -> None:
    """Raise StrategyError for an odd number of chunks a rank."""
    if sizes.chunks % 2:
        raise sizes.refuse(
            f"needs an even number of chunks a rank (two a wave), not {sizes.chunks}", rule="chunks"
        )


def _table(sizes: Sizes) -> ActionTable:
    """The action table of Hanayo, by a greedy simulation: backwards and deep chunks first."""
    chunks = sizes.ranks * sizes.chunks
    owner = chunk_ranks(ChunkPlacement.WAVE, num_ranks=sizes.ranks, chunks_per_rank=sizes.chunks)[
        0
    ].tolist()
    # A microbatch walks steps 0 .. 2 chunks - 1: forwards of all chunks, then backwards of all.
    # Heaps hold (-step, microbatch).
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(sizes.ranks)]
    waiting[0] = [(0, microbatch) for microbatch in range(sizes.microbatches)]
    busy = [0] * sizes.ranks
    started: list[tuple[int, int, int, int]] = []
    ends: list[tuple[int, int, int]] = [(0, 2 * chunks, 0)]
    while ends:
        slot_now = ends[0][0]
        while ends and ends[0][0] == slot_now:
            _, step, microbatch = heapq.heappop(ends)
            if step < 2 * chunks:
                heapq.heappush(
                    waiting[owner[min(step, 2 * chunks - 1 - step)]], (-step, microbatch)
                )
        for rank, queue in enumerate(waiting):
            if queue and busy[rank] <= slot_now:
                negative_step, microbatch = heapq.heappop(queue)
                busy[rank] = slot_now + (1 if -negative_step < chunks else 2)
                heapq.heappush(ends, (busy[rank], 1 - negative_step, microbatch))
                started.append((slot_now, -negative_step, microbatch, rank))
    slot, step, microbatch, rank = np.array(started, np.int64).T
    return slotted_table(
        slot=slot,
        kind=np.where(step < chunks, F, B),
        chunk=np.minimum(step, 2 * chunks - 1 - step),
        microbatch=microbatch,
        lane=np.zeros_like(slot),
        rank=rank,
        num_ranks=sizes.ranks,
    )


def _no_form(sizes: Sizes) -> IntArray | None:
    """None: Hanayo's paper gives no formula for the peak of activations in flight.

    The paper draws the peak.
    """
    return None


HANAYO = ScheduleRule(
    name="hanayo",
    placement=ChunkPlacement.WAVE,
    kinds="FB",
    make=_table,
    peak=_no_form,
    legal=_legal,
    chunks_per_rank=0,
)
