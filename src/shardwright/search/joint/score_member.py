"""Score of a joint plan: the longest path of its order, a lower bound of its peak memory, and
its simulation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.cost.bounds.longest_path import order_table, path_seconds
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.step.grid_seconds import StepCosts
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.schedules.action_table import ActionTable
from shardwright.search.joint.joint_member import JointPlan, compose
from shardwright.search.joint.pipeline_shapes import ShapedSpace
from shardwright.search.joint.write_plan import general_plan
from shardwright.simulator.plan_simulation import SimulatedPlan, fits_hosts, simulate_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A plan with its costs, its step and its memory.

    Args:
        seconds: of a step; of the longest path (a lower bound) while `result` is None.
        need: (ranks,) bytes at the peak at least; of a simulated plan, (classes of devices,).
        result: the simulation.
    """

    plan: JointPlan
    costs: StepCosts
    seconds: float
    need: tuple[int, ...]
    result: SimulatedPlan | None = None


def order_of(plan: JointPlan) -> ActionTable:
    """The action table of the plan."""
    return (
        plan.table
        if plan.table is not None
        else order_table(plan.grids[0], microbatches=plan.microbatches)
    )


def path_score(problem: Problem, shaped: ShapedSpace, plan: JointPlan) -> Scored:
    """The plan with the longest path through its order (B1) and a lower bound of each rank's peak
    memory.

    Borders between unlike splits take the least they can.
    """
    costs = compose(problem, shaped, plan)
    need = reserved_bytes(problem, order_of(plan), costs)
    seconds = min(
        path_seconds(problem, grid, costs, table=order_of(plan))
        for grid in dict.fromkeys(plan.grids)
    )
    return Scored(plan=plan, costs=costs, seconds=seconds, need=tuple(np.asarray(need).tolist()))


def evaluate(problem: Problem, scored: Scored) -> Scored:
    """`scored` with the simulation (S) of its plan; without one, and with infinite seconds,
    where its nodes lack host memory for what it offloads.
    """
    plan = general_plan(problem, scored.plan)
    if not fits_hosts(problem, plan):
        return replace(scored, seconds=float("inf"))
    result = simulate_plan(problem, plan)
    return replace(
        scored,
        seconds=result.step_time_s,
        need=tuple(m.reserved for m in result.memory),
        result=result,
    )
