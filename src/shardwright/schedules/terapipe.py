"""TeraPipe: GPipe over token slices, for causal models.

Li et al. 2021, arXiv:2102.07988, section 3. Parameter `slices` (s): parts of every sequence, of
equal time. A slice's forward needs the earlier slices' keys and values, so slices run in order, and
backwards from the last slice to the first. Bubble (p - 1)(f + b) with f and b the times of one
slice, 1/s of GPipe's; every rank keeps all m s slices.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.looped import looped_table
from shardwright.schedules.placement import Placement
from shardwright.schedules.protocol import Rule, Sizes
from shardwright.schedules.table import ActionTable


def _peak(sizes: Sizes) -> IntArray:
    """All m s slices, on every rank."""
    return np.full(sizes.ranks, sizes.microbatches * sizes.option("slices", 1), np.int64)


def _table(sizes: Sizes) -> ActionTable:
    return looped_table(sizes, warm_up=_peak(sizes), slices=sizes.option("slices", 1))


TERAPIPE = Rule(
    name="terapipe",
    placement=Placement.LOOPED,
    kinds="FB",
    make=_table,
    peak=_peak,
    options=("slices",),
)
