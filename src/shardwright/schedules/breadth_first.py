"""Breadth-first: all microbatches through a rank's first chunk, then all through its second;
backwards likewise from the last chunk.

Lamy-Poirier 2022, arXiv:2211.05953, section 3: looped GPipe, made so that a chunk's parameters are
gathered once a step. Bubble (p - 1)/v (F + B) with F and B the times of a rank's whole share and m
>= p (fewer microbatches wait for one another: (max(m, p) v + min(m, p) - 1)(F + B)/v in all); every
rank keeps all m v chunks.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.looped import looped_table
from shardwright.schedules.placement import Placement
from shardwright.schedules.protocol import Rule, Sizes
from shardwright.schedules.table import ActionTable


def _peak(sizes: Sizes) -> IntArray:
    """All m v chunks, on every rank."""
    return np.full(sizes.ranks, sizes.microbatches * sizes.chunks, np.int64)


def _table(sizes: Sizes) -> ActionTable:
    return looped_table(sizes, warm_up=_peak(sizes))


BREADTH_FIRST = Rule(
    name="breadth-first",
    placement=Placement.LOOPED,
    kinds="FB",
    make=_table,
    peak=_peak,
    chunks_per_rank=0,
)
