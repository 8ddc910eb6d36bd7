"""The plan and problem of a plan file, whichever verb wrote it."""

from __future__ import annotations

from shardwright.api.problems import problem_of
from shardwright.files.stored import StoredSimulation
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.simulator.simulate import plan_of_grid
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A plan and its problem.

    Args:
        name: name of the plan, in words.
        grid: grid that equals the plan, None if none does.
        cluster: expression of the request.
        step_time_s: claimed step time in seconds.
    """

    name: str
    problem: Problem
    plan: Plan
    grid: Grid | None
    cluster: str
    step_time_s: float


def stored_plan(saved: StoredSimulation) -> Stored:
    """The plan of a file, with its problem; a grid is expanded. Raises as `problem_of` does."""
    problem, plan, grid = problem_of(saved.request), saved.plan, saved.grid
    if plan is None:
        assert grid is not None
        plan = plan_of_grid(problem, grid)
    return Stored(
        name=saved.name or (print_grid(grid) if grid is not None else "plan"),
        problem=problem,
        plan=plan,
        grid=grid,
        cluster=saved.request.cluster,
        step_time_s=saved.prediction.step_time_s,
    )
