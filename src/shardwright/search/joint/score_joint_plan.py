"""Score of a joint plan: longest path of its order, lower bound on peak memory, and simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.cost.bounds.longest_path import order_table, path_seconds
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.search.joint.joint_plan_and_step_costs import JointPlan, joint_step_costs
from shardwright.search.joint.joint_plan_to_general_plan import general_plan
from shardwright.search.joint.joint_space import ShapedSpace
from shardwright.simulator.simulate_plan import SimulatedPlan, fits_hosts, simulate_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPlan:
    """A joint plan with its costs, step seconds and memory.

    Args:
        seconds: step time of the simulation; the longest path (a lower bound) while `result` is
            None.
        need: (ranks,) lower bound in bytes on the peak; of a simulated plan (device classes,)
            bytes.
        result: the simulation.
    """

    plan: JointPlan
    costs: StepCosts
    seconds: float
    need: tuple[int, ...]
    result: SimulatedPlan | None = None


def action_table_of(plan: JointPlan) -> ActionTable:
    """Action table of the plan: its own, or that of its named schedule."""
    return (
        plan.table
        if plan.table is not None
        else order_table(plan.grids[0], microbatches=plan.microbatches)
    )


def path_score(problem: Problem, shaped: ShapedSpace, plan: JointPlan) -> ScoredPlan:
    """Score a plan by the longest path through its order and each rank's least peak memory.

    Sends between different splits take the least seconds they can.
    """
    costs = joint_step_costs(problem, shaped, plan)
    need = reserved_bytes(problem, action_table_of(plan), costs)
    seconds = min(
        path_seconds(problem, grid, costs, table=action_table_of(plan))
        for grid in dict.fromkeys(plan.grids)
    )
    return ScoredPlan(
        plan=plan, costs=costs, seconds=seconds, need=tuple(np.asarray(need).tolist())
    )


def simulate_scored(problem: Problem, scored: ScoredPlan) -> ScoredPlan:
    """Simulate a scored plan; infinite seconds where its nodes lack host memory for offloading."""
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
