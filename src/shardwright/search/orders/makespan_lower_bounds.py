"""Lower bounds on the makespan of any order of a pipeline's actions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.orders.order_problem import OrderProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBounds:
    """Lower bounds on the makespan, in the problem's unit of time.

    Args:
        classical: max over ranks of head + work + tail, and the critical path of one microbatch;
            holds for any memory.
        memory: with the work that fits in a rank's memory before its first gradient comes back, or
            after its last forward.
    """

    classical: int
    memory: int

    @property
    def best(self) -> int:
        """The larger of both lower bounds on the makespan, in the problem's unit of time."""
        return max(self.classical, self.memory)


def order_bounds(problem: OrderProblem, *, ranks: Sequence[int] | None = None) -> OrderBounds:
    """Lower bounds on the makespan of any order, with and without the memory limits.

    With h the time before F of a chunk can start, t the time from F's start of a chunk to the start
    of its I when nothing waits, e the time that must follow the end of a chunk's I, and m
    microbatches, for every rank:

    classical: min h + sum m (F + I + W); min h + sum m (F + I) + min e; and h + t + I + e of every
    chunk. memory: before the first I can start, at min (h + t), the rank does at most the forwards
    whose activations fit; the rest of its work follows. After its last F the rank has at most the
    backwards of what fits, while the chain of that microbatch still has to come back. Both waits
    add up where not all forwards fit before the first I. And the kept bytes times the least time
    that they are kept, held (t + I) + stash W, are at most the limit times the makespan.

    Args:
        ranks: ranks whose work is bounded, beside one microbatch's critical path; None = all ranks.
    """
    head, back, end = _unblocked_times(problem)
    m = problem.microbatches
    owner = problem.owner.reshape(-1)
    forward, inputs, weight, held, stash = (
        array.reshape(-1)
        for array in (problem.forward, problem.input, problem.weight, problem.held, problem.stash)
    )
    classical = int((head + back + inputs + end).max())
    memory = classical
    for rank in range(problem.ranks) if ranks is None else ranks:
        limit = int(problem.limit[rank])
        mine = np.flatnonzero(owner == rank)
        early, tail = int(head[mine].min()), int(end[mine].min())
        chain_work, work = (
            int(m * (forward + inputs)[mine].sum()),
            int(m * (forward + inputs + weight)[mine].sum()),
        )
        classical = max(classical, early + work, early + chain_work + tail)
        returns = int((head + back)[mine].min())
        filled = min(_most_time_in(forward[mine], held[mine], limit, m), returns - early)
        memory = max(memory, returns + work - filled, returns + chain_work - filled + tail)
        left = _most_time_in(inputs[mine], held[mine], limit, m) + _most_time_in(
            weight[mine], stash[mine], limit, m
        )
        after = int((back - forward + inputs + end)[mine].min())
        memory = max(memory, early + work - left + after)
        if m * int(held[mine].sum()) > limit:
            # Some forward comes after the first I, so the idle times before the one and after the
            # other add up.
            memory = max(memory, returns + work - filled + max(after - left, 0))
        volume = m * sum(
            h * t + s * w
            for h, t, s, w in zip(
                *(a[mine].tolist() for a in (held, back + inputs, stash, weight)), strict=True
            )
        )
        memory = max(memory, early + -(-volume // limit) if limit else 0)
    return OrderBounds(classical=classical, memory=max(classical, memory))


def _unblocked_times(problem: OrderProblem) -> tuple[IntArray, IntArray, IntArray]:
    """Times of each chunk if nothing waits: before F, from F's to I's start, from I's end on."""
    head, back, end = (np.zeros_like(problem.forward) for _ in range(3))
    for c in range(1, problem.chunks):
        head[:, c] = head[:, c - 1] + problem.forward[:, c - 1] + problem.send_forward[:, c - 1]
    back[:, -1] = problem.forward[:, -1]
    for c in range(problem.chunks - 2, -1, -1):
        down, up = (
            problem.forward[:, c] + problem.send_forward[:, c],
            problem.input[:, c + 1] + problem.send_backward[:, c + 1],
        )
        back[:, c] = down + back[:, c + 1] + up
    end[:, 0] = problem.weight[:, 0]
    for c in range(1, problem.chunks):
        end[:, c] = np.maximum(
            problem.weight[:, c],
            problem.send_backward[:, c] + problem.input[:, c - 1] + end[:, c - 1],
        )
    return head.reshape(-1), back.reshape(-1), end.reshape(-1)


def round_trip_times(problem: OrderProblem) -> IntArray:
    """(lanes * chunks,) time from the start of a chunk's F to the end of its I if nothing waits."""
    return _unblocked_times(problem)[1] + problem.input.reshape(-1)


def _most_time_in(time: IntArray, size: IntArray, limit: int, microbatches: int) -> int:
    """Upper bound on the time of actions whose bytes (`size`) together fit in `limit`.

    `microbatches` actions of each chunk, fractions allowed.
    """
    total, room = 0, limit
    for action_time, action_size in sorted(
        zip(time.tolist(), size.tolist(), strict=True),
        key=lambda pair: pair[0] / pair[1] if pair[1] else float("inf"),
    )[::-1]:
        count = microbatches if action_size == 0 else min(microbatches, room // action_size)
        total += action_time * count
        room -= action_size * count
        if count < microbatches:
            return int(total + -(-action_time * room // action_size))
    return int(total)
