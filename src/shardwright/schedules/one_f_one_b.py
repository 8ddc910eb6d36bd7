"""1F1B: as few forwards as keep the pipeline busy, then one forward and one backward in turn.

PipeDream-Flush, Narayanan et al. 2021, arXiv:2006.09503; the order is that of Megatron-LM's
``forward_backward_pipelining_without_interleaving`` and PyTorch's Schedule1F1B. Bubble (p - 1)(F +
B), rank r keeps p - r microbatches.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.looped_1f1b_and_gpipe_tables import looped_table
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _peak(sizes: Sizes) -> IntArray:
    """Peak microbatches in flight on rank r in 1F1B: min(p - r, m)."""
    return np.minimum(sizes.ranks - sizes.rank, sizes.microbatches)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of 1F1B: rank r warms up with min(p - r - 1, m) forwards."""
    return looped_table(sizes, warm_up=np.minimum(sizes.ranks - 1 - sizes.rank, sizes.microbatches))


ONE_F_ONE_B = ScheduleRule(
    name="1f1b", placement=ChunkPlacement.LOOPED, kinds="FB", make=_table, peak=_peak
)
