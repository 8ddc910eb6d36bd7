"""The answer in a plan file, for files of all verbs."""

from __future__ import annotations

from shardwright.api.request_to_problem import problem_of
from shardwright.files.stored_documents import StoredSimulation
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.simulator.plan_simulation import plan_of_grid
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A plan and its problem.

    Args:
        name: of the plan, in words.
        grid: that says the plan, None if none does.
        cluster: as asked.
        step_time_s: claimed, in seconds.
    """

    name: str
    problem: Problem
    plan: Plan
    grid: Grid | None
    cluster: str
    step_time_s: float


def stored_plan(saved: StoredSimulation) -> Stored:
    """The plan of a file; of a grid its general form. Raises as `problem_of` does."""
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
