"""Peaks of running sums over a timeline, such as bytes held by each device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Int32Array, IntArray
from shardwright.kernel_compilation import compiled


@compiled
def _peak_levels(
    order: IntArray, times: IntArray, deltas: IntArray, owner: Int32Array, num_owners: int
) -> IntArray:
    """`peak_levels` over entries in the order of time."""
    peak, level = np.zeros(num_owners, np.int64), np.zeros(num_owners, np.int64)
    freed, last = np.zeros(num_owners, np.int64), np.zeros(num_owners, np.int64)
    for entry in order:
        who = owner[entry]
        if times[entry] != last[who]:
            level[who] += freed[who]
            freed[who] = 0
            last[who] = times[entry]
        if deltas[entry] < 0:
            freed[who] += deltas[entry]
        else:
            level[who] += deltas[entry]
            peak[who] = max(peak[who], level[who])
    return peak


def peak_levels(
    times: npt.ArrayLike, deltas: npt.ArrayLike, owner: npt.ArrayLike, num_owners: int
) -> IntArray:
    """Per owner, the peak of the running sum of deltas in the order of time, from 0; at equal times
    allocations come before frees.

    Allocations first is what an allocator sees when one task ends and the next begins: the new
    buffer exists before the old one goes.

    Args:
        times: any clock, shape (n,).
        deltas: change of level, such as bytes, shape (n,).
        owner: in [0, num_owners), shape (n,).

    Returns:
        Peaks, shape (num_owners,), at least 0.
    """
    fixed_times, fixed_owner = (
        np.ascontiguousarray(times, dtype=np.int64),
        np.ascontiguousarray(owner, dtype=np.int32),
    )
    assert fixed_owner.size == 0 or (fixed_owner.min() >= 0 and fixed_owner.max() < num_owners)
    order = np.argsort(fixed_times, kind="stable")
    return _peak_levels(
        order, fixed_times, np.ascontiguousarray(deltas, dtype=np.int64), fixed_owner, num_owners
    )
