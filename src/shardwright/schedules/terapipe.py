"""TeraPipe: GPipe over token slices, for causal models.

Li et al. 2021, arXiv:2102.07988, section 3. Parameter `slices` (s): parts of every sequence, of
equal time. A slice's forward needs the earlier slices' keys and values, so slices run in order, and
backwards from the last slice to the first. Bubble (p - 1)(f + b) with f and b the times of one
slice, 1/s of GPipe's; every rank keeps all m s slices.
"""

from __future__ import annotations

from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.looped_1f1b_and_gpipe_tables import all_forwards, forwards_first_table
from shardwright.schedules.schedule_protocol import ScheduleRule

TERAPIPE = ScheduleRule(
    name="terapipe",
    placement=ChunkPlacement.LOOPED,
    kinds="FB",
    make=forwards_first_table,
    peak=all_forwards,
    options=("slices",),
)
