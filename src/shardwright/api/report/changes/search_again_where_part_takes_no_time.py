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
from shardwright.program.problem_where_step_part_takes_no_time import (
    REMOVABLE_PARTS,
    with_free_part,
)
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data_types.step_time_parts import PlanIfFree
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.search_time_limit import limit_of
from shardwright.simulator.simulate_plan import simulate_plan
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

    Where the file has a proven search of grids, the same space is searched again, unless its best
    plan is known to stay the best. Otherwise the stored strategy is simulated alone.

    Args:
        step: the stored plan, simulated.
        part: key of the breakdown.
    """
    if part not in REMOVABLE_PARTS:
        return None
    free = with_free_part(step.problem, part)
    searched = is_proven_grid_search(saved)
    best = None
    if searched and not _stays_best(saved, part):
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
    same_plan = best is None or best.grid == saved.grid
    # The search has simulated the stored plan where it is the best.
    same_plan_s = (
        best.step_time_s
        if best is not None and same_plan
        else simulate_plan(free, step.plan).step_time_s
    )
    step_s = same_plan_s if best is None else best.step_time_s
    return PlanIfFree(
        step_s=step_s,
        gain=1.0 - step_s / saved.prediction.step_time_s,
        same_plan_s=same_plan_s,
        strategy=SAME_PLAN if best is None or same_plan else print_grid(best.grid),
        searched=searched,
    )


def _stays_best(saved: StoredSimulation, part: str) -> bool:
    """True if the proven best plan of a search of grids is the best without `part`, too.

        tasks of the best x jitter of all devices <= tasks of another plan x jitter of its devices
            <= tasks of that plan x jitter of all devices

    Jitter multiplies a step by a factor that only grows with devices. So a plan on all devices
    that is the best with jitter has the shortest tasks.
    """
    return part == "jitter" and saved.prediction.idle_devices == 0


def is_proven_grid_search(saved: StoredSimulation) -> bool:
    """True if the file holds the proven best of a search of grids, which can be repeated."""
    return (
        isinstance(saved, StoredPlan)
        and saved.answer is not None
        and saved.certificate.optimal
        and method_of(saved.request) is SearchMethod.GRID
    )
