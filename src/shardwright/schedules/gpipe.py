"""GPipe: all forwards, then all backwards.

Huang et al. 2019, arXiv:1811.06965, section 2.3: bubble (p - 1) of m + p - 1 slots; every rank
keeps all m microbatches. Backwards run in the order of microbatches, as in PyTorch's ScheduleGPipe
(the paper draws the opposite order; time and memory are the same).
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.looped import looped_table
from shardwright.schedules.placement import Placement
from shardwright.schedules.protocol import Rule, Sizes
from shardwright.schedules.table import ActionTable


def _peak(sizes: Sizes) -> IntArray:
    """All m microbatches, on every rank."""
    return np.full(sizes.ranks, sizes.microbatches, np.int64)


def _table(sizes: Sizes) -> ActionTable:
    return looped_table(sizes, warm_up=_peak(sizes))


GPIPE = Rule(name="gpipe", placement=Placement.LOOPED, kinds="FB", make=_table, peak=_peak)
