"""Chimera: two 1F1B pipelines in opposite directions that fill each other's gaps.

Li and Hoefler 2021, arXiv:2107.06925, section 3: with F = B a unit of p/2 microbatches in each lane
takes 3 p - 2 slots, and units follow one another without a gap (direct concatenation), so N
microbatches in both lanes take 2 N + p - 2 slots: bubble p - 2, where 1F1B has 2 (p - 1). Rank r
keeps p/2 + 1 + min(r, p - 1 - r) microbatches (the paper's p/2 + 1 to p). With B = 2 F the units no
longer fit together tightly. Parameters twice. Ranks are even; each lane has a multiple of p/2
microbatches, or fewer than p/2.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable, B, F
from shardwright.schedules.action_row_builders import slotted_table
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _legal(sizes: Sizes) -> None:
    """Raise StrategyError for odd p, or m of a lane above p / 2 that is no multiple of p / 2."""
    if sizes.ranks % 2:
        raise sizes.refuse(f"needs an even number of ranks, not {sizes.ranks}", rule="ranks")
    unit = sizes.ranks // 2
    if sizes.microbatches > unit and sizes.microbatches % unit:
        raise sizes.refuse(
            f"on {sizes.ranks} ranks needs a multiple of {unit} microbatches in each lane, not"
            f" {sizes.microbatches}",
            hint=(
                f"try {sizes.microbatches // unit * unit} or"
                f" {(sizes.microbatches // unit + 1) * unit}"
            ),
            rule="microbatches",
        )


def _peak(sizes: Sizes) -> IntArray | None:
    """Peak microbatches in Chimera, rank r: p/2 + 1 + min(r, p - 1 - r); None if m < p // 2.

    p/2 + 1 + min(r, p - 1 - r); None for less than a unit.
    """
    if sizes.microbatches < sizes.ranks // 2:
        return None
    return sizes.ranks // 2 + 1 + np.minimum(sizes.rank, sizes.ranks - 1 - sizes.rank)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of Chimera: a downward and an upward 1F1B lane, interleaved by time slots.

    Microbatch i of a unit: forward of chunk c at slot c + 2 i, backward at 2 p - 1 - c + 2 i; units
    are 2 p slots apart.
    """
    unit = max(sizes.ranks // 2, 1)
    shape = (2, 2, sizes.ranks, sizes.microbatches)
    lane, backward, chunk, microbatch = np.indices(shape)
    start = 2 * (microbatch % unit) + 2 * sizes.ranks * (microbatch // unit)
    return slotted_table(
        slot=start + np.where(backward == 1, 2 * sizes.ranks - 1 - chunk, chunk),
        kind=np.where(backward == 1, B, F),
        chunk=chunk,
        microbatch=microbatch,
        lane=lane,
        rank=np.where(lane == 0, chunk, sizes.ranks - 1 - chunk),
        num_ranks=sizes.ranks,
    )


CHIMERA = ScheduleRule(
    name="chimera",
    placement=ChunkPlacement.OPPOSITE,
    kinds="FB",
    make=_table,
    peak=_peak,
    legal=_legal,
)
