"""Lower bound (B1) of step time: the longest path through the order, without contention.

No Program is built: the tasks and dependencies are those of `lower_plan` for one class a
pipeline rank, walked row by row on an integer clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, Int8Array, Int32Array, IntArray, RecordArray
from shardwright.cost.bounds.seconds_to_event_simulation_picoseconds import (
    SHARE_ROUNDING,
    picoseconds,
)
from shardwright.cost.bounds.sends_between_pipeline_ranks import border_picoseconds, border_shares
from shardwright.cost.bounds.straggler_jitter import jitter_factor
from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.kernel_compilation import allocation_free
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import TABLES
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.units import PICOSECONDS_PER_SECOND

_F, _I, _W, _B = 0, 1, 2, 3
_CLOCK = 2
"""Picoseconds by which the event kernel may round the end of two tasks that share a device: they
are taken off the bound."""


_RANK: Final = np.dtype(
    [(name, np.int64) for name in ("at", "free", "ended", "pending", "sync_free", "gathers")]
)
"""A rank: its next action; when it may start that; when it ended the one before; picoseconds of its
collectives that were pending then, and of its gathers; when its stream of collectives is free."""
_CHUNK: Final = np.dtype(
    [(name, np.int64) for name in ("gather", "reduce", "tied", "pieces", "gathered", "left")]
)
"""A chunk: its picoseconds and the pieces of its reduction; when it is gathered; how many of its
actions with gradients are left."""


@allocation_free
def _walk(
    row_start: Int32Array,
    kind: Int8Array,
    chunk: Int32Array,
    microbatch: Int32Array,
    duration: IntArray,
    send: IntArray,
    share: FloatArray,
    ranks: RecordArray,
    chunks: RecordArray,
    arrived: IntArray,
    sent_until: IntArray,
    blocking: bool,
    reduces_last: bool,
    slower: float,
) -> None:
    """Fill in each rank's end instant in picoseconds (`free`; -1 = the order deadlocks).

    The compiled loop of `rank_end_picoseconds`.

    Args:
        send: (2, chunks) picoseconds, forward and backward.
        arrived: (2, chunks, microbatches) when inputs have arrived, -1 where they have not yet.
        sent_until: (2, ranks) when the links are free.
    """
    num_ranks, num_chunks = ranks.shape[0], chunks.shape[0]
    for c in range(num_chunks):
        rank = ranks[c % num_ranks]
        rank["sync_free"] += chunks[c]["gather"]
        chunks[c]["gathered"] = rank["sync_free"]
    # A rank's reductions stand on its stream in the order of its chunks' last backwards, which is
    # the order of its row.
    for a in range(row_start[num_ranks]):
        if kind[a] == _B or kind[a] == _W:
            chunks[chunk[a]]["left"] += 1
    for r in range(num_ranks):
        rank = ranks[r]
        rank["at"] = row_start[r]
        rank["gathers"] = rank["sync_free"]
        rank["pending"] = rank["sync_free"]
    progressing = True
    while progressing:
        progressing = False
        for r in range(num_ranks):
            rank = ranks[r]
            a, free, ended, pending = rank["at"], rank["free"], rank["ended"], rank["pending"]
            while a < row_start[r + 1]:
                c, m, k = int(chunk[a]), int(microbatch[a]), int(kind[a])
                of = chunks[c]
                closes = _W <= k <= _B
                there = arrived[0 if k == _F else 1, c, m] if k != _W else 0
                if there < 0:
                    break
                start = max(free, there)
                if k == _F and m == 0:
                    # What is still to gather may belong to later chunks only.
                    start = max(start, ended + pending - (rank["gathers"] - of["gathered"]))
                if closes:
                    of["left"] -= 1
                closing = closes and of["left"] == 0 and not reduces_last
                n = of["pieces"] if closing else 1
                pending = max(pending - (start - ended), 0)
                finish = start
                for piece in range(n):
                    part = duration[k, c] * (piece + 1) // n - duration[k, c] * piece // n
                    beside = min(pending, part)
                    pending -= beside
                    finish += part + max(np.int64(beside * slower) - _CLOCK, 0)
                    if closing:
                        part = of["reduce"] * (piece + 1) // n - of["reduce"] * piece // n
                        pending += part
                        rank["sync_free"] = max(rank["sync_free"], finish) + part
                ended = finish
                free = finish
                way = 0 if k == _F else 1
                after = c + 1 - 2 * way
                if k <= _B and k != _W and 0 <= after < num_chunks:
                    sent = finish
                    if num_ranks > 1:
                        sent = max(finish, sent_until[way, r])
                        beside = min(max(pending - (sent - finish), 0), send[way, c])
                        sent += send[way, c] + max(np.int64(beside * share[way, c]) - _CLOCK, 0)
                        sent_until[way, r] = sent
                        if blocking:
                            free = sent
                    arrived[way, after, m] = sent
                a += 1
                progressing = True
            rank["at"], rank["free"], rank["ended"], rank["pending"] = a, free, ended, pending
    if reduces_last:
        for c in range(num_chunks):
            rank = ranks[c % num_ranks]
            rank["sync_free"] = max(rank["sync_free"], rank["ended"]) + chunks[c]["reduce"]
    for r in range(num_ranks):
        rank = ranks[r]
        rank["sync_free"] = max(rank["sync_free"], rank["ended"] + rank["pending"])
    # Weights that both ends share are summed last, once both ends have computed their gradients.
    both = max(ranks[0]["ended"], ranks[(num_chunks - 1) % num_ranks]["ended"])
    for end in range(2):
        c = end * (num_chunks - 1)
        if chunks[c]["tied"] > 0 and (c == 0 or num_chunks > 1):
            rank = ranks[c % num_ranks]
            rank["sync_free"] = max(rank["sync_free"], both) + chunks[c]["tied"]
    for r in range(num_ranks):
        rank = ranks[r]
        rank["free"] = (
            max(rank["free"], rank["sync_free"]) if rank["at"] == row_start[r + 1] else -1
        )


def rank_end_picoseconds(
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
    """(ranks,) picosecond at which each rank has computed and reduced all; -1 if it deadlocks.

    -1 if the order deadlocks.

    Side by side compute and a collective each run at 1 / (1 + slower): an action is longer by
    slower x the rank's collectives that are pending beside it, at most by slower x itself. That
    bounds the simulation as long as slower <= 1: an action that starts later there finds less
    pending, but gains less by it than it is late. So does a send, which is longer by `share` x the
    time pending beside it: share[0] and share[1], (chunks,), of its link that the rank's
    collectives fill, at most 1, forward and backward.
    """
    ranks, chunks = np.zeros(len(row_start) - 1, dtype=_RANK), np.zeros(len(gather), dtype=_CHUNK)
    chunks["gather"], chunks["reduce"], chunks["tied"], chunks["pieces"] = (
        gather,
        reduce,
        tied,
        pieces,
    )
    arrived = np.full((2, len(gather), num_microbatches), -1, dtype=np.int64)
    arrived[0, 0] = arrived[1, -1] = 0
    send, sent_until = (
        np.array((send_forward, send_backward)),
        np.zeros((2, len(ranks)), dtype=np.int64),
    )
    rows = row_start, kind, chunk, microbatch
    _walk(
        *rows,
        duration,
        send,
        share,
        ranks,
        chunks,
        arrived,
        sent_until,
        blocking,
        reduces_last,
        slower,
    )
    return np.ascontiguousarray(ranks["free"])


def load_walk() -> None:
    """Compile or load the `rank_end_picoseconds` kernel by a call on a pipeline of one forward."""
    one_picosecond = np.zeros(1, dtype=np.int64)
    rows, kind, chunk = (
        np.array([0, 1], dtype=np.int32),
        np.zeros(1, dtype=np.int8),
        np.zeros(1, dtype=np.int32),
    )
    for column in (rows, kind, chunk):
        # Tables are read-only, which is part of a compiled kernel's signature.
        column.setflags(write=False)
    rank_end_picoseconds(
        rows,
        kind,
        chunk,
        chunk,
        1,
        np.zeros((5, 1), dtype=np.int64),
        one_picosecond,
        one_picosecond,
        one_picosecond,
        one_picosecond,
        one_picosecond,
        one_picosecond + 1,
        False,
        False,
        0.0,
        np.zeros((2, 1)),
    )


def action_picoseconds(costs: StepCosts) -> IntArray:
    """(5, chunks) picoseconds of each chunk's actions F, I, W and B (= I + W); the row of R is 0.

    I and W add up to B.
    """
    chunks = len(costs.contents)
    picoseconds_of_kinds = np.zeros((5, chunks), dtype=np.int64)
    picoseconds_of_kinds[_F] = picoseconds(costs.forward_s)
    picoseconds_of_kinds[_B] = picoseconds(costs.backward_s)
    picoseconds_of_kinds[_W] = picoseconds(costs.weight_s)
    picoseconds_of_kinds[_I] = picoseconds_of_kinds[_B] - picoseconds_of_kinds[_W]
    return picoseconds_of_kinds


def order_table(grid: Grid, *, microbatches: int) -> ActionTable:
    """The action table of a grid's pipeline schedule with `microbatches` a replica."""
    return schedule_table(
        grid.schedule, num_ranks=grid.pp, chunks_per_rank=grid.vpp, num_microbatches=microbatches
    )


def microbatches_of(problem: Problem, grid: Grid) -> int:
    """Number of microbatches that one replica runs in a step, over both lanes."""
    return problem.job.global_batch // (grid.dp * grid.microbatch)


@lru_cache(maxsize=64)
def layers_share_parameters(model: Same[Model]) -> bool:
    """True if layers share parameters beside embedding tables, such as relative position biases.

    Their chunks sum gradients once all of them are complete.
    """
    return any(
        p.tied_to and p.klass not in TABLES
        for b in model.value.blocks
        for o in b.operators
        for p in o.parameters
    )


def path_seconds(
    problem: Problem,
    grid: Grid,
    costs: StepCosts,
    *,
    table: ActionTable | None = None,
    crossed: BoolArray | None = None,
) -> float:
    """Lower bound (B1) of the step in seconds: longest path, slowest update and jitter.

    The path goes through the order of actions to the last rank's end.

    Args:
        costs: of the grid, from the columns of the tables, or of one of its lines.
        table: the order, if it is not the grid's schedule's.
        crossed: tiers that the line sends across; None = the fastest of all devices counts.
    """
    runtime = problem.runtime
    forward, backward = border_picoseconds(costs, grid, problem.cluster.tiers(), crossed=crossed)
    order = table or order_table(grid, microbatches=microbatches_of(problem, grid))
    # A reduction that waits for other chunks' gradients runs beside less than one that begins
    # behind its own chunk's last backward.
    waits_for_other_chunks = grid.pp > 1 and layers_share_parameters(Same(problem.model))
    ready = rank_end_picoseconds(
        order.row_start,
        order.kind,
        order.chunk,
        order.microbatch,
        order.num_microbatches,
        action_picoseconds(costs),
        forward,
        backward,
        picoseconds(costs.gather_s),
        picoseconds(costs.reduce_s),
        picoseconds(costs.tied_s),
        costs.pieces,
        runtime.blocks_sends(grid.vpp),
        not runtime.overlap_grad_reduce,
        # The kernel counts shares of a device in whole numbers; from 2 on nothing is gained by
        # running beside.
        0.0
        if waits_for_other_chunks
        else min(max(costs.slowdown - 1.0 - SHARE_ROUNDING, 0.0), 1.0),
        border_shares(costs, grid, problem.cluster.tiers()) * (not waits_for_other_chunks),
    )
    assert ready.min() >= 0, "named schedules do not deadlock"
    # The simulation adds the same seconds in another order before it rounds them: at most a
    # picosecond a task of the longest row.
    rounding = 2 * int(np.diff(order.row_start).max()) * grid.pp
    path = int(ready.max()) + int(picoseconds(costs.optimizer_s + costs.after_s).max()) - rounding
    return max(path, 0) / PICOSECONDS_PER_SECOND * jitter_factor(problem, grid.devices)
