"""Breadth-first schedule: all microbatches through a rank's first chunk, then the next chunk.

Backwards likewise from the last chunk.

Lamy-Poirier 2022, arXiv:2211.05953, section 3: looped GPipe, made so that a chunk's parameters are
gathered once a step. Bubble (p - 1)/v (F + B) with F and B the times of a rank's whole share and m
>= p (fewer microbatches wait for one another: (max(m, p) v + min(m, p) - 1)(F + B)/v in all); every
rank keeps all m v chunks.
"""

from __future__ import annotations

from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.looped_1f1b_and_gpipe_tables import all_forwards, forwards_first_table
from shardwright.schedules.schedule_protocol import ScheduleRule

BREADTH_FIRST = ScheduleRule(
    name="breadth-first",
    placement=ChunkPlacement.LOOPED,
    kinds="FB",
    make=forwards_first_table,
    peak=all_forwards,
    chunks_per_rank=0,
)
