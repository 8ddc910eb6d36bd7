"""What a joint plan takes: the longest path of its order, its exact peak, and its simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost.critical_path import critical_path
from shardwright.cost.member import StepCosts
from shardwright.program.fold import fold
from shardwright.program.lower import order_table
from shardwright.program.problem import Problem
from shardwright.schedules.table import ActionTable
from shardwright.search.joint.frames import Framed
from shardwright.search.joint.member import JointPlan, compose
from shardwright.search.joint.written import written
from shardwright.simulator.breakdown import Simulated
from shardwright.simulator.evaluate import jitter, links_of, simulate_grid
from shardwright.simulator.memory import reserved_bytes
from shardwright.simulator.plans import PlanResult, simulate_plan
from shardwright.strategy.grid import Grid

GENERAL = 1.0 - 2e-5
"""Least ratio of the simulation of a grid written as a general plan to that of the grid: their clocks round differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A plan with its step.

    Args:
        seconds: of a step. need: (ranks,) bytes at the peak; of a simulated general plan, (classes of devices,).
        simulated: of a plan that is a grid but for its cut; general: of any other; both None if `seconds` is of the longest path.
    """

    plan: JointPlan
    costs: StepCosts
    seconds: float
    need: tuple[int, ...]
    simulated: Simulated | None = None
    general: PlanResult | None = None


def order_of(plan: JointPlan) -> ActionTable:
    """The action table of the plan."""
    return plan.table if plan.table is not None else order_table(plan.grids[0], microbatches=plan.microbatches)


def path_score(problem: Problem, framed: Framed, plan: JointPlan) -> Scored:
    """The longest path through the plan's order (B1), and the exact peak of each rank.

    Of a general plan a lower bound: borders between its splits take the least they can, and states of tied weights are not updated.
    """
    costs = compose(problem, framed, plan)
    need = reserved_bytes(problem, order_of(plan), costs)
    timed = _untied(problem, framed, plan, costs) if plan.is_general else costs
    seconds = min(_path(problem, plan, grid, timed) for grid in dict.fromkeys(plan.grids))
    return Scored(plan=plan, costs=costs, seconds=seconds * (GENERAL if plan.is_general else 1.0), need=tuple(np.asarray(need).tolist()))


def _path(problem: Problem, plan: JointPlan, grid: Grid, costs: StepCosts) -> float:
    tiers = problem.cluster.tiers()
    seconds = critical_path(
        costs,
        table=order_of(plan),
        classes=fold(grid, tiers),
        tiers=tiers,
        blocking=not problem.runtime.overlap_p2p,
        reduces_last=not problem.runtime.overlap_grad_reduce,
        slowdown=links_of(problem, grid).slowdown,
    )
    return seconds * jitter(problem, grid.devices)


def _untied(problem: Problem, framed: Framed, plan: JointPlan, costs: StepCosts) -> StepCosts:
    """The step without the update and the exchange of the ends' ranks, where those hold tied weights."""
    rows = framed.prepared.mesh_row[list(plan.outers)]
    if not framed.costs.tied[rows].any():
        return costs
    optimizer = costs.optimizer_s.copy()
    optimizer[[0, -1]] = 0.0
    return replace(costs, optimizer_s=optimizer)


def evaluate(problem: Problem, scored: Scored) -> Scored:
    """The simulation (S) of a scored plan: on the grid's path where it is a grid but for its cut, else as the general plan that it is."""
    plan = scored.plan
    if plan.is_general:
        result = simulate_plan(problem, written(problem, plan))
        need = tuple(m.reserved for m in result.memory)
        # Where rows of the tables and the general plan's prices disagree the slower counts, so that bounds hold.
        return replace(scored, seconds=max(result.step_time_s, scored.seconds), need=need, general=result)
    simulated = simulate_grid(problem, plan.grids[0], costs=scored.costs)
    return replace(scored, seconds=simulated.step_time_s, simulated=simulated)
