"""List scheduling of pipeline actions under a memory limit.

A free rank starts the action that its policy ranks first among those that can start. Forwards are
admitted only where the rank keeps room for all its deeper chunks, so the furthest microbatch can
always go on and a pipeline of one lane never deadlocks. Weight gradients fill gaps and free memory.
"""

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
    WEIGHT,
)
from shardwright.search.orders.order_problem import MODULUS, MULTIPLIER

NEVER = 2**62
"""Time of an action that cannot start, above every time of an order."""
PARTS = 16
"""Parts of a weight gradient's time in which a policy's patience is given."""


@inner
def _choose(
    r: int,
    table: IntArray,
    limit: IntArray,
    local: IntArray,
    reserve: IntArray,
    m: int,
    policy: IntArray,
    end: IntArray,
    count: IntArray,
    free: int,
    level: int,
) -> tuple[int, int]:
    """Next action of rank r as (start, code); start is NEVER if the action is not known yet."""
    chunks = table.shape[1]
    best_start, best_code, best_rank = NEVER, -1, 0
    filler, filler_time, blocked = -1, 0, False
    alive = 0
    for slot in range(local.shape[1]):
        c = local[r, slot]
        if c < 0:
            break
        alive += count[c] - count[chunks + c]
    for slot in range(local.shape[1]):
        c = local[r, slot]
        if c < 0:
            break
        k = count[chunks + c]
        if k < count[c]:
            arrived = end[c, k]
            known = True
            if table[LAST, c] == 0:
                known = count[chunks + c + 1] > k
                if known:
                    arrived = max(arrived, end[chunks + c + 1, k] + table[SEND_BACKWARD, c + 1])
            if known:
                start = max(free, arrived)
                # Among actions that may start together the policy's kind comes first, then the
                # deeper chunk.
                rank = 0 if policy[1, r] == 0 else 1
                if start < best_start or (start == best_start and rank < best_rank):
                    best_start, best_code, best_rank = start, chunks + c, rank
        k = count[c]
        if k < m:
            known, arrived = True, 0
            if table[FIRST, c] == 0:
                known = count[c - 1] > k
                if known:
                    arrived = end[c - 1, k] + table[SEND_FORWARD, c - 1]
            if known:
                fits = level + table[HELD, c] + reserve[c] <= limit[r]
                if not fits:
                    blocked = True
                elif alive < policy[2, r] or local[r, slot + 1] >= 0:
                    # The cap holds for the shallowest chunk alone: microbatches in flight must be
                    # able to go on.
                    start = max(free, arrived)
                    rank = 1 if policy[1, r] == 0 else 0
                    if start < best_start or (start == best_start and rank < best_rank):
                        best_start, best_code, best_rank = start, c, rank
        k = count[2 * chunks + c]
        if k < count[chunks + c] and table[WEIGHT, c] >= filler_time:
            filler, filler_time = 2 * chunks + c, table[WEIGHT, c]
    if filler >= 0:
        gap = best_start - free
        if (
            best_code < 0
            or gap * PARTS > filler_time * policy[0, r]
            or (blocked and best_code >= chunks and gap > 0)
        ):
            return free, filler
    return best_start, best_code


@compiled
def list_schedule(
    table: IntArray,
    limit: IntArray,
    local: IntArray,
    reserve: IntArray,
    microbatches: int,
    policy: IntArray,
) -> tuple[int, IntArray, IntArray]:
    """List-schedule all actions in the ranks' memory limits; (makespan or -1, codes, row_start).

    Args:
        reserve: (chunks,) room that must be left for deeper chunks of the same rank after F of a
            chunk.
        policy: (3, ranks) patience (a weight gradient is begun if more than patience/PARTS of it
            fit before the next F or I), 0 to prefer I and 1 to prefer F of those that may start
            together, the most forwards without their I.

    Returns:
        Makespan (-1 if no rank can go on), codes, row_start; see `walk`.
    """
    chunks, ranks = table.shape[1], limit.shape[0]
    end = np.zeros((3 * chunks, microbatches), dtype=np.int64)
    count = np.zeros(3 * chunks, dtype=np.int64)
    free, level = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    row_start = np.zeros(ranks + 1, dtype=np.int64)
    for c in range(chunks):
        row_start[table[OWNER, c] + 1] += 3 * microbatches
    for r in range(ranks):
        row_start[r + 1] += row_start[r]
    codes = np.zeros(row_start[ranks], dtype=np.int64)
    at = row_start[:ranks].copy()
    start, code = np.full(ranks, NEVER, dtype=np.int64), np.full(ranks, -1, dtype=np.int64)
    for r in range(ranks):
        start[r], code[r] = _choose(
            r, table, limit, local, reserve, microbatches, policy, end, count, free[r], level[r]
        )
    makespan = 0
    for _ in range(codes.shape[0]):
        r = 0
        for other in range(1, ranks):
            if start[other] < start[r]:
                r = other
        if start[r] >= NEVER:
            return -1, codes, row_start
        kind, c = code[r] // chunks, code[r] % chunks
        finish = start[r] + table[FORWARD + kind, c]
        end[code[r], count[code[r]]] = finish
        count[code[r]] += 1
        free[r] = finish
        if kind == 0:
            level[r] += table[HELD, c]
        elif kind == 1:
            level[r] -= table[HELD, c] - table[STASH, c]
        else:
            level[r] -= table[STASH, c]
        codes[at[r]] = code[r]
        at[r] += 1
        makespan = max(makespan, finish)
        start[r], code[r] = _choose(
            r, table, limit, local, reserve, microbatches, policy, end, count, free[r], level[r]
        )
        other = r
        if kind == 0 and table[LAST, c] == 0:
            other = table[OWNER, c + 1]
        elif kind == 1 and table[FIRST, c] == 0:
            other = table[OWNER, c - 1]
        if other != r:
            start[other], code[other] = _choose(
                other,
                table,
                limit,
                local,
                reserve,
                microbatches,
                policy,
                end,
                count,
                free[other],
                level[other],
            )
    return makespan, codes, row_start


def deeper_chunk_bytes(table: IntArray, local: IntArray) -> IntArray:
    """(chunks,) bytes that the deeper chunks of each chunk's rank keep of one microbatch."""
    result = np.zeros(table.shape[1], np.int64)
    for row in local:
        deeper = 0
        for c in row[row >= 0].tolist():
            result[c] = deeper
            deeper += int(table[HELD, c])
    return result


@compiled
def climb(
    table: IntArray,
    limit: IntArray,
    local: IntArray,
    reserve: IntArray,
    microbatches: int,
    policy: IntArray,
    goal: int,
    tries: int,
    seed: int,
) -> tuple[int, IntArray]:
    """Improve a policy by small random changes that do not lengthen its order; (makespan, policy).

    Args:
        goal: makespan to stop at.
        tries: largest number of changes.
        seed: seed of the random numbers.

    Returns:
        Makespan, policy.
    """
    ranks = limit.shape[0]
    best = policy.copy()
    makespan, _, _ = list_schedule(table, limit, local, reserve, microbatches, best)
    state = (seed % MODULUS + 1) * MULTIPLIER % MODULUS
    for _ in range(tries):
        if makespan <= goal and makespan >= 0:
            break
        trial = best.copy()
        state = state * MULTIPLIER % MODULUS
        for _ in range(1 + state % 3):
            state = state * MULTIPLIER % MODULUS
            kind, r = state % 4, (state // 4) % ranks
            step = (state // (4 * ranks)) % 8
            if kind == 0:
                trial[0, r] = 3 * step
            elif kind == 1:
                trial[1, r] = 1 - trial[1, r]
            else:
                trial[2, r] = max(
                    1, min(trial[2, r], microbatches) + (step % 4 - 4 if step < 4 else step % 4 + 1)
                )
        found, _, _ = list_schedule(table, limit, local, reserve, microbatches, trial)
        if found >= 0 and (found <= makespan or makespan < 0):
            makespan, best = found, trial
    return makespan, best
