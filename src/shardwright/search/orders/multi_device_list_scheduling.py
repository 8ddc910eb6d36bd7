"""List scheduling and local search of actions that may occupy several rows of devices.

Compiled, on an integer clock. An order is a sequence of all actions in which each comes after the
actions that it waits for; a row's order is the part of the sequence in which the row is occupied.
So every sequence can be run without a deadlock. An action occupies all its rows from start to end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import IntArray
from shardwright.kernel_compilation import compiled, inner
from shardwright.search.orders.list_scheduling import NEVER, PARTS
from shardwright.search.orders.order_problem import MODULUS, MULTIPLIER

REACH = 6
"""Most actions of its rows that an action moves past."""


class SharedActions(NamedTuple):
    """Actions, rows and dependencies as arrays; lists by action are in CSR form.

    Args:
        time: (n,) duration of each action.
        weight: (n,) 1 for weight gradients.
        urgency: (n,) longest path from its start to the end of the step.
        unit: (n,) number of its microbatch over all lanes.
        opens: (n,) 1 for forwards of stages that wait for no other stage.
        row_start, row: rows of each action.
        need_start, need, delay: actions that it waits for, and the delay after their end.
        after_start, after: actions that wait for it.
        turn: (n,) the previous action of the same stage and kind, or -1.
        next: (n,) the next action of the same stage and kind, or -1.
        step: (n,) change of the memory of its rows.
        limit: (rows,) memory of each row.
    """

    time: IntArray
    weight: IntArray
    urgency: IntArray
    unit: IntArray
    opens: IntArray
    row_start: IntArray
    row: IntArray
    need_start: IntArray
    need: IntArray
    delay: IntArray
    after_start: IntArray
    after: IntArray
    turn: IntArray
    next: IntArray
    step: IntArray
    limit: IntArray


@inner
def _earliest(m: SharedActions, a: int, start: IntArray, free: IntArray) -> int:
    """Earliest start of action `a`: after the actions that it needs, when all its rows are free."""
    begin = 0
    for i in range(m.need_start[a], m.need_start[a + 1]):
        begin = max(begin, start[m.need[i]] + m.time[m.need[i]] + m.delay[i])
    for i in range(m.row_start[a], m.row_start[a + 1]):
        begin = max(begin, free[m.row[i]])
    return begin


@compiled
def run_sequence(
    m: SharedActions, sequence: IntArray, start: IntArray, free: IntArray, level: IntArray
) -> int:
    """Makespan of a sequence of actions; NEVER if a row exceeds its memory.

    Args:
        start: (n,) receives the start of each action.
        free, level: (rows,) scratch.
    """
    free[:] = 0
    level[:] = 0
    makespan = 0
    for a in sequence:
        begin = _earliest(m, a, start, free)
        start[a] = begin
        for i in range(m.row_start[a], m.row_start[a + 1]):
            r = m.row[i]
            free[r] = begin + m.time[a]
            level[r] += m.step[a]
            if level[r] > m.limit[r]:
                return NEVER
        makespan = max(makespan, begin + m.time[a])
    return makespan


@inner
def _admitted(m: SharedActions, a: int, level: IntArray, rest: IntArray, first: bool) -> bool:
    """True if a forward fits on all its rows beside the remaining need of the oldest microbatch."""
    for i in range(m.row_start[a], m.row_start[a + 1]):
        r = m.row[i]
        if level[r] + m.step[a] + (0 if first else rest[r]) > m.limit[r]:
            return False
    return True


@compiled
def list_sequence(
    m: SharedActions, most: int, patience: int, deep: int, careful: int
) -> tuple[int, IntArray]:
    """List-schedule actions, the earliest start first, then the most urgent; (count, sequence).

    Careful, it admits forwards only where all their rows keep room for the rest of the oldest
    microbatch, so that a microbatch can always end; else it does not check memory limits.

    Args:
        most: most microbatches in flight, over all lanes.
        patience: a weight gradient counts as starting that many parts of its time later.
        careful: 0 or 1.
        deep: 1 = of actions that can start together the action of the earliest microbatch comes
            first, then the more urgent.

    Returns:
        Number of scheduled actions, all of them unless none can start, and the sequence.
    """
    n, rows, units = m.time.shape[0], m.limit.shape[0], m.unit.max() + 1
    left, missing = np.zeros(units, dtype=np.int64), np.zeros(n, dtype=np.int64)
    ready, sequence, done = (
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
    )
    start, free, begun = (
        np.zeros(n, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        np.zeros(units, dtype=np.int64),
    )
    level, rest, queue = (
        np.zeros(rows, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        np.zeros(units, dtype=np.int64),
    )
    waiting, size, alive, head, tail, oldest = 0, 0, 0, 0, 0, -1
    for a in range(n):
        left[m.unit[a]] += 1
        missing[a] = m.need_start[a + 1] - m.need_start[a] + (1 if m.turn[a] >= 0 else 0)
        if missing[a] == 0:
            ready[waiting] = a
            waiting += 1
    while waiting > 0:
        best, best_start, best_order, best_slot = -1, NEVER, NEVER, -1
        for slot in range(waiting):
            a = ready[slot]
            if m.opens[a] == 1 and begun[m.unit[a]] == 0 and alive >= most:
                continue
            if (
                careful == 1
                and m.step[a] > 0
                and not _admitted(m, a, level, rest, m.unit[a] == oldest)
            ):
                continue
            begin = _earliest(m, a, start, free)
            start[a] = begin
            begin += m.weight[a] * m.time[a] * patience // PARTS
            order = -m.urgency[a] if deep == 0 else m.unit[a]
            if begin < best_start or (
                begin == best_start
                and (order < best_order or (order == best_order and m.urgency[a] > m.urgency[best]))
            ):
                best, best_start, best_order, best_slot = a, begin, order, slot
        if best < 0:
            break
        waiting -= 1
        ready[best_slot] = ready[waiting]
        if begun[m.unit[best]] == 0:
            begun[m.unit[best]] = 1
            queue[tail] = m.unit[best]
            tail += 1
            alive += 1
        left[m.unit[best]] -= 1
        if left[m.unit[best]] == 0:
            alive -= 1
        done[best] = 1
        for i in range(m.row_start[best], m.row_start[best + 1]):
            free[m.row[i]] = start[best] + m.time[best]
            level[m.row[i]] += m.step[best]
            if m.unit[best] == oldest and m.step[best] > 0:
                rest[m.row[i]] -= m.step[best]
        while head < tail and left[queue[head]] == 0:
            head += 1
        if head < tail and queue[head] != oldest:
            oldest = queue[head]
            rest[:] = 0
            for a in range(n):
                if m.unit[a] == oldest and done[a] == 0 and m.step[a] > 0:
                    for i in range(m.row_start[a], m.row_start[a + 1]):
                        rest[m.row[i]] += m.step[a]
        sequence[size] = best
        size += 1
        for i in range(m.after_start[best], m.after_start[best + 1]):
            missing[m.after[i]] -= 1
            if missing[m.after[i]] == 0:
                ready[waiting] = m.after[i]
                waiting += 1
        if m.next[best] >= 0:
            missing[m.next[best]] -= 1
            if missing[m.next[best]] == 0:
                ready[waiting] = m.next[best]
                waiting += 1
    return size, sequence


@inner
def _meet(m: SharedActions, a: int, b: int) -> bool:
    """True if actions number `a` and `b` are in a common row (device class)."""
    for i in range(m.row_start[a], m.row_start[a + 1]):
        for j in range(m.row_start[b], m.row_start[b + 1]):
            if m.row[i] == m.row[j]:
                return True
    return False


@inner
def _bound(m: SharedActions, first: int, second: int) -> bool:
    """True if action number `second` waits directly for action number `first`."""
    if m.next[first] == second:
        return True
    for i in range(m.need_start[second], m.need_start[second + 1]):  # noqa: SIM110 - compiled code has no generators
        if m.need[i] == first:
            return True
    return False


@inner
def _move(m: SharedActions, sequence: IntArray, at: int, ahead: bool, times: int) -> int:
    """Move an action later (`ahead`) or earlier past `times` actions of its rows; new index."""
    a, n = sequence[at], sequence.shape[0]
    passed, place = 0, at
    while passed < times:
        other = place + 1 if ahead else place - 1
        if other < 0 or other >= n:
            break
        b = sequence[other]
        if _bound(m, a, b) if ahead else _bound(m, b, a):
            break
        sequence[place], sequence[other] = b, a
        place = other
        passed += 1 if _meet(m, a, b) else 0
    return place


@compiled
def improve(
    m: SharedActions, sequence: IntArray, goal: int, tries: int, seed: int
) -> tuple[int, IntArray]:
    """Improve a sequence by random moves that do not lengthen it; (makespan, sequence).

    Ends early at makespan `goal`.
    """
    n = sequence.shape[0]
    start, free, level = (
        np.zeros(n, dtype=np.int64),
        np.zeros(m.limit.shape[0], dtype=np.int64),
        np.zeros(m.limit.shape[0], dtype=np.int64),
    )
    best = run_sequence(m, sequence, start, free, level)
    kept = sequence[np.argsort(start[sequence], kind="mergesort")]
    tried = kept.copy()
    state = (seed % MODULUS + 1) * MULTIPLIER % MODULUS
    for _ in range(tries):
        if best <= goal:
            break
        state = state * MULTIPLIER % MODULUS
        at = state % n
        state = state * MULTIPLIER % MODULUS
        to = _move(m, tried, at, state % 2 == 0, 1 + state // 2 % REACH)
        low, high = min(at, to), max(at, to) + 1
        if low + 1 == high:
            continue
        makespan = run_sequence(m, tried, start, free, level)
        if makespan > best:
            for place in range(low, high):
                tried[place] = kept[place]
        elif makespan == best:
            for place in range(low, high):
                kept[place] = tried[place]
        else:
            best = makespan
            # Sorted by starts, actions that are near in time are near in place, so that moves reach
            # them.
            kept = tried[np.argsort(start[tried], kind="mergesort")]
            tried = kept.copy()
    return best, kept
