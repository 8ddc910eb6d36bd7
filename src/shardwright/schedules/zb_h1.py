"""ZB-H1: 1F1B with weight gradients postponed to the tail, in 1F1B's memory.

Qi et al. 2023, arXiv:2401.10241, section 2.1. Rank r warms up with p - r - 1 forwards and puts off
r weight gradients, so all ranks keep p microbatches (the paper's memory: p M_B). Bubble (p - 1)(F +
I - W), a third of 1F1B's when F = I = W.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.build_zero_bubble_h1_h2_table import put_off_table
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _peak(sizes: Sizes) -> IntArray:
    """Peak microbatches in flight by rank in ZB-H1: min(p, m)."""
    return np.full(sizes.ranks, min(sizes.ranks, sizes.microbatches), np.int64)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of ZB-H1: 1F1B in which rank r postpones r weight gradients."""
    return put_off_table(sizes, warm_up=sizes.ranks - 1 - sizes.rank, lag=sizes.rank)


ZB_H1 = ScheduleRule(
    name="zb-h1", placement=ChunkPlacement.LOOPED, kinds="FIW", make=_table, peak=_peak
)
