"""Eager 1F1B: twice the warm-up of 1F1B, so that transfers both ways hide behind compute.

Zhuang et al. 2022, arXiv:2211.05322, section 4. Rank r warms up with 2 (p - r - 1) forwards and
keeps 2 (p - r) - 1 microbatches. With transfers that take no time the bubble is 1F1B's, (p - 1)(F +
B). With transfers of length t <= (F + B)/2 each way it grows by 2 (p - 1) t in all, where 1F1B
waits for a return trip in every period.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.looped_1f1b_and_gpipe_tables import looped_table
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _peak(sizes: Sizes) -> IntArray:
    """Peak microbatches in flight on rank r in eager 1F1B: min(2 (p - r) - 1, m)."""
    return np.minimum(2 * (sizes.ranks - sizes.rank) - 1, sizes.microbatches)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of eager 1F1B: rank r warms up with min(2 (p - r - 1), m) forwards."""
    return looped_table(
        sizes, warm_up=np.minimum(2 * (sizes.ranks - 1 - sizes.rank), sizes.microbatches)
    )


EAGER = ScheduleRule(
    name="eager-1f1b", placement=ChunkPlacement.LOOPED, kinds="FB", make=_table, peak=_peak
)
