"""Prices made non-decreasing in a size, whatever table they are read from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, distinct

KNOTS: Final = distinct(np.round(2.0 ** (np.arange(0, 37) / 2.0)))
"""1, 2, 3, 4, 6, 8, 11, 16 ... 262144."""


def non_decreasing_price(
    price: Callable[[FloatArray], FloatArray], size: FloatArray, *, knots: FloatArray = KNOTS
) -> FloatArray:
    """(n,) `price` made non-decreasing in `size`: running maximum at knots, linear between.

    A table of ratios over a formula that rises may fall between its points, and measurements do
    fall here and there (a library changes its tile). Beyond the last knot the price goes on with
    the line of the last two.

    Args:
        price: seconds at (knots, n) sizes; called once.
        size: (n,), at least the first knot counts.
    """
    sizes = np.maximum(np.asarray(size, dtype=np.float64), knots[0])
    seconds = np.maximum.accumulate(
        price(np.broadcast_to(knots[:, None], (len(knots), len(sizes)))), axis=0
    )
    low = np.clip(np.searchsorted(knots, sizes, side="right") - 1, 0, len(knots) - 2)
    column = np.arange(len(sizes))
    share = (sizes - knots[low]) / (knots[low + 1] - knots[low])
    below, above = seconds[low, column], seconds[low + 1, column]
    return np.asarray(below + share * (above - below), dtype=np.float64)
