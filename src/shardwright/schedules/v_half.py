"""V-Half: a V-shaped pipeline in half of 1F1B's activation memory and half its bubble.

Qi et al. 2024, arXiv:2405.15362, section 3.2 (table 1: memory (p + 2) // 2 microbatches of two
chunks, bubble about half of 1F1B's). Going down takes one slot a rank, coming up two; the waits at
the turns keep actions from meeting, and differ for odd and even p. A rank waits 7/2 (p - 1) - 1
slots (odd p) or 7/2 p - 3 (even p) of F = I = W = 1 where 1F1B waits 6 (p - 1): the paper's
reordering of warm-up and tail, worth the last twelfth, is left out.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes
from shardwright.schedules.v_schedules_of_repeated_slots import block_slots, repeated_table


def _peak(sizes: Sizes) -> IntArray | None:
    """Peak chunks in flight by rank in V-Half: 2 ((p + 2) // 2); None for m <= p where p > 1.

    2 on a single rank; None for p microbatches or less.
    """
    if sizes.ranks > 1 and sizes.microbatches <= sizes.ranks:
        return None
    return np.full(sizes.ranks, 2 * ((sizes.ranks + 2) // 2), np.int64)


def _table(sizes: Sizes) -> ActionTable:
    """The action table of V-Half, from its repeated block of slots."""
    turns = (2, 1, 1) if sizes.ranks % 2 else (2, 4, 1)
    return repeated_table(sizes, block_slots(sizes.ranks, steps=(1, 2, 1, 2), turns=turns))


V_HALF = ScheduleRule(
    name="v-half",
    placement=ChunkPlacement.WAVE,
    kinds="FIW",
    make=_table,
    peak=_peak,
    chunks_per_rank=2,
)
