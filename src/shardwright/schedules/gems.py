"""GEMS-like schedule: two opposite lanes take turns, with one microbatch alive at a time.

Jain et al. 2020 (GEMS, SC20), section IV: the forward of one lane's microbatch follows the backward
of the other's from rank to rank. Every rank keeps one microbatch; parameters twice. With B >= F and
N microbatches in both lanes a step takes N p B + (N + p - 1) F; with B = 2 F that is the bubble
ratio (p - 1)/(p + 1/2) that Li and Hoefler 2021 (arXiv:2107.06925, table 2) give for large N.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable, B, F
from shardwright.schedules.action_row_builders import slotted_table
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _peak(sizes: Sizes) -> IntArray:
    """Peak microbatches in flight by rank in GEMS: 1."""
    return np.ones(sizes.ranks, np.int64)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of GEMS: one microbatch's forward and backward at a time, lanes in turn.

    Lanes in turn.
    """
    shape = (2, 2, sizes.ranks, sizes.microbatches)
    lane, backward, chunk, microbatch = np.indices(shape)
    return slotted_table(
        slot=2 * (2 * microbatch + lane) + backward,
        kind=np.where(backward == 1, B, F),
        chunk=chunk,
        microbatch=microbatch,
        lane=lane,
        rank=np.where(lane == 0, chunk, sizes.ranks - 1 - chunk),
        num_ranks=sizes.ranks,
    )


GEMS = ScheduleRule(
    name="gems", placement=ChunkPlacement.OPPOSITE, kinds="FB", make=_table, peak=_peak
)
