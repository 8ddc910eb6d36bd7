"""Tier B1: the longest path through the actual order with uncontended durations, without building a Program.

The same tasks and dependencies as `program.lower` lays out for one class a pipeline rank, walked row by row on an integer clock.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, Int8Array, Int32Array, IntArray
from shardwright.compiled import compiled
from shardwright.cost.step_costs import StepCosts
from shardwright.hardware.cluster import Tier
from shardwright.program.problem import Problem
from shardwright.schedules.registry import schedule_table
from shardwright.schedules.table import ActionTable
from shardwright.strategy.grid.axes import Grid
from shardwright.units import PICOSECONDS_PER_SECOND

_F, _I, _W, _B = 0, 1, 2, 3
_CLOCK = 2
"""Picoseconds by which the kernel may round the end of two tasks that share a device."""
_SHARE = 1e-7
"""More than the kernel rounds a share of a device by."""


def picoseconds(seconds: FloatArray) -> IntArray:
    """Seconds as whole picoseconds, element by element."""
    return np.rint(np.asarray(seconds) * PICOSECONDS_PER_SECOND).astype(np.int64)


@compiled
def walk(
    row_start: Int32Array,
    kind: Int8Array,
    chunk: Int32Array,
    microbatch: Int32Array,
    num_microbatches: int,
    duration: IntArray,
    send_forward: IntArray,
    send_backward: IntArray,
    gather: IntArray,
    reduce: IntArray,
    tied: IntArray,
    pieces: IntArray,
    blocking: bool,
    reduces_last: bool,
    slower: float,
    share: FloatArray,
) -> IntArray:
    """Instant at which each rank has computed and reduced everything; -1 if the order deadlocks.

    Side by side compute and a collective each run at 1 / (1 + slower): an action is longer by slower x the rank's collectives that are
    pending beside it, at most by slower x itself. That bounds the simulation as long as slower <= 1: an action that starts later there
    finds less pending, but gains less by it than it is late. So does a send, which is longer by `share` x what is pending beside it:
    share[0] and share[1], (chunks,), of its link that the rank's collectives fill, at most 1, forward and backward.
    """
    ranks = row_start.shape[0] - 1
    chunks = gather.shape[0]
    # Filled by loops: `full`, `maximum` and copies would each be compiled for themselves.
    forward_in = np.empty(chunks * num_microbatches, np.int64).reshape(chunks, num_microbatches)
    backward_in = np.empty(chunks * num_microbatches, np.int64).reshape(chunks, num_microbatches)
    for c in range(chunks):
        for m in range(num_microbatches):
            forward_in[c, m] = -1 if c > 0 else 0
            backward_in[c, m] = -1
    gathered = np.zeros(chunks, dtype=np.int64)
    sync_free = np.zeros(ranks, dtype=np.int64)
    for c in range(chunks):
        r = c % ranks
        sync_free[r] += gather[c]
        gathered[c] = sync_free[r]
    total = np.zeros(ranks, dtype=np.int64)
    pending = np.zeros(ranks, dtype=np.int64)
    looked = np.zeros(ranks, dtype=np.int64)
    free = np.zeros(ranks, dtype=np.int64)
    computed = np.zeros(ranks, dtype=np.int64)
    send_f_free = np.zeros(ranks, dtype=np.int64)
    send_b_free = np.zeros(ranks, dtype=np.int64)
    closed = np.zeros(chunks, dtype=np.int64)
    # A rank's reductions stand on its stream in the order of its chunks' last backwards, which is the order of its row.
    closing_total = np.zeros(chunks, dtype=np.int64)
    for a in range(row_start[ranks]):
        if kind[a] == _B or kind[a] == _W:
            closing_total[chunk[a]] += 1
    at = np.zeros(ranks, dtype=np.int64)
    for r in range(ranks):
        at[r] = row_start[r]
        total[r] = sync_free[r]
        pending[r] = sync_free[r]
    progressing = True
    while progressing:
        progressing = False
        for r in range(ranks):
            while at[r] < row_start[r + 1]:
                a = at[r]
                c = chunk[a]
                m = microbatch[a]
                k = kind[a]
                if k == _F:
                    arrived = forward_in[c, m]
                elif k == _W:
                    arrived = 0
                else:
                    arrived = backward_in[c, m] if c < chunks - 1 else 0
                if arrived < 0:
                    break
                start = max(free[r], arrived)
                if k == _F and m == 0:
                    # What is still to gather may belong to later chunks only.
                    start = max(start, looked[r] + pending[r] - (total[r] - gathered[c]))
                closing = False
                if k in (_B, _W):
                    closed[c] += 1
                    closing = closed[c] == closing_total[c] and not reduces_last
                n = pieces[c] if closing else 1
                pending[r] = max(pending[r] - (start - looked[r]), 0)
                finish = start
                for piece in range(n):
                    part = duration[k, c] * (piece + 1) // n - duration[k, c] * piece // n
                    beside = min(pending[r], part)
                    pending[r] -= beside
                    finish += part + max(np.int64(beside * slower) - _CLOCK, 0)
                    if closing:
                        part = reduce[c] * (piece + 1) // n - reduce[c] * piece // n
                        pending[r] += part
                        sync_free[r] = max(sync_free[r], finish) + part
                looked[r] = finish
                free[r] = finish
                computed[r] = finish
                if k == _F and c < chunks - 1:
                    sent = finish
                    if ranks > 1:
                        sent = max(finish, send_f_free[r])
                        beside = min(max(pending[r] - (sent - finish), 0), send_forward[c])
                        sent += send_forward[c] + max(np.int64(beside * share[0, c]) - _CLOCK, 0)
                        send_f_free[r] = sent
                        if blocking:
                            free[r] = sent
                    forward_in[c + 1, m] = sent
                elif k in (_B, _I) and c > 0:
                    sent = finish
                    if ranks > 1:
                        sent = max(finish, send_b_free[r])
                        beside = min(max(pending[r] - (sent - finish), 0), send_backward[c])
                        sent += send_backward[c] + max(np.int64(beside * share[1, c]) - _CLOCK, 0)
                        send_b_free[r] = sent
                        if blocking:
                            free[r] = sent
                    backward_in[c - 1, m] = sent
                at[r] += 1
                progressing = True
    if reduces_last:
        for c in range(chunks):
            sync_free[c % ranks] = max(sync_free[c % ranks], computed[c % ranks]) + reduce[c]
    for r in range(ranks):
        sync_free[r] = max(sync_free[r], looked[r] + pending[r])
    # Weights that both ends share are summed last, once both ends have computed their gradients.
    both = max(computed[0], computed[(chunks - 1) % ranks])
    for end in range(2):
        c = end * (chunks - 1)
        if tied[c] > 0 and (c == 0 or chunks > 1):
            sync_free[c % ranks] = max(sync_free[c % ranks], both) + tied[c]
    for r in range(ranks):
        free[r] = max(free[r], sync_free[r]) if at[r] == row_start[r + 1] else -1
    return free


def load_walk() -> None:
    """Load (or compile) the walk by calling it on a pipeline of one forward."""
    one = np.zeros(1, dtype=np.int64)
    rows, kind, chunk = np.array([0, 1], dtype=np.int32), np.zeros(1, dtype=np.int8), np.zeros(1, dtype=np.int32)
    for column in (rows, kind, chunk):
        # Tables are read-only, which is part of a compiled kernel's signature.
        column.setflags(write=False)
    walk(
        rows, kind, chunk, chunk, 1, np.zeros((5, 1), dtype=np.int64), one, one, one, one, one, one + 1, False, False, 0.0, np.zeros((2, 1))
    )


def durations(costs: StepCosts) -> IntArray:
    """(kinds, chunks) picoseconds of F, I, W, B, R; I and W add up to B."""
    chunks = len(costs.contents)
    result = np.zeros((5, chunks), dtype=np.int64)
    result[_F] = picoseconds(costs.forward_s)
    result[_B] = picoseconds(costs.backward_s)
    result[_W] = picoseconds(costs.weight_s)
    result[_I] = result[_B] - result[_W]
    return result


def order_table(grid: Grid, *, microbatches: int) -> ActionTable:
    """The action table of a grid's schedule."""
    return schedule_table(grid.schedule, num_ranks=grid.pp, chunks_per_rank=grid.vpp, num_microbatches=microbatches)


def microbatches_of(problem: Problem, grid: Grid) -> int:
    """Microbatches that each replica runs in a step."""
    return problem.job.global_batch // (grid.dp * grid.microbatch)


def jitter(problem: Problem, devices: int) -> float:
    """Factor >= 1 on the step from stragglers and noise: 1 + jitter x log2(nodes), the same in every tier of bounds."""
    nodes = max(devices / problem.cluster.node.num_devices, 1.0)
    return 1.0 + problem.constants.jitter * log2(nodes)


@lru_cache(maxsize=1024)
def border_tiers(devices: int, ranks: int, stride: int, tiers: tuple[Tier, ...]) -> BoolArray:
    """(2, ranks, tiers) whether a device of a pipeline rank sends across a tier, to the next rank and to the one before (round the ring).

    Args:
        stride: devices from one rank to the next.
    """
    device = np.arange(devices, dtype=np.int64)
    rank = device // stride % ranks
    result = np.zeros((2, ranks, len(tiers)), dtype=np.bool_)
    for way, step in enumerate((1, -1)):
        other = device + ((rank + step) % ranks - rank) * stride
        crossed = np.full(devices, len(tiers) - 1)
        for index in range(len(tiers) - 2, -1, -1):
            crossed[device // tiers[index].num_devices == other // tiers[index].num_devices] = index
        result[way, rank, crossed] = True
    return result


def border_picoseconds(costs: StepCosts, grid: Grid, tiers: tuple[Tier, ...]) -> tuple[IntArray, IntArray]:
    """(chunks,) picoseconds of the send out of each chunk, forward and backward: the fastest replica's border."""
    rank = np.arange(len(costs.contents)) % grid.pp
    # An inner tier may be the slower one (cards behind a host bridge on a fast network).
    crossed = border_tiers(grid.devices, grid.pp, grid.strides()["pp"], tiers)
    forward, backward = np.where(crossed, picoseconds(costs.border_s), np.iinfo(np.int64).max).min(axis=-1)
    return forward[rank], backward[rank]


def border_shares(costs: StepCosts, grid: Grid, tiers: tuple[Tier, ...]) -> FloatArray:
    """(2, chunks) of the link out of each chunk, forward and backward, that the rank's gathers and reductions fill while they run.

    0 where replicas cross different tiers there: the one that is ahead reduces, and sends beside it, later than it could.
    """
    crossed = border_tiers(grid.devices, grid.pp, grid.strides()["pp"], tiers)
    alike = crossed.sum(axis=-1).max() == 1
    share = np.clip(crossed @ costs.shares - _SHARE, 0.0, 1.0) * alike
    return np.ascontiguousarray(share[:, np.arange(len(costs.contents)) % grid.pp])


def path_seconds(problem: Problem, grid: Grid, costs: StepCosts, *, table: ActionTable | None = None) -> float:
    """Tier B1, in seconds: the longest path through the order to the last rank's end, then the slowest update, with jitter.

    Args:
        costs: of the grid, from the columns of the tables. table: the order, if it is not the grid's schedule's.
    """
    runtime = problem.runtime
    forward, backward = border_picoseconds(costs, grid, problem.cluster.tiers())
    order = table or order_table(grid, microbatches=microbatches_of(problem, grid))
    ready = walk(
        order.row_start,
        order.kind,
        order.chunk,
        order.microbatch,
        order.num_microbatches,
        durations(costs),
        forward,
        backward,
        picoseconds(costs.gather_s),
        picoseconds(costs.reduce_s),
        picoseconds(costs.tied_s),
        costs.pieces,
        not runtime.overlap_p2p,
        not runtime.overlap_grad_reduce,
        # The kernel counts shares of a device in whole numbers; from 2 on nothing is gained by running beside.
        min(max(costs.slowdown - 1.0 - _SHARE, 0.0), 1.0),
        border_shares(costs, grid, problem.cluster.tiers()),
    )
    assert ready.min() >= 0, "named schedules do not deadlock"
    # The simulation adds the same seconds in another order before it rounds them: at most a picosecond a task of the longest row.
    rounding = 2 * int(np.diff(order.row_start).max()) * grid.pp
    path = int(ready.max()) + int(picoseconds(costs.optimizer_s + costs.after_s).max()) - rounding
    return max(path, 0) / PICOSECONDS_PER_SECOND * jitter(problem, grid.devices)
