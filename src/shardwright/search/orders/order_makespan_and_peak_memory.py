"""Makespan and peak memory of an order, by the longest path, compiled on an integer clock.

An order is the codes of each rank's row, one rank after the other: kind * chunks + chunk, with
kinds F, I, W as 0, 1, 2 and chunks of all lanes in one numbering. The microbatch of an action is
the number of earlier actions with the same code.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.kernel_compilation import compiled

OWNER, FORWARD, INPUT, WEIGHT, SEND_FORWARD, SEND_BACKWARD, HELD, STASH, FIRST, LAST = range(10)
"""Rows of the problem's table; see `problem_arrays`."""


@compiled
def walk(
    table: IntArray,
    codes: IntArray,
    row_start: IntArray,
    microbatches: int,
    end: IntArray,
    at: IntArray,
    free: IntArray,
    count: IntArray,
) -> int:
    """Makespan of an order, by running its actions; -1 if the order deadlocks.

    Args:
        end: (3 * chunks, microbatches) scratch; holds the end of each action afterwards.
        at, free: (ranks,) scratch.
        count: (3 * chunks,) scratch.
    """
    chunks = table.shape[1]
    ranks = row_start.shape[0] - 1
    # A row copied as a slice would be compiled with all that formats the message of an error in its
    # shape.
    for code in range(3 * chunks):
        count[code] = 0
    for r in range(ranks):
        free[r], at[r] = 0, row_start[r]
    done, total = 0, row_start[ranks]
    makespan = 0
    while done < total:
        before = done
        for r in range(ranks):
            while at[r] < row_start[r + 1]:
                code = codes[at[r]]
                kind, c = code // chunks, code % chunks
                k = count[code]
                if kind == 0:
                    arrived = 0
                    if table[FIRST, c] == 0:
                        if count[c - 1] <= k:
                            break
                        arrived = end[c - 1, k] + table[SEND_FORWARD, c - 1]
                elif kind == 1:
                    if count[c] <= k:
                        break
                    arrived = end[c, k]
                    if table[LAST, c] == 0:
                        if count[chunks + c + 1] <= k:
                            break
                        arrived = max(arrived, end[chunks + c + 1, k] + table[SEND_BACKWARD, c + 1])
                else:
                    if count[chunks + c] <= k:
                        break
                    arrived = end[chunks + c, k]
                finish = max(free[r], arrived) + table[FORWARD + kind, c]
                end[code, k] = finish
                free[r] = finish
                count[code] = k + 1
                makespan = max(makespan, finish)
                at[r] += 1
                done += 1
        if done == before:
            return -1
    return makespan


@compiled
def levels(table: IntArray, codes: IntArray, row_start: IntArray) -> IntArray:
    """(ranks,) peak memory of each rank while it runs its row, in the problem's own unit."""
    chunks = table.shape[1]
    ranks = row_start.shape[0] - 1
    peak = np.zeros(ranks, dtype=np.int64)
    for r in range(ranks):
        level = 0
        for a in range(row_start[r], row_start[r + 1]):
            kind, c = codes[a] // chunks, codes[a] % chunks
            if kind == 0:
                level += table[HELD, c]
                peak[r] = max(peak[r], level)
            elif kind == 1:
                level -= table[HELD, c] - table[STASH, c]
            else:
                level -= table[STASH, c]
    return peak
