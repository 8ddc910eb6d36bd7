"""Looped BFS: breadth-first with backwards from the last microbatch to the first.

The order of PyTorch's ScheduleLoopedBFS, which cites Lamy-Poirier 2022, arXiv:2211.05953. Time and
peak are those of `breadth-first`; what differs is which activations live longest: the first
microbatch's, not the last one's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.schedules.action_order_arrays import ActionTable, B
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.looped_1f1b_and_gpipe_tables import all_forwards, forwards_first_table
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _table(sizes: Sizes) -> ActionTable:
    """Action table of looped BFS: all forwards, then backwards from the last microbatch on."""
    table = forwards_first_table(sizes)
    return replace(
        table,
        microbatch=np.where(
            table.kind == B, sizes.microbatches - 1 - table.microbatch, table.microbatch
        ),
    )


LOOPED_BFS = ScheduleRule(
    name="looped-bfs",
    placement=ChunkPlacement.LOOPED,
    kinds="FB",
    make=_table,
    peak=all_forwards,
    chunks_per_rank=0,
)
