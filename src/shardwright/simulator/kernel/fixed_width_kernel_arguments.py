"""Arguments of the kernels as arrays of the fixed width for which the kernels are compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Int32Array, IntArray
from shardwright.kernel_compilation import inner


def fixed64(array: npt.ArrayLike) -> IntArray:
    """A read-only, contiguous int64 view (or copy) of `array`, for one compiled signature."""
    view = np.ascontiguousarray(array, dtype=np.int64).view()
    view.flags.writeable = False
    return view


def fixed32(array: npt.ArrayLike) -> Int32Array:
    """A read-only, contiguous int32 view (or copy) of `array`, for one compiled signature."""
    view = np.ascontiguousarray(array, dtype=np.int32).view()
    view.flags.writeable = False
    return view


def check_rows(start: Int32Array, num_rows: int, entries: Int32Array, bound: int) -> None:
    """Assert that the row starts and entries of a CSR stay inside its arrays and `bound`.

    An error there is a bug of this package, and must not become a wild memory access.
    """
    assert start.size == num_rows + 1
    assert start[0] == 0
    assert start[-1] == entries.size
    assert num_rows == 0 or bool((start[1:] >= start[:-1]).all())
    assert entries.size == 0 or (entries.min() >= 0 and entries.max() < bound)


@inner
def mark_stuck(waiting: Int32Array, start: IntArray) -> None:
    """Set the start of tasks that never became ready to -1."""
    for task in range(start.size):
        if waiting[task] > 0:
            start[task] = -1
