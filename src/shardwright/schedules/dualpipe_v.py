"""DualPipe-V: DualPipe cut in half, one lane whose chunks go down the ranks and up again.

Qi et al. 2025 ("cut-in-half"), as released with DualPipe; the order is that of PyTorch's
ScheduleDualPipeV. With 2 p chunks on p ranks: bubble (p - 1)(F&B + B - 3 W) of a chunk, activations
2 p + 1 chunks, parameters once. At least 2 p microbatches.
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
    """Raise StrategyError for fewer than 2 p microbatches."""
    if sizes.microbatches < 2 * sizes.ranks:
        raise sizes.refuse(
            f"on {sizes.ranks} ranks needs at least {2 * sizes.ranks} microbatches, not"
            f" {sizes.microbatches}",
            rule="microbatches",
        )


def _peak(sizes: Sizes) -> IntArray:
    """Peak chunks in flight by rank in DualPipe-V: 2 p + 1."""
    return np.full(sizes.ranks, 2 * sizes.ranks + 1, np.int64)


def _table(sizes: Sizes) -> ActionTable:
    """The action table of DualPipe-V: every rank's row in eight phases."""
    rows = [
        overlapped_row(
            microbatches=sizes.microbatches,
            ranks=sizes.ranks,
            depth=rank,
            near_chunk=(0, rank),
            far_chunk=(0, 2 * sizes.ranks - 1 - rank),
        )
        for rank in range(sizes.ranks)
    ]
    return written_table(rows, num_chunks=2 * sizes.ranks)


DUALPIPE_V = ScheduleRule(
    name="dualpipe-v",
    placement=ChunkPlacement.WAVE,
    kinds="FBIW",
    make=_table,
    peak=_peak,
    legal=_legal,
    chunks_per_rank=2,
)
