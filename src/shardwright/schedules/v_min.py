"""V-Min: a V-shaped pipeline in a third of 1F1B's activation memory.

Qi et al. 2024, arXiv:2405.15362, section 3.2 (table 1: memory (p + 4) // 3 microbatches of two
chunks, bubble about two thirds of 1F1B's). All legs of the block take one slot a rank; where 3
divides p the turns wait two slots more, or actions would meet. A rank waits 4 p - 5 slots (4 p - 4
where 3 divides p) of F = I = W = 1 where 1F1B waits 6 (p - 1).
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes
from shardwright.schedules.v_schedules_of_repeated_slots import block_slots, repeated_table


def _peak(sizes: Sizes) -> IntArray | None:
    """Peak chunks in flight by rank in V-Min: 2 ((p + 4) // 3), or 2 less; None for m < p.

    Two less on every third rank where p mod 3 is 2; None for less than p microbatches.
    """
    if sizes.microbatches < sizes.ranks:
        return None
    return 2 * ((sizes.ranks + 4) // 3) - np.where(
        (sizes.ranks % 3 == 2) & (sizes.rank % 3 == 0), 2, 0
    )


def _table(sizes: Sizes) -> ActionTable:
    """The action table of V-Min, from its repeated block of slots."""
    turns = (1, 1, 1) if sizes.ranks % 3 else (3, 1, 3)
    return repeated_table(sizes, block_slots(sizes.ranks, steps=(1, 1, 1, 1), turns=turns))


V_MIN = ScheduleRule(
    name="v-min",
    placement=ChunkPlacement.WAVE,
    kinds="FIW",
    make=_table,
    peak=_peak,
    chunks_per_rank=2,
)
