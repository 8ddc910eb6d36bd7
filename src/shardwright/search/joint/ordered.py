"""The order of a joint plan's actions found, under what each rank's memory leaves for activations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardwright.cost.critical_path import border_picoseconds
from shardwright.cost.member import StepCosts, reserve_factor
from shardwright.errors import InfeasibleError
from shardwright.program.fold import fold
from shardwright.program.problem import Problem
from shardwright.search.joint.frames import Framed
from shardwright.search.joint.member import JointPlan, compose
from shardwright.search.orders.bounds import order_bounds
from shardwright.search.orders.find import find_order
from shardwright.search.orders.problem import LARGEST, OrderProblem
from shardwright.simulator.evaluate import jitter

IntArray = npt.NDArray[np.int64]

SECOND = 10**9
"""Units of time of an order problem in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """A plan with a found order. Args: estimate_s, bound_s: of the step, what is reduced behind the last backwards left out; no order of
    this plan's ranks has a smaller bound.
    """

    plan: JointPlan
    estimate_s: float
    bound_s: float


def activation_room(problem: Problem, costs: StepCosts, *, capacity: int) -> IntArray:
    """(ranks,) bytes of saved activations that fit beside everything else: the inverse of `cost.terms.reserved_bytes`."""
    outside = sum((values for _, values in costs.outside_bytes), np.zeros_like(costs.logits_bytes))
    static = sum((values for _, values in costs.static_bytes), np.zeros_like(costs.logits_bytes))
    most, brief = capacity - outside, costs.logits_bytes + costs.transient_bytes
    allocated = np.minimum(np.floor(most / reserve_factor(problem)), most + brief - costs.blocks_bytes)
    result: IntArray = np.clip(allocated - static - brief, 0, LARGEST).astype(np.int64)
    return result


def order_problem(problem: Problem, plan: JointPlan, costs: StepCosts, *, capacity: int) -> OrderProblem:
    """Chunk c on rank c mod p, in nanoseconds and bytes.

    A chunk that recomputes has whole backwards: what its weight gradients read is made again just before. What is kept stays until the
    weight gradients are done. A send that blocks kernels is part of the action before it.

    Raises:
        InfeasibleError: a rank cannot keep one microbatch.
    """
    p, number = plan.ranks, len(plan.chunks)
    forward_send, backward_send = (
        np.rint(times * (SECOND / 1e12)).astype(np.int64)
        for times in border_picoseconds(costs, fold(plan.grids[0], problem.cluster.tiers()), problem.cluster.tiers())
    )
    forward_send[-1], backward_send[0] = 0, 0
    again = np.array([chunk.redone > 0 or chunk.selective for chunk in plan.chunks])
    weight = np.where(again, 0.0, costs.weight_s)
    forward, inputs = (np.rint(time * SECOND).astype(np.int64) for time in (costs.forward_s, costs.backward_s - weight))
    if not problem.runtime.overlap_p2p:
        forward, inputs = forward + forward_send, inputs + backward_send
        forward_send, backward_send = np.zeros_like(forward_send), np.zeros_like(backward_send)
    return OrderProblem(
        owner=(np.arange(number) % p)[None],
        microbatches=plan.microbatches,
        forward=forward[None],
        input=inputs[None],
        weight=np.rint(weight * SECOND).astype(np.int64)[None],
        send_forward=forward_send[None],
        send_backward=backward_send[None],
        held=costs.saved_bytes[None],
        stash=costs.saved_bytes[None],
        limit=activation_room(problem, costs, capacity=capacity),
    )


def ordered(problem: Problem, framed: Framed, plan: JointPlan, *, capacity: int, effort: float) -> Ordered | None:
    """`plan` with the best order found for it; None if no order of it fits.

    Args:
        effort: as in `search.orders.find.find_order`.
    """
    costs = compose(problem, framed, plan)
    try:
        asked = order_problem(problem, plan, costs, capacity=capacity)
    except InfeasibleError:
        return None
    rest, factor = float((costs.optimizer_s + costs.after_s).max()), jitter(problem, plan.grids[0].devices)
    bound = (order_bounds(asked).best / SECOND + rest) * factor
    found = find_order(asked, effort=effort)
    return Ordered(plan=replace(plan, table=found.table), estimate_s=(found.makespan / SECOND + rest) * factor, bound_s=bound)
