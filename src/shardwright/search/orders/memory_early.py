"""Early recompute: a recompute as an action of its own, placed where its rank would wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.compiled import compiled
from shardwright.errors import UsageError
from shardwright.schedules.table import ActionTable, B, I, R, W
from shardwright.search.orders.found import FoundOrder, codes_of
from shardwright.search.orders.problem import Int64, OrderProblem, flat
from shardwright.search.orders.walk import FIRST, FORWARD, HELD, INPUT, LAST, OWNER, SEND_BACKWARD, SEND_FORWARD, STASH

REACH = 24
"""How many places before its input gradient a recompute is tried at most."""
SWEEPS = 3
"""How often all recomputes are tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyRecompute:
    """An order with recomputes of their own.

    Args:
        table: F, R, I, W, and B where W takes no time. makespan: its end. glued: the end with every recompute inside its backward.
        peak: (ranks,) most that each rank keeps, what is restored included. moved: recomputes that stand before anything else than their I.
    """

    table: ActionTable
    makespan: int
    glued: int
    peak: tuple[int, ...]
    moved: int


def place_recompute(
    problem: OrderProblem, order: FoundOrder, *, recompute: Int64, restored: Int64, limit: Int64 | None = None, sweeps: int = SWEEPS
) -> EarlyRecompute:
    """`order` with each chunk's recompute split from its I, and moved ahead where that ends earlier and fits; never later than before.

    R waits for its chunk's F only, so already right before its I it fills the wait for the gradient, and no rank keeps more at any place of
    its row. Further ahead it keeps what it restores for longer. Each is tried before what stands ahead of it in its row, on its own rank's
    row alone; a move stays if the order ends earlier, or as early with input gradients that end earlier in sum.

    Args:
        problem: with I of a chunk that recomputes in full length (`FoundWithMemory.problem`). order: of it.
        recompute: (lanes, chunks) time of I that is recompute; 0 where nothing is.
        restored: (lanes, chunks) kept beyond `held` from R's start to I's end, or while I runs where there is no R
            (`MemoryOption.working`).
        limit: (ranks,) most that a rank may keep, what is restored included; the order's own peak with glued recomputes if None or less.
        sweeps: over all recomputes, at most.

    Raises:
        UsageError: recompute or restored have another shape, or a recompute is longer than its I.

    Source: the recompute of Megatron's and AdaPipe's plans is inside the backward; kind R as an action is this project's (schedules/table).
    """
    for name, given in (("recompute", recompute), ("restored", restored)):
        if np.shape(given) != problem.owner.shape or np.min(given) < 0:
            raise UsageError(f"{name} must have a number of at least 0 for each lane and chunk, shape {problem.owner.shape}")
    if (np.asarray(recompute) > problem.input).any():
        raise UsageError("a recompute is a part of its I: it cannot take longer")
    times, amounts = np.asarray(recompute, np.int64).reshape(-1), np.asarray(restored, np.int64).reshape(-1)
    chunks = problem.lanes * problem.chunks
    table = flat(problem)[0].copy()
    codes, row_start = codes_of(problem, order.table)
    shape = (4 * chunks, problem.microbatches)
    scratch = (
        np.zeros(shape, np.int64),
        np.zeros(problem.ranks, np.int64),
        np.zeros(problem.ranks, np.int64),
        np.zeros(4 * chunks, np.int64),
    )
    glued = int(_walk(table, times * 0, codes, row_start, *scratch)[0])
    codes, row_start = _split(codes, row_start, times, chunks)
    table[INPUT] -= times
    most = _peaks(table, amounts, codes, row_start)
    if limit is not None:
        most = np.maximum(most, limit)
    _move(table, times, amounts, most, codes, row_start, *scratch, sweeps)
    makespan = int(_walk(table, times, codes, row_start, *scratch)[0])
    return EarlyRecompute(
        table=_table_of(problem, codes, row_start),
        makespan=makespan,
        glued=glued,
        peak=tuple(_peaks(table, amounts, codes, row_start).tolist()),
        moved=int(((codes // chunks == 3) & (np.roll(codes, -1) != codes - 2 * chunks)).sum()),
    )


def _split(codes: Int64, row_start: Int64, times: Int64, chunks: int) -> tuple[Int64, Int64]:
    """Rows with R (kind 3) right before each I of a chunk that recomputes."""
    splits = (codes // chunks == 1) & (times[codes % chunks] > 0)
    sizes = 1 + splits
    result = np.repeat(codes, sizes)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    result[ends[:-1][splits]] += 2 * chunks
    return result, ends[row_start].astype(np.int64)


@compiled
def _walk(table: Int64, times: Int64, codes: Int64, row_start: Int64, end: Int64, at: Int64, free: Int64, count: Int64) -> tuple[int, int]:
    """Makespan and the sum of the ends of all input gradients; (-1, 0) if the order deadlocks. `walk` with R as kind 3.

    R and its I stand in one row, so I waits for R by their order there.
    """
    chunks = table.shape[1]
    ranks = row_start.shape[0] - 1
    count[:] = 0
    free[:] = 0
    at[:] = row_start[:ranks]
    done, total = 0, row_start[ranks]
    makespan, ends = 0, 0
    while done < total:
        before = done
        for r in range(ranks):
            while at[r] < row_start[r + 1]:
                code = codes[at[r]]
                kind, c = code // chunks, code % chunks
                k = count[code]
                arrived = 0
                if kind == 0:
                    if table[FIRST, c] == 0:
                        if count[c - 1] <= k:
                            break
                        arrived = end[c - 1, k] + table[SEND_FORWARD, c - 1]
                elif kind == 2:
                    if count[chunks + c] <= k:
                        break
                else:
                    if count[c] <= k or (kind == 1 and times[c] > 0 and count[3 * chunks + c] <= k):
                        break
                    if kind == 1 and table[LAST, c] == 0:
                        if count[chunks + c + 1] <= k:
                            break
                        arrived = end[chunks + c + 1, k] + table[SEND_BACKWARD, c + 1]
                takes = times[c] if kind == 3 else table[FORWARD + kind, c]
                finish = max(free[r], arrived) + takes
                end[code, k] = finish
                free[r] = finish
                count[code] = k + 1
                makespan = max(makespan, finish)
                if kind == 1:
                    ends += finish
                at[r] += 1
                done += 1
        if done == before:
            return -1, 0
    return makespan, ends


@compiled
def _row_peak(table: Int64, amounts: Int64, codes: Int64, first: int, last: int, recomputes: Int64) -> int:
    """Most that one row keeps; `recomputes` (chunks,): room to note which chunks have an R."""
    chunks = table.shape[1]
    recomputes[:] = 0
    for a in range(first, last):
        if codes[a] // chunks == 3:
            recomputes[codes[a] % chunks] = 1
    level, peak = 0, 0
    for a in range(first, last):
        kind, c = codes[a] // chunks, codes[a] % chunks
        if kind == 0:
            level += table[HELD, c]
        elif kind == 3:
            level += amounts[c]
        elif kind == 1:
            if recomputes[c] == 0:
                peak = max(peak, level + amounts[c])
            level -= table[HELD, c] - table[STASH, c] + recomputes[c] * amounts[c]
        else:
            level -= table[STASH, c]
        peak = max(peak, level)
    return peak


@compiled
def _peaks(table: Int64, amounts: Int64, codes: Int64, row_start: Int64) -> Int64:
    """(ranks,) most that each row keeps."""
    ranks = row_start.shape[0] - 1
    room = np.zeros(table.shape[1], dtype=np.int64)
    result = np.zeros(ranks, dtype=np.int64)
    for r in range(ranks):
        result[r] = _row_peak(table, amounts, codes, row_start[r], row_start[r + 1], room)
    return result


@compiled
def _move(
    table: Int64,
    times: Int64,
    amounts: Int64,
    limit: Int64,
    codes: Int64,
    row_start: Int64,
    end: Int64,
    at: Int64,
    free: Int64,
    count: Int64,
    sweeps: int,
) -> None:
    """Move recomputes ahead in `codes`, in place."""
    chunks = table.shape[1]
    room = np.zeros(chunks, dtype=np.int64)
    makespan, ends = _walk(table, times, codes, row_start, end, at, free, count)
    for _ in range(sweeps):
        gained = False
        for a in range(codes.shape[0]):
            code = codes[a]
            if code // chunks != 3:
                continue
            r = table[OWNER, code % chunks]
            place, origin = a, a
            best = a
            while place > row_start[r] and origin - place < REACH:
                ahead = codes[place - 1]
                # Past another R of its chunk the two only change names, and past its own F nothing is there to restore.
                if ahead == code or (ahead == code - 3 * chunks and _behind(codes, row_start[r], place - 1, code, ahead)):
                    break
                codes[place - 1], codes[place] = code, ahead
                place -= 1
                if _row_peak(table, amounts, codes, row_start[r], row_start[r + 1], room) > limit[r]:
                    break
                if ahead // chunks == 3 or ahead // chunks == 2:
                    continue
                made, sums = _walk(table, times, codes, row_start, end, at, free, count)
                if made >= 0 and (made < makespan or (made == makespan and sums < ends)):
                    makespan, ends, best = made, sums, place
                    gained = True
            for x in range(place, best):
                codes[x] = codes[x + 1]
            codes[best] = code
        if not gained:
            break


@compiled
def _behind(codes: Int64, first: int, place: int, recompute: int, forward: int) -> bool:
    """Whether the forward at `place` is the one whose activations the next `recompute` after it restores."""
    forwards, recomputes = 0, 0
    for a in range(first, place):
        if codes[a] == forward:
            forwards += 1
        elif codes[a] == recompute:
            recomputes += 1
    return forwards <= recomputes


def _table_of(problem: OrderProblem, codes: Int64, row_start: Int64) -> ActionTable:
    """The action table of rows with R; I and a W that takes no time become B."""
    chunks = problem.lanes * problem.chunks
    turn = np.empty_like(codes)
    for code in np.unique(codes):
        mine = codes == code
        turn[mine] = np.arange(int(mine.sum()))
    kind, place = codes // chunks, codes % chunks
    timeless = (problem.weight.reshape(-1) == 0)[place]
    kept = ~(timeless & (kind == W))
    kind = np.where(kind == 3, R, np.where(timeless & (kind == I), B, kind))
    sizes = np.add.reduceat(kept, row_start[:-1])
    return ActionTable(
        num_ranks=problem.ranks,
        num_chunks=problem.chunks,
        num_microbatches=problem.microbatches,
        row_start=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        kind=kind[kept].astype(np.int8),
        chunk=(place % problem.chunks)[kept].astype(np.int32),
        microbatch=turn[kept].astype(np.int32),
        lane=(place // problem.chunks)[kept].astype(np.int8),
        slice=np.zeros(int(kept.sum()), np.int32),
    )
