"""GPipe: all forwards, then all backwards.

Huang et al. 2019, arXiv:1811.06965, section 2.3: bubble (p - 1) of m + p - 1 slots; every rank
keeps all m microbatches. Backwards run in the order of microbatches, as in PyTorch's ScheduleGPipe
(the paper draws the opposite order; time and memory are the same).
"""

from __future__ import annotations

from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.looped_1f1b_and_gpipe_tables import all_forwards, forwards_first_table
from shardwright.schedules.schedule_protocol import ScheduleRule

GPIPE = ScheduleRule(
    name="gpipe",
    placement=ChunkPlacement.LOOPED,
    kinds="FB",
    make=forwards_first_table,
    peak=all_forwards,
)
