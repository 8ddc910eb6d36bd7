"""Tables of ratios over a formula on a grid of sizes: logarithms, linear between points in the
logarithm of every size.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OctaveGrid:
    """log2 of measured over formula seconds on a grid.

    Args:
        axes: one array a size, log2 of its grid points, rising; two points at least each.
        octaves: one number a grid point.
    """

    axes: tuple[FloatArray, ...]
    octaves: FloatArray

    def ratio(self, *sizes: FloatArray) -> FloatArray:
        """Measured over formula seconds at each place, one array a size: linear in all logarithms,
        held at the edges.
        """
        shape = np.broadcast_shapes(*(np.shape(size) for size in sizes))
        corners: list[tuple[tuple[IntArray, FloatArray], tuple[IntArray, FloatArray]]] = []
        for axis, size in zip(self.axes, sizes, strict=True):
            log = np.log2(
                np.maximum(np.broadcast_to(np.asarray(size, dtype=np.float64), shape), 1e-30)
            )
            low = np.clip(np.searchsorted(axis, log, side="right") - 1, 0, len(axis) - 2)
            share = np.clip((log - axis[low]) / (axis[low + 1] - axis[low]), 0.0, 1.0)
            corners.append(((low, 1.0 - share), (low + 1, share)))
        total = np.zeros(shape)
        for corner in product(*corners):
            weight = np.ones(shape)
            for _, part in corner:
                weight = weight * part
            total += weight * self.octaves[tuple(place for place, _ in corner)]
        return np.asarray(np.exp2(total), dtype=np.float64)
