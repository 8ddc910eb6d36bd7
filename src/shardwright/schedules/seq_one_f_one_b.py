"""Seq1F1B: 1F1B over token slices of causal models.

One slice forward and one backward in turn.

Seq1F1B, Sun et al. 2024, arXiv:2406.03488, section 3. Parameter `slices` (s): parts of every
sequence, of equal time. The first backward is that of a microbatch's last slice, so every rank
warms up with s - 1 slices more than 1F1B: rank r keeps p - r + s - 1 slices. Bubble (p - 1)(f + b)
with f and b the times of one slice, 1/s of 1F1B's.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.looped_1f1b_and_gpipe_tables import looped_table
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _peak(sizes: Sizes) -> IntArray:
    """Peak slices in flight on rank r: min(p - r + s - 1, m s)."""
    slices = sizes.option("slices", 1)
    return np.minimum(sizes.ranks - sizes.rank + slices - 1, sizes.microbatches * slices)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of Seq1F1B: 1F1B over slices, rank r warming up with p - r + s - 2 of them."""
    slices = sizes.option("slices", 1)
    warm_up = np.minimum(sizes.ranks - sizes.rank + slices - 2, sizes.microbatches * slices)
    return looped_table(sizes, warm_up=warm_up, slices=slices)


SEQ_ONE_F_ONE_B = ScheduleRule(
    name="seq-1f1b",
    placement=ChunkPlacement.LOOPED,
    kinds="FB",
    make=_table,
    peak=_peak,
    options=("slices",),
)
