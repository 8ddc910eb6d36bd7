"""ZB-H2: warm-up forwards and postponed weight gradients that fill all bubbles.

Qi et al. 2023, arXiv:2401.10241, section 2.2. Rank r warms up with 2 (p - r - 1) forwards and puts
off 2 r weight gradients, so all ranks keep 2 p - 1 microbatches (the paper's memory: (2 p - 1)
M_B). Idle time inside a rank's row (p - 1)(F + I - 2 W), none when F = I = W and m >= 2 p - 1; rank
r starts and ends (p - 1 - r) F before the last, which needs an optimizer step that does not wait
for all ranks.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.build_zero_bubble_h1_h2_table import put_off_table
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _peak(sizes: Sizes) -> IntArray:
    """Peak microbatches in flight by rank in ZB-H2: min(2 p - 1, m)."""
    return np.full(sizes.ranks, min(2 * sizes.ranks - 1, sizes.microbatches), np.int64)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of ZB-H2: rank r runs 2 (p - r - 1) warm-ups and postpones 2 r W.

    The warm-up is in forwards; see `put_off_table`.
    """
    return put_off_table(sizes, warm_up=2 * (sizes.ranks - 1 - sizes.rank), lag=2 * sizes.rank)


ZB_H2 = ScheduleRule(
    name="zb-h2", placement=ChunkPlacement.LOOPED, kinds="FIW", make=_table, peak=_peak
)
