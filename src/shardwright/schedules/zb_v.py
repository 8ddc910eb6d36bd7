"""ZB-V: a V-shaped pipeline without bubbles in 1F1B's memory.

Qi et al. 2023, arXiv:2401.10241, section 6 (and V-ZB of arXiv:2405.15362, section 3.2); the order
is that of PyTorch's ScheduleZBVZeroBubble. With F = I = W and m >= 2 p - 1 no rank waits between
its first and last action; rank r starts r slots after the first one and keeps 2 p chunks, the
memory of p microbatches.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.placement import Placement
from shardwright.schedules.protocol import Rule, Sizes
from shardwright.schedules.rows import RowWriter, written_table
from shardwright.schedules.table import ActionTable, F, I, W


def _peak(sizes: Sizes) -> IntArray | None:
    """2 p chunks; no form for less than 2 p - 1 microbatches."""
    return (
        np.full(sizes.ranks, 2 * sizes.ranks, np.int64)
        if sizes.microbatches >= 2 * sizes.ranks - 1
        else None
    )


def _row(sizes: Sizes, rank: int) -> RowWriter:
    """Rank `rank`'s row: the rule for at least 2 p - 1 microbatches, cut to those there are."""
    down, up = (0, rank), (0, 2 * sizes.ranks - 1 - rank)
    left = sizes.ranks - rank
    row, whole = (
        RowWriter(microbatches=sizes.microbatches),
        max(2 * sizes.ranks - 1, sizes.microbatches),
    )
    row.forward(down, 2 * left - 1)
    for _ in range(rank):
        row.add(F, up)
        row.add(F, down)
    for _ in range(left):
        row.each((F, I, W), up)
    while row.count(F, up) < whole:
        if row.count(F, down) < whole:
            row.add(F, down)
        row.each((I, W), down)
        row.each((F, I, W), up)
    for _ in range(rank):
        row.add(I, down)
        row.add(I, up)
    for _ in range(left):
        row.each((I, W), down)
    for place in (up, down):
        while row.count(W, place) < whole:
            row.add(W, place)
    return row


def _table(sizes: Sizes) -> ActionTable:
    return written_table(
        [_row(sizes, rank) for rank in range(sizes.ranks)], num_chunks=2 * sizes.ranks
    )


ZB_V = Rule(
    name="zb-v", placement=Placement.WAVE, kinds="FIW", make=_table, peak=_peak, chunks_per_rank=2
)
