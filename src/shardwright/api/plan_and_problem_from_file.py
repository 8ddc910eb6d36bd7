"""The plan and the problem of a plan file."""

from __future__ import annotations

from shardwright.api.request_to_problem import problem_of
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.simulator.simulate_plan import plan_of_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOfProblem:
    """A plan with its problem, as a plan file stores them.

    Args:
        name: name of the plan.
        grid: grid that equals the plan; None if none does.
        cluster: text of the cluster in the request.
        step_time_s: stored step time in seconds.
    """

    name: str
    problem: Problem
    plan: Plan
    grid: Grid | None
    cluster: str
    step_time_s: float


def stored_plan(saved: StoredSimulation) -> PlanOfProblem:
    """The plan and problem of a plan file; a grid is converted to a general plan."""
    problem, plan, grid = problem_of(saved.request), saved.plan, saved.grid
    if plan is None:
        assert grid is not None
        plan = plan_of_grid(problem, grid)
    return PlanOfProblem(
        name=saved.name or (print_grid(grid) if grid is not None else "plan"),
        problem=problem,
        plan=plan,
        grid=grid,
        cluster=saved.request.cluster,
        step_time_s=saved.prediction.step_time_s,
    )
