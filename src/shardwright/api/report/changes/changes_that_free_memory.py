"""Changes of a stored strategy that free memory of its fullest device, with what each costs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Final

from shardwright.api.one_axis_changes_that_fit_memory import FACTORS, memory_saving_words
from shardwright.api.raise_first_broken_strategy_rule import check_grid
from shardwright.api.report.changes.search_again_where_part_takes_no_time import (
    is_proven_grid_search,
)
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.api.request_to_command import request_to_command
from shardwright.api.request_to_problem import (
    SearchMethod,
    capacity_of,
    facts_of,
    method_of,
    space_of,
)
from shardwright.errors import ShardwrightError
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data_types.memory_by_stage import RoomChange
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.grid.members.default_runtime_and_recompute_options import module_ladder
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import limit_of
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import changed_grid, print_grid

LEAST_FREED: Final = 0.01
"""Least share of the capacity that a listed change frees."""
MORE_ROOM: Final = 0.1
"""Share of the capacity that the searched plan leaves free beyond the stored one."""
MOST_CHANGES: Final = 10
_SMALL_FACTORS: Final = FACTORS[:1]


def changes_that_free_memory(
    saved: StoredSimulation,
    step: SimulatedStep,
    *,
    file_name: str,
    progress: Progress | None = None,
) -> tuple[RoomChange, ...]:
    """Changes by one axis or a new search that free enough memory: fitting first, then by step.

    Changes of one axis or recomputed module are simulated. The best plan under a lower limit of
    memory is searched: that of the capacity for a plan that does not fit, else one that leaves
    `MORE_ROOM` of the capacity free beyond it.

    Args:
        step: the stored plan, simulated.
        file_name: name of its file, for commands.
    """
    if saved.grid is None:
        return ()
    found = [*_simulated_changes(saved, step, file_name=file_name)]
    replanned = _searched_again(saved, step, progress=progress)
    if replanned is not None:
        found.append(replanned)
    least = LEAST_FREED * step.prediction.capacity_bytes
    misfit = not step.prediction.fits
    worth = [one for one in found if one.freed_bytes >= least or (misfit and one.fits)]
    return tuple(sorted(worth, key=lambda one: (not one.fits, one.step_s))[:MOST_CHANGES])


def _simulated_changes(
    saved: StoredSimulation, step: SimulatedStep, *, file_name: str
) -> Iterator[RoomChange]:
    """Yield every legal change of one axis or recomputed module of a stored grid."""
    assert saved.grid is not None
    factors = _SMALL_FACTORS if step.prediction.fits else FACTORS
    words = [text for _, text in memory_saving_words(saved.grid, factors=factors)]
    schedules = step.problem.runtime.schedules
    modules = [name for name, _ in module_ladder(step.problem)[-1]]
    for text in (*words, *(f"{name}=on" for name in modules)):
        try:
            grid = changed_grid(saved.grid, text, schedules=schedules)
            if grid == saved.grid:
                continue
            check_grid(step.problem, grid)
            simulated = simulate_grid(step.problem, grid)
        except ShardwrightError:
            continue
        command = shlex.join(["shardwright", "why", file_name, text])
        yield _change(step, grid, simulated, change=text, command=command)


def _change(
    step: SimulatedStep,
    grid: Grid,
    simulated: SimulatedPlan,
    *,
    change: str,
    command: str,
    searched: bool = False,
) -> RoomChange:
    """A changed strategy with its step and memory against those of the stored one."""
    prediction = step.prediction
    return RoomChange(
        change=change,
        strategy=print_grid(grid),
        step_s=simulated.step_time_s,
        longer=simulated.step_time_s / prediction.step_time_s - 1.0,
        reserved_bytes=simulated.need,
        freed_bytes=prediction.reserved_bytes - simulated.need,
        fits=simulated.fits,
        searched=searched,
        command=command,
    )


def _searched_again(
    saved: StoredSimulation, step: SimulatedStep, *, progress: Progress | None
) -> RoomChange | None:
    """Best plan with more headroom, or as requested if the stored one does not fit; else None.

    None too where the file's plan fits and is not the proven best of a search of grids.
    """
    request = saved.request
    if step.prediction.fits:
        if not is_proven_grid_search(saved):
            return None
        left = 1.0 - step.prediction.reserved_bytes / step.prediction.capacity_bytes
        request = replace(request, headroom=ceil(100 * (left + MORE_ROOM)) / 100)
    try:
        if request.headroom >= 1 or method_of(request) is not SearchMethod.GRID:
            return None
        return _best_of_request(step, request, progress=progress)
    except ShardwrightError:
        return None


def _best_of_request(
    step: SimulatedStep, request: Request, *, progress: Progress | None
) -> RoomChange | None:
    """Search the best plan of a request (as stored but for headroom); None if nothing fits."""
    facts = facts_of(step.problem)
    load_kernels()
    found = search(
        step.problem,
        space_of(request, step.problem, facts),
        facts,
        capacity=capacity_of(request, step.problem),
        top=1,
        limit=limit_of(float("inf")),
        memory=request.search_memory,
        progress=progress,
    )
    if not found.outcome.ranked:
        return None
    best = found.outcome.ranked[0]
    return _change(
        step,
        best.grid,
        best.result,
        change=f"the best plan that leaves {request.headroom:.0%} of the memory free",
        command=shlex.join(request_to_command(request)),
        searched=True,
    )
