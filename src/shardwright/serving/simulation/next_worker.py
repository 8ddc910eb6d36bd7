"""Which of many workers is the next: a tournament of their times, so that a change is seen in as
many steps as the number has digits.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.compiled import inner

# Rows: when a worker's oldest iteration ends, and when it may begin the next one.
END, BEGIN, NUM_ROWS = range(3)


def new_soonest(workers: int) -> FloatArray:
    """(NUM_ROWS, 2 leaves): node i has the sooner time of nodes 2 i and 2 i + 1, worker w is node
    leaves + w, and nobody does anything.
    """
    leaves = 1 << (workers - 1).bit_length()
    return np.full((NUM_ROWS, 2 * leaves), np.inf)


@inner
def set_time(soonest: FloatArray, row: int, worker: int, at: float) -> None:
    """The worker's time."""
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
    """Whose time is the soonest; the first of several."""
    leaves, node = soonest.shape[1] // 2, 1
    while node < leaves:
        node = 2 * node if soonest[row, 2 * node] == soonest[row, node] else 2 * node + 1
    return int(node - leaves)


@inner
def soonest_of_others(soonest: FloatArray, worker: int) -> float:
    """The soonest time of all other workers, of either row."""
    node, result = soonest.shape[1] // 2 + worker, np.inf
    while node > 1:
        other = node + 1 - 2 * (node % 2)
        result = min(result, min(soonest[END, other], soonest[BEGIN, other]))
        node //= 2
    return float(result)
