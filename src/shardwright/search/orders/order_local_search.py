"""Local search over whole orders: actions of the critical path are moved along their rank's row."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.kernel_compilation import compiled, inner
from shardwright.search.orders.order_makespan_and_peak_memory import (
    FIRST,
    FORWARD,
    HELD,
    LAST,
    OWNER,
    SEND_BACKWARD,
    SEND_FORWARD,
    STASH,
    walk,
)
from shardwright.search.orders.order_problem import MODULUS, MULTIPLIER

REACH = 12
"""Largest number of places that an action moves."""


@inner
def _critical(
    table: IntArray,
    codes: IntArray,
    row_start: IntArray,
    microbatches: int,
    makespan: int,
    end: IntArray,
    turn: IntArray,
    place: IntArray,
    path: IntArray,
    count: IntArray,
) -> int:
    """Write the places of one critical path to `path`, last first; return its length.

    Args:
        end: (3 * chunks, microbatches) end of each action.
        turn: (actions,) receives the microbatch of each place.
        place: (3 * chunks, microbatches) receives the place of each action.
        path: (actions,) receives the critical path.
        count: (3 * chunks,) scratch.
    """
    chunks = table.shape[1]
    for code in range(count.size):
        count[code] = 0
    for a in range(codes.shape[0]):
        turn[a] = count[codes[a]]
        place[codes[a], turn[a]] = a
        count[codes[a]] += 1
    at = -1
    for r in range(row_start.shape[0] - 1):
        a = row_start[r + 1] - 1
        if end[codes[a], turn[a]] == makespan:
            at = a
    size = 0
    while at >= 0:
        path[size] = at
        size += 1
        code, k = codes[at], turn[at]
        kind, c = code // chunks, code % chunks
        start = end[code, k] - table[FORWARD + kind, c]
        r = table[OWNER, c]
        before = -1
        # A dependency on another rank comes before the previous action of the row: moves need an
        # end of the waiting, not its middle.
        if (
            kind == 0
            and table[FIRST, c] == 0
            and end[c - 1, k] + table[SEND_FORWARD, c - 1] == start
        ):
            before = place[c - 1, k]
        elif (
            kind == 1
            and table[LAST, c] == 0
            and end[chunks + c + 1, k] + table[SEND_BACKWARD, c + 1] == start
        ):
            before = place[chunks + c + 1, k]
        elif at > row_start[r] and end[codes[at - 1], turn[at - 1]] == start:
            before = at - 1
        at = before
    return size


@inner
def _fits(table: IntArray, codes: IntArray, first: int, last: int, limit: int) -> bool:
    """True if a rank's actions (`codes` first .. last - 1) never keep more than `limit` bytes."""
    chunks = table.shape[1]
    level = 0
    for a in range(first, last):
        kind, c = codes[a] // chunks, codes[a] % chunks
        if kind == 0:
            level += table[HELD, c]
            if level > limit:
                return False
        elif kind == 1:
            level -= table[HELD, c] - table[STASH, c]
        else:
            level -= table[STASH, c]
    return True


@compiled
def shift(
    table: IntArray,
    limit: IntArray,
    codes: IntArray,
    row_start: IntArray,
    microbatches: int,
    goal: int,
    tries: int,
    seed: int,
) -> tuple[int, IntArray]:
    """Improve an order by random fitting moves of critical actions; (makespan, codes).

    Returns:
        Makespan, codes.
    """
    chunks, ranks = table.shape[1], limit.shape[0]
    end = np.zeros((3 * chunks, microbatches), dtype=np.int64)
    trial_end = np.zeros((3 * chunks, microbatches), dtype=np.int64)
    place = np.zeros((3 * chunks, microbatches), dtype=np.int64)
    at, free, count = (
        np.zeros(ranks, dtype=np.int64),
        np.zeros(ranks, dtype=np.int64),
        np.zeros(3 * chunks, dtype=np.int64),
    )
    turn, path = np.zeros(codes.shape[0], dtype=np.int64), np.zeros(codes.shape[0], dtype=np.int64)
    best = codes.copy()
    makespan = walk(table, best, row_start, microbatches, end, at, free, count)
    size = _critical(table, best, row_start, microbatches, makespan, end, turn, place, path, count)
    state = (seed % MODULUS + 1) * MULTIPLIER % MODULUS
    for _ in range(tries):
        if makespan <= goal:
            break
        state = state * MULTIPLIER % MODULUS
        a = path[state % size]
        far = (state // size) % (2 * REACH) - REACH
        far += far >= 0
        r = table[OWNER, best[a] % chunks]
        b = min(max(a + far, row_start[r]), row_start[r + 1] - 1)
        if a == b or best[a] == best[b]:
            continue
        moved = best[a]
        step = 1 if b > a else -1
        for x in range(a, b, step):
            best[x] = best[x + step]
        best[b] = moved
        found = -1
        if _fits(table, best, row_start[r], row_start[r + 1], limit[r]):
            found = walk(table, best, row_start, microbatches, trial_end, at, free, count)
        if found >= 0 and found <= makespan:
            makespan = found
            end, trial_end = trial_end, end
            size = _critical(
                table, best, row_start, microbatches, makespan, end, turn, place, path, count
            )
        else:
            for x in range(b, a, -step):
                best[x] = best[x - step]
            best[a] = moved
    return makespan, best
