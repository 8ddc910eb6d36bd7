"""ZB-V: a V-shaped pipeline without bubbles in 1F1B's memory.

Qi et al. 2023, arXiv:2401.10241, section 6 (and V-ZB of arXiv:2405.15362, section 3.2); the order
is that of PyTorch's ScheduleZBVZeroBubble. With F = I = W and m >= 2 p - 1 no rank waits between
its first and last action; rank r starts r slots after the first one and keeps 2 p chunks, the
memory of p microbatches.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable, F, I, W
from shardwright.schedules.action_row_builders import RowWriter, written_table
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _peak(sizes: Sizes) -> IntArray | None:
    """Peak chunks in flight by rank in ZB-V: 2 p; None for less than 2 p - 1 microbatches."""
    return (
        np.full(sizes.ranks, 2 * sizes.ranks, np.int64)
        if sizes.microbatches >= 2 * sizes.ranks - 1
        else None
    )


def _row(sizes: Sizes, rank: int) -> RowWriter:
    """Rank `rank`'s row of actions in ZB-V.

    The rule for at least 2 p - 1 microbatches, cut to those there are.
    """
    down, up = (0, rank), (0, 2 * sizes.ranks - 1 - rank)
    ranks_from_here = sizes.ranks - rank
    row, rule_microbatches = (
        RowWriter(microbatches=sizes.microbatches),
        max(2 * sizes.ranks - 1, sizes.microbatches),
    )
    row.forward(down, 2 * ranks_from_here - 1)
    for _ in range(rank):
        row.add(F, up)
        row.add(F, down)
    for _ in range(ranks_from_here):
        row.add_each((F, I, W), up)
    while row.count(F, up) < rule_microbatches:
        if row.count(F, down) < rule_microbatches:
            row.add(F, down)
        row.add_each((I, W), down)
        row.add_each((F, I, W), up)
    for _ in range(rank):
        row.add(I, down)
        row.add(I, up)
    for _ in range(ranks_from_here):
        row.add_each((I, W), down)
    for place in (up, down):
        while row.count(W, place) < rule_microbatches:
            row.add(W, place)
    return row


def _table(sizes: Sizes) -> ActionTable:
    """The action table of ZB-V, with the row of every rank."""
    return written_table(
        [_row(sizes, rank) for rank in range(sizes.ranks)], num_chunks=2 * sizes.ranks
    )


ZB_V = ScheduleRule(
    name="zb-v",
    placement=ChunkPlacement.WAVE,
    kinds="FIW",
    make=_table,
    peak=_peak,
    chunks_per_rank=2,
)
