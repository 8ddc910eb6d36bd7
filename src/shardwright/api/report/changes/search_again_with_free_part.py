"""Search again for the best plan of a stored request, with one part of the step taking no time."""

from __future__ import annotations

from typing import Final

from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.api.request_to_problem import (
    SearchMethod,
    capacity_of,
    facts_of,
    method_of,
    space_of,
)
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, StoredSimulation
from shardwright.program.problem_with_free_part import REMOVABLE_PARTS, with_free_part
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data.step_time_parts import PlanIfFree
from shardwright.search.grid.bounds.load_kernels import load_kernels
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.search_time_limit import limit_of
from shardwright.simulator.plan_simulation import simulate_plan
from shardwright.strategy.text.grid_notation import print_grid

SAME_PLAN: Final = "this plan"
"""Name of the stored strategy where it is the best in the changed problem, too."""


def plan_if_free(
    saved: StoredSimulation,
    step: SimulatedStep,
    part: str,
    *,
    progress: Progress | None = None,
) -> PlanIfFree | None:
    """A stored plan's step with a part free, searched again if proven; None if not removable.

    Where the file has a proven search of grids, the same space is searched again. Otherwise the
    stored strategy is simulated alone.

    Args:
        step: the stored plan, simulated.
        part: key of the breakdown.
    """
    if part not in REMOVABLE_PARTS:
        return None
    free = with_free_part(step.problem, part)
    same_plan_s = simulate_plan(free, step.plan).step_time_s
    step_s, strategy, searched = same_plan_s, SAME_PLAN, False
    if is_proven_grid_search(saved):
        request = saved.request
        facts = facts_of(step.problem)
        load_kernels()
        found = search(
            free,
            space_of(request, step.problem, facts),
            facts,
            capacity=capacity_of(request, step.problem),
            top=1,
            limit=limit_of(float("inf")),
            memory=request.search_memory,
            progress=progress,
        )
        best, *_ = found.outcome.ranked
        step_s, searched = best.step_time_s, True
        if best.grid != saved.grid:
            strategy = print_grid(best.grid)
    return PlanIfFree(
        step_s=step_s,
        gain=1.0 - step_s / saved.prediction.step_time_s,
        same_plan_s=same_plan_s,
        strategy=strategy,
        searched=searched,
    )


def is_proven_grid_search(saved: StoredSimulation) -> bool:
    """True if the file holds the proven best of a search of grids, which can be repeated."""
    return (
        isinstance(saved, StoredPlan)
        and saved.answer is not None
        and saved.certificate.optimal
        and method_of(saved.request) is SearchMethod.GRID
    )
