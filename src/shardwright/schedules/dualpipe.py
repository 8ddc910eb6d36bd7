"""DualPipe: two lanes in opposite directions whose forwards and backwards overlap.

Each forward is overlapped with a backward of the other lane.

DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1 and table 2: bubble (p/2 - 1)(F&B + B - 3 W) with
F&B the time of an overlapped pair and B = I + W, parameters twice, activations p + 1. Ranks are
even; each lane has at least p microbatches (the paper counts both lanes' and asks for at least 2
p).
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.action_row_builders import written_table
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.dualpipe_phases import overlapped_row
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _legal(sizes: Sizes) -> None:
    """Raise StrategyError for an odd number of ranks or fewer microbatches than ranks in a lane."""
    if sizes.ranks % 2:
        raise sizes.refuse(
            f"needs an even number of ranks, not {sizes.ranks}",
            rule="ranks",
            hint="dualpipe-v runs on any number",
        )
    if sizes.microbatches < sizes.ranks:
        raise sizes.refuse(
            f"on {sizes.ranks} ranks needs at least {sizes.ranks} microbatches in each lane, not"
            f" {sizes.microbatches}",
            rule="microbatches",
        )


def _peak(sizes: Sizes) -> IntArray:
    """Peak microbatches in flight by rank in DualPipe, both lanes together: p + 1."""
    return np.full(sizes.ranks, sizes.ranks + 1, np.int64)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of DualPipe: every rank's row in eight phases."""
    rows = []
    for rank in range(sizes.ranks):
        down, up = (0, rank), (1, sizes.ranks - 1 - rank)
        near_chunk, far_chunk = (down, up) if down[1] < up[1] else (up, down)
        rows.append(
            overlapped_row(
                microbatches=sizes.microbatches,
                ranks=sizes.ranks // 2,
                depth=near_chunk[1],
                near_chunk=near_chunk,
                far_chunk=far_chunk,
            )
        )
    return written_table(rows, num_chunks=sizes.ranks)


DUALPIPE = ScheduleRule(
    name="dualpipe",
    placement=ChunkPlacement.OPPOSITE,
    kinds="FBIW",
    make=_table,
    peak=_peak,
    legal=_legal,
)
