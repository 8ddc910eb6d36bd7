"""The best plan of the joint space."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.problems import Progress, facts_of, problem_of, space_of
from shardwright.api.simulations import simulated
from shardwright.hardware.overrides import effective_memory
from shardwright.program.problem import Problem
from shardwright.search.joint.find import FOUND_ORDERS, JointAnswer, find_joint
from shardwright.search.joint.written import short_text, written
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation
from shardwright.strategy.grid_notation import print_grid


def plan_joint(
    request: Request,
    *,
    orders: str = FOUND_ORDERS,
    tolerance: float = 0.0,
    time_limit_s: float = float("inf"),
    progress: Progress | None = None,
) -> JointAnswer:
    """The best plan of the joint space over the grids that the request asks for: cut, splits, recompute, microbatches and order together.

    Args:
        orders: "found" or "named" (`search.joint.find.find_joint`). tolerance: gap that is good enough.

    Raises:
        InfeasibleError: nothing fits.
    """
    problem = problem_of(request)
    facts = facts_of(problem)
    space, capacity = space_of(request, problem, facts), effective_memory(problem.cluster)
    answer = find_joint(
        problem, space, facts, capacity=capacity, orders=orders, tolerance=tolerance, time_limit_s=time_limit_s, progress=progress
    )
    return replace(answer, simulation=_joint_simulation(request, problem, answer))


def _joint_simulation(request: Request, problem: Problem, answer: JointAnswer) -> Simulation:
    """The best plan as `simulation` gives it: as a general plan, or the grid where that is best."""
    if answer.best is None:
        assert answer.grid is not None
        return simulated(request, problem, name=print_grid(answer.grid.grid), grid=answer.grid.grid)
    return simulated(request, problem, name=short_text(answer.best.plan), grid=None, plan=written(problem, answer.best.plan))
