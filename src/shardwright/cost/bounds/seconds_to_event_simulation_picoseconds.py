"""Times and shares of a device as the event kernel rounds them."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.units import PICOSECONDS_PER_SECOND

SHARE_ROUNDING = 1e-7
"""More than the event kernel's rounding of a share of a device: taken off the bound's shares."""


def picoseconds(seconds: FloatArray) -> IntArray:
    """Seconds rounded to whole picoseconds (halves to even), element by element."""
    return np.rint(np.asarray(seconds) * PICOSECONDS_PER_SECOND).astype(np.int64)
