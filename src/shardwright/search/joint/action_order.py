"""Order search for a joint plan: the order of its actions under the memory that each rank has
for activations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.longest_path import (
    border_tiers,
    fastest_tier_picoseconds,
    jitter_factor,
)
from shardwright.cost.step.grid_bytes import reserve_factor
from shardwright.cost.step.grid_seconds import StepCosts
from shardwright.cost.step.scalar_terms import activation_room
from shardwright.errors import InfeasibleError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.schedules.action_table import ActionTable, I, W
from shardwright.search.joint.host_share import host_share
from shardwright.search.joint.joint_member import JointPlan, compose
from shardwright.search.joint.pipeline_shapes import ShapedSpace
from shardwright.search.orders.find_order import find_order, found_order
from shardwright.search.orders.found_order import codes_of, weigh
from shardwright.search.orders.named_schedules import named_tables
from shardwright.search.orders.order_bounds import order_bounds
from shardwright.search.orders.order_longest_path import levels, walk
from shardwright.search.orders.order_problem import LARGEST, OrderProblem, flat

SECOND = 10**9
"""Units of time of an order problem in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """A plan with a found order. Args: estimate_s: of the step, without contention. bound_s: no
    order of its cut takes less.
    """

    plan: JointPlan
    estimate_s: float
    bound_s: float = 0.0


def rank_room(problem: Problem, costs: StepCosts, *, capacity: int) -> IntArray:
    """(ranks,) bytes of saved activations that fit on a device beside everything else."""
    outside = sum((values for _, values in costs.outside_bytes), np.zeros_like(costs.logits_bytes))
    static = sum((values for _, values in costs.static_bytes), np.zeros_like(costs.logits_bytes))
    factor = reserve_factor(problem)
    room = activation_room(
        capacity - outside,
        static,
        costs.transient_bytes,
        costs.logits_bytes,
        costs.blocks_bytes,
        factor,
    )
    result: IntArray = np.clip(np.floor(room), 0, LARGEST).astype(np.int64)
    return result


def order_problem(
    problem: Problem, plan: JointPlan, costs: StepCosts, *, capacity: int
) -> OrderProblem:
    """The order problem of a plan: its chunks on their ranks, in nanoseconds and bytes.

    A chunk that recomputes has whole backwards: what its weight gradients read is made again just
    before. What is kept stays until the weight gradients are done. A send that blocks kernels is
    part of the action before it.

    Raises:
        InfeasibleError: a rank cannot keep one microbatch.
    """
    held, limit = _held(problem, plan, costs, capacity=capacity)
    forward_send, backward_send = _sends(problem, plan, costs)
    again = np.array([chunk.redone + chunk.selective > 0 for chunk in plan.chunks])
    weight = np.where(again, 0.0, costs.weight_s)
    forward, inputs = (
        np.rint(time * SECOND).astype(np.int64)
        for time in (costs.forward_s, costs.backward_s - weight)
    )
    if problem.runtime.blocks_sends(len(plan.chunks) // plan.ranks):
        forward, inputs = forward + forward_send, inputs + backward_send
        forward_send, backward_send = np.zeros_like(forward_send), np.zeros_like(backward_send)
    return OrderProblem(
        owner=np.array(plan.owners, dtype=np.int64)[None],
        microbatches=plan.microbatches,
        forward=forward[None],
        input=inputs[None],
        weight=np.rint(weight * SECOND).astype(np.int64)[None],
        send_forward=forward_send[None],
        send_backward=backward_send[None],
        held=held[None],
        stash=held[None],
        limit=limit,
    )


def _held(
    problem: Problem, plan: JointPlan, costs: StepCosts, *, capacity: int
) -> tuple[IntArray, IntArray]:
    """(chunks,) bytes that one microbatch keeps, and (ranks,) bytes that fit, limited by device
    memory and by host memory.

    A rank of one chunk keeps both for the same time, so host memory for n microbatches is a limit
    of n times what one keeps on the device. Leaves out that ranks of one node share its host
    memory, which the simulation of the plan checks.
    """
    held, room = costs.saved_bytes, rank_room(problem, costs, capacity=capacity)
    host = costs.host_saved_bytes
    grid = plan.grids[0]
    share = host_share(
        problem.cluster, devices=grid.devices, ranks=grid.pp, stride=grid.strides()["pp"]
    )
    if not host.any() or len(plan.chunks) > plan.ranks or share.room == inf:
        return held, room
    # A chunk whose activations all wait in host memory is counted by their bytes there.
    counted = np.where(held > 0, held, host)
    most = (
        np.minimum(share.room // np.maximum(host, 1), plan.microbatches).astype(np.int64) * counted
    )
    return counted, np.where(host == 0, room, np.where(held > 0, np.minimum(room, most), most))


def _sends(problem: Problem, plan: JointPlan, costs: StepCosts) -> tuple[IntArray, IntArray]:
    """(chunks,) nanoseconds of the send from each chunk to the next, and of the gradient to the
    one before; 0 on one rank.
    """
    grid, owners = plan.grids[0], np.array(plan.owners)
    # Across the border behind a rank, and across the one before it.
    crossed = border_tiers(grid.devices, grid.pp, grid.strides()["pp"], problem.cluster.tiers())
    step, sent = np.diff(owners), costs.border_s[:-1]
    forward, backward = np.zeros(len(owners)), np.zeros(len(owners))
    forward[:-1] = np.where(
        step == 0,
        0,
        fastest_tier_picoseconds(sent, crossed[np.where(step == -1, 1, 0), owners[:-1]]),
    )
    backward[1:] = np.where(
        step == 0,
        0,
        fastest_tier_picoseconds(sent, crossed[np.where(step == -1, 0, 1), owners[1:]]),
    )
    units = SECOND / 1e12
    return np.rint(forward * units).astype(np.int64), np.rint(backward * units).astype(np.int64)


def _fitting_problem(
    problem: Problem, plan: JointPlan, costs: StepCosts, *, capacity: int
) -> OrderProblem | None:
    """`order_problem`; None if a rank cannot keep one microbatch."""
    try:
        return order_problem(problem, plan, costs, capacity=capacity)
    except InfeasibleError:
        return None


def order_bound(problem: Problem, shaped: ShapedSpace, plan: JointPlan, *, capacity: int) -> float:
    """Lower bound of the step in seconds over all orders of `plan` that fit in memory, without
    reductions; inf if none fits.
    """
    costs = compose(problem, shaped, plan)
    order_question = _fitting_problem(problem, plan, costs, capacity=capacity)
    if order_question is None:
        return inf
    return _step_seconds(problem, plan, costs, order_bounds(order_question).best)


def _step_seconds(problem: Problem, plan: JointPlan, costs: StepCosts, makespan: int) -> float:
    rest = float((costs.optimizer_s + costs.after_s).max())
    return (makespan / SECOND + rest) * jitter_factor(problem, plan.grids[0].devices)


def ordered(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, *, capacity: int, effort: float
) -> Ordered | None:
    """`plan` with the best order found; None if no order fits in memory.

    Args:
        effort: as in `search.orders.find.find_order`.
    """
    order_question = _fitting_problem(
        problem, plan, compose(problem, shaped, plan), capacity=capacity
    )
    if order_question is None:
        return None
    return in_order(
        problem, shaped, plan, find_order(order_question, effort=effort).table, capacity=capacity
    )


def in_order(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, table: ActionTable, *, capacity: int
) -> Ordered | None:
    """`plan` with the order of `table`, weight gradients moved to where reductions end first;
    None if it does not fit in memory.
    """
    costs = compose(problem, shaped, plan)
    order_question = _fitting_problem(problem, plan, costs, capacity=capacity)
    if order_question is None:
        return None
    columns, candidates = flat(order_question)[0], []
    for turned in (table, closed_in_turn(table)):
        codes = codes_of(order_question, turned)
        if (levels(columns, *codes) <= order_question.limit).all():
            done = _reduced(problem, plan, costs, _ends(order_question, columns, *codes))
            candidates.append(
                Ordered(
                    plan=replace(plan, table=turned),
                    estimate_s=_step_seconds(problem, plan, costs, done),
                )
            )
    return min(candidates, key=lambda candidate: candidate.estimate_s, default=None)


def named_orders(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, *, capacity: int
) -> Iterator[Ordered]:
    """`plan` under each named schedule that has its chunks on the same ranks and fits in memory; no
    estimate is above the longest path.

    Left out: schedules that overlap pairs of actions, which the joint space has not.
    """
    costs = compose(problem, shaped, plan)
    order_question = _fitting_problem(problem, plan, costs, capacity=capacity)
    if order_question is None:
        return
    for name, table in named_tables(order_question):
        order = weigh(
            order_question, flat(order_question)[0], *codes_of(order_question, table), method=name
        )
        if table.overlapped is None and (order.peak <= order_question.limit).all():
            # Whole backwards stay whole; a chunk that recomputes has no others.
            splits_backward = (order_question.weight == 0).any() and (table.kind == W).any()
            kept_table = (
                found_order(order_question, order, lower_bound=order.makespan).table
                if splits_backward
                else table
            )
            yield Ordered(
                plan=replace(plan, table=kept_table),
                estimate_s=_step_seconds(problem, plan, costs, order.makespan),
            )


def closed_in_turn(table: ActionTable) -> ActionTable:
    """`table` with each weight gradient given to the deepest chunk of its rank that still waits for
    one.

    So a rank's chunks are done one after another, and the reductions of the first run beside what
    is left of the others.
    """
    kind, chunk, microbatch = table.kind, table.chunk.copy(), table.microbatch.copy()
    for rank in range(table.num_ranks):
        waiting: dict[int, deque[int]] = {}
        for place in range(int(table.row_start[rank]), int(table.row_start[rank + 1])):
            if kind[place] == I:
                waiting.setdefault(int(chunk[place]), deque()).append(int(microbatch[place]))
            elif kind[place] == W:
                deepest = max(c for c, left in waiting.items() if left)
                chunk[place], microbatch[place] = deepest, waiting[deepest].popleft()
    return replace(table, chunk=chunk, microbatch=microbatch)


def _ends(asked: OrderProblem, columns: IntArray, codes: IntArray, row_start: IntArray) -> IntArray:
    """(kinds, chunks, microbatches) times at which the actions of an order end."""
    kinds, m, p = 3 * columns.shape[1], asked.microbatches, asked.ranks
    end = np.zeros((kinds, m), np.int64)
    walk(
        columns,
        codes,
        row_start,
        m,
        end,
        np.zeros(p, np.int64),
        np.zeros(p, np.int64),
        np.zeros(kinds, np.int64),
    )
    return end.reshape(3, -1, m)


def _reduced(problem: Problem, plan: JointPlan, costs: StepCosts, ends: IntArray) -> int:
    """Nanoseconds until the last rank has reduced its gradients, including the gathers before the
    first forward.

    Args:
        ends: (kinds, chunks, microbatches) of actions.
    """
    owners, last = np.array(plan.owners), int(ends.max())
    closes = ends[1:].max(axis=(0, 2))
    reduce, begin = costs.reduce_s * SECOND, float(costs.gather_s[0]) * SECOND
    for rank in range(plan.ranks):
        mine = np.flatnonzero(owners == rank)
        free = 0.0
        for c in mine[np.argsort(closes[mine], kind="stable")]:
            closing = costs.weight_s[c] * SECOND if problem.runtime.overlap_grad_reduce else 0.0
            free = max(
                max(free, closes[c] - closing) + reduce[c], closes[c] + reduce[c] / costs.pieces[c]
            )
        last = max(last, int(free))
    return int(last + begin)
