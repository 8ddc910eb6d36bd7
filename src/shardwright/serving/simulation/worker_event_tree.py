"""Tournament tree of the workers' next event times, updated in logarithmic steps."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.kernel_compilation import inner

# Rows: when a worker's oldest iteration ends, and when it may begin the next one.
END, BEGIN, NUM_ROWS = range(3)


def new_time_trees(workers: int) -> FloatArray:
    """(NUM_ROWS, 2 leaves) tournament trees of workers' event times in seconds, all inf.

    Node i has the smaller time of nodes 2 i and 2 i + 1, worker w is node leaves + w.
    """
    leaves = 1 << (workers - 1).bit_length()
    return np.full((NUM_ROWS, 2 * leaves), np.inf)


@inner
def set_time(soonest: FloatArray, row: int, worker: int, at: float) -> None:
    """Set a worker's next event time in seconds in the tree of `row` (END or BEGIN)."""
    node = soonest.shape[1] // 2 + worker
    soonest[row, node] = at
    while node > 1:
        node //= 2
        at = min(soonest[row, 2 * node], soonest[row, 2 * node + 1])
        if soonest[row, node] == at:
            return
        soonest[row, node] = at


@inner
def first_worker(soonest: FloatArray, row: int) -> int:
    """Index of the worker with the smallest event time in the tree of `row`; the lowest if tied."""
    leaves, node = soonest.shape[1] // 2, 1
    while node < leaves:
        node = 2 * node if soonest[row, 2 * node] == soonest[row, node] else 2 * node + 1
    return int(node - leaves)


@inner
def soonest_of_others(soonest: FloatArray, worker: int) -> float:
    """The smallest event time of all other workers, in seconds, of either row."""
    node, soonest_time = soonest.shape[1] // 2 + worker, np.inf
    while node > 1:
        sibling = node + 1 - 2 * (node % 2)
        soonest_time = min(soonest_time, min(soonest[END, sibling], soonest[BEGIN, sibling]))
        node //= 2
    return float(soonest_time)
