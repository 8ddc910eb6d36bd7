"""What a joint plan takes: the longest path of its order, its exact peak, and its simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.member import StepCosts
from shardwright.program.lower import order_table
from shardwright.program.problem import Problem
from shardwright.schedules.table import ActionTable
from shardwright.search.joint.frames import Framed
from shardwright.search.joint.member import JointPlan, compose
from shardwright.simulator.breakdown import Simulated
from shardwright.simulator.evaluate import path_seconds, simulate_grid
from shardwright.simulator.memory import reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A plan with its step.

    Args:
        seconds: of a step. need: (ranks,) bytes at the peak. simulated: None if `seconds` is of the longest path.
    """

    plan: JointPlan
    costs: StepCosts
    seconds: float
    need: tuple[int, ...]
    simulated: Simulated | None = None


def order_of(plan: JointPlan) -> ActionTable:
    """The action table of the plan."""
    return order_table(plan.grids[0], microbatches=plan.microbatches)


def path_score(problem: Problem, framed: Framed, plan: JointPlan) -> Scored:
    """The longest path through the plan's order (B1), and the exact peak of each rank."""
    costs = compose(problem, framed, plan)
    # Borders between unlike splits take as long as the slower of the two; the tiers of all are the same.
    grid = plan.grids[0]
    need = reserved_bytes(problem, order_of(plan), costs)
    seconds = path_seconds(problem, grid, costs)
    if not plan.is_uniform:
        seconds = max(path_seconds(problem, g, costs) for g in dict.fromkeys(plan.grids))
    return Scored(plan=plan, costs=costs, seconds=seconds, need=tuple(np.asarray(need).tolist()))


def evaluate(problem: Problem, scored: Scored) -> Scored:
    """The simulation (S) of a scored plan.

    Where ranks have unlike splits the tasks are simulated on the groups of each split in turn, and the slowest counts: what a general
    plan's simulation gives exactly.
    """
    best: Simulated | None = None
    for grid in dict.fromkeys(scored.plan.grids):
        simulated = simulate_grid(problem, grid, costs=scored.costs)
        if best is None or simulated.step_time_s > best.step_time_s:
            best = simulated
    assert best is not None
    return Scored(plan=scored.plan, costs=scored.costs, seconds=best.step_time_s, need=scored.need, simulated=best)
