"""What a plan file says, whichever verb wrote it."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.api.problems import problem_of
from shardwright.program.problem import Problem
from shardwright.report.simulation_file import Saved
from shardwright.search.simulation import Simulation
from shardwright.strategy.grid import Grid
from shardwright.strategy.grid_notation import print_grid
from shardwright.strategy.grid_plan import plan_of
from shardwright.strategy.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A plan and its problem.

    Args:
        name: of the plan, in words. grid: that says the plan, None if none does. cluster: as asked. step_time_s: claimed, in seconds.
    """

    name: str
    problem: Problem
    plan: Plan
    grid: Grid | None
    cluster: str
    step_time_s: float


def stored_plan(saved: Saved) -> Stored:
    """The plan of a file; of a grid its general form. Raises as `problem_of` does."""
    if isinstance(saved, Simulation):
        request, plan, grid, prediction, name = saved.request, saved.plan, saved.grid, saved.prediction, saved.name
    else:
        request, answer = saved
        plan, grid, prediction, name = answer.plan, answer.grid, answer.prediction, ""
    problem = problem_of(request)
    if plan is None:
        assert grid is not None
        plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    return Stored(
        name=name or (print_grid(grid) if grid is not None else "plan"),
        problem=problem,
        plan=plan,
        grid=grid,
        cluster=request.cluster,
        step_time_s=prediction.step_time_s,
    )
