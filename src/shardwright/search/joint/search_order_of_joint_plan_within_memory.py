"""Search the order of a joint plan's actions within each rank's activation memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.sends_between_pipeline_ranks import (
    border_tiers,
    fastest_tier_picoseconds,
)
from shardwright.cost.bounds.straggler_jitter import jitter_factor
from shardwright.cost.step.shared_scalar_cost_formulas import activation_room
from shardwright.cost.step.strategy_rank_bytes import reserve_factor
from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.schedules.action_order_arrays import ActionTable, I, W
from shardwright.search.joint.host_memory_share import host_share
from shardwright.search.joint.joint_plan_and_step_costs import JointPlan, joint_step_costs
from shardwright.search.joint.joint_space import ShapedSpace
from shardwright.search.orders.find_order import find_order, make_found_order
from shardwright.search.orders.found_order import codes_of_table, evaluate_order
from shardwright.search.orders.makespan_lower_bounds import order_bounds
from shardwright.search.orders.named_schedules_with_same_placement import named_tables
from shardwright.search.orders.order_makespan_and_peak_memory import levels, walk
from shardwright.search.orders.order_problem import LARGEST, OrderProblem, problem_arrays

UNITS_PER_SECOND = 10**9
"""Time units of an order problem in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPlan:
    """A joint plan with the action order found for it.

    Args:
        estimate_s: estimated seconds of a step, without contention.
        bound_s: lower bound in seconds over all orders of the plan's layer cut.
    """

    plan: JointPlan
    estimate_s: float
    bound_s: float = 0.0


def activation_room_of_ranks(problem: Problem, costs: StepCosts, *, capacity: int) -> IntArray:
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
    """Order problem of a plan, in nanoseconds and bytes; InfeasibleError if a rank has no room.

    A chunk that recomputes has whole backwards: the inputs of its weight gradients are recomputed
    just before. Saved activations stay until the weight gradients are done. A send that blocks
    kernels is part of the action before it.

    Raises:
        InfeasibleError: a rank cannot keep one microbatch.
    """
    held, limit = _held_and_limit_bytes(problem, plan, costs, capacity=capacity)
    forward_send, backward_send = _send_times(problem, plan, costs)
    again = np.array([chunk.redone + chunk.selective > 0 for chunk in plan.chunks])
    weight = np.where(again, 0.0, costs.weight_s)
    forward, inputs = (
        np.rint(time * UNITS_PER_SECOND).astype(np.int64)
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
        weight=np.rint(weight * UNITS_PER_SECOND).astype(np.int64)[None],
        send_forward=forward_send[None],
        send_backward=backward_send[None],
        held=held[None],
        stash=held[None],
        limit=limit,
    )


def _held_and_limit_bytes(
    problem: Problem, plan: JointPlan, costs: StepCosts, *, capacity: int
) -> tuple[IntArray, IntArray]:
    """(chunks,) bytes that a microbatch holds, (ranks,) bytes that fit, by device and host memory.

    (chunks,) and (ranks,), limited by device memory and by host memory. A rank of one chunk keeps
    both for the same time, so host memory for n microbatches is a limit of n times the device bytes
    of one microbatch. Left out: ranks of one node share its host memory, which the simulation of
    the plan checks.
    """
    held, room = costs.saved_bytes, activation_room_of_ranks(problem, costs, capacity=capacity)
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


def _send_times(problem: Problem, plan: JointPlan, costs: StepCosts) -> tuple[IntArray, IntArray]:
    """(chunks,) nanoseconds of the activation send to the next, gradient send to the previous.

    0 for a send on one rank.
    """
    grid, owners = plan.grids[0], np.array(plan.owners)
    # Tiers of the border after each rank, and of the border before it.
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
    units = UNITS_PER_SECOND / 1e12
    return np.rint(forward * units).astype(np.int64), np.rint(backward * units).astype(np.int64)


def _fitting_problem(
    problem: Problem, plan: JointPlan, costs: StepCosts, *, capacity: int
) -> OrderProblem | None:
    """The order problem of a plan; None if a rank cannot keep one microbatch."""
    try:
        return order_problem(problem, plan, costs, capacity=capacity)
    except InfeasibleError:
        return None


def order_bound(problem: Problem, shaped: ShapedSpace, plan: JointPlan, *, capacity: int) -> float:
    """Lower bound in step seconds without reductions, over the orders that fit; inf = none fits.

    Gradient reductions are left out.
    """
    costs = joint_step_costs(problem, shaped, plan)
    order_question = _fitting_problem(problem, plan, costs, capacity=capacity)
    if order_question is None:
        return inf
    return _step_seconds(problem, plan, costs, order_bounds(order_question).best)


def _step_seconds(problem: Problem, plan: JointPlan, costs: StepCosts, makespan: int) -> float:
    """Step seconds of a makespan in nanoseconds: with the optimizer update, times jitter."""
    rest = float((costs.optimizer_s + costs.after_s).max())
    return (makespan / UNITS_PER_SECOND + rest) * jitter_factor(problem, plan.grids[0].devices)


def with_found_order(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, *, capacity: int, effort: float
) -> OrderedPlan | None:
    """The plan with the fastest order that a search finds; None if no order fits in memory.

    Args:
        effort: as in `search.orders.find_order.find_order`.
    """
    order_question = _fitting_problem(
        problem, plan, joint_step_costs(problem, shaped, plan), capacity=capacity
    )
    if order_question is None:
        return None
    return with_order(
        problem, shaped, plan, find_order(order_question, effort=effort).table, capacity=capacity
    )


def with_order(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, table: ActionTable, *, capacity: int
) -> OrderedPlan | None:
    """The plan with `table`, or with moved weight gradients if faster; None if neither fits memory.

    Weight gradients move to where the gradient reductions end first.
    """
    costs = joint_step_costs(problem, shaped, plan)
    order_question = _fitting_problem(problem, plan, costs, capacity=capacity)
    if order_question is None:
        return None
    columns, candidates = problem_arrays(order_question)[0], []
    for turned in (table, weight_gradients_by_chunk(table)):
        codes = codes_of_table(order_question, turned)
        if (levels(columns, *codes) <= order_question.limit).all():
            done = _reductions_end(
                problem, plan, costs, _action_ends(order_question, columns, *codes)
            )
            candidates.append(
                OrderedPlan(
                    plan=replace(plan, table=turned),
                    estimate_s=_step_seconds(problem, plan, costs, done),
                )
            )
    return min(candidates, key=lambda candidate: candidate.estimate_s, default=None)


def with_named_orders(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, *, capacity: int
) -> Iterator[OrderedPlan]:
    """Yield the plan under each named schedule of the same chunk placement that fits in memory.

    No estimate is above the longest path. Left out: schedules that overlap pairs of actions, which
    the joint space does not have.
    """
    costs = joint_step_costs(problem, shaped, plan)
    order_question = _fitting_problem(problem, plan, costs, capacity=capacity)
    if order_question is None:
        return
    for name, table in named_tables(order_question):
        order = evaluate_order(
            order_question,
            problem_arrays(order_question)[0],
            *codes_of_table(order_question, table),
            method=name,
        )
        if table.overlapped is None and (order.peak <= order_question.limit).all():
            # Whole backwards stay whole; a chunk that recomputes has no others.
            splits_backward = (order_question.weight == 0).any() and (table.kind == W).any()
            kept_table = (
                make_found_order(order_question, order, lower_bound=order.makespan).table
                if splits_backward
                else table
            )
            yield OrderedPlan(
                plan=replace(plan, table=kept_table),
                estimate_s=_step_seconds(problem, plan, costs, order.makespan),
            )


def weight_gradients_by_chunk(table: ActionTable) -> ActionTable:
    """Reassign each weight-gradient slot of a rank to its deepest chunk with one waiting.

    So a rank completes its chunks one after another, and the reductions of the first chunks overlap
    the rest of the others.
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


def _action_ends(
    problem: OrderProblem, columns: IntArray, codes: IntArray, row_start: IntArray
) -> IntArray:
    """(kinds, chunks, microbatches) end times of an order's actions, in the problem's unit."""
    kinds, m, p = 3 * columns.shape[1], problem.microbatches, problem.ranks
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


def _reductions_end(
    problem: Problem, plan: JointPlan, costs: StepCosts, action_ends: IntArray
) -> int:
    """Nanoseconds until the last rank has reduced its gradients, with the gathers at the start.

    Args:
        action_ends: (kinds, chunks, microbatches) end times of the actions.
    """
    owners, last = np.array(plan.owners), int(action_ends.max())
    closes = action_ends[1:].max(axis=(0, 2))
    reduce, begin = costs.reduce_s * UNITS_PER_SECOND, float(costs.gather_s[0]) * UNITS_PER_SECOND
    for rank in range(plan.ranks):
        mine = np.flatnonzero(owners == rank)
        free = 0.0
        for c in mine[np.argsort(closes[mine], kind="stable")]:
            closing = (
                costs.weight_s[c] * UNITS_PER_SECOND if problem.runtime.overlap_grad_reduce else 0.0
            )
            free = max(
                max(free, closes[c] - closing) + reduce[c], closes[c] + reduce[c] / costs.pieces[c]
            )
        last = max(last, int(free))
    return int(last + begin)
