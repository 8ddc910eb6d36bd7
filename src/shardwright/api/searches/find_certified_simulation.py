"""Find the best strategy of a request with its certificate alone, for series of searches."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.request_to_problem import (
    SearchMethod,
    capacity_of,
    facts_of,
    method_of,
    problem_of,
    space_of,
    with_defaults,
)
from shardwright.api.table_of_general_plan_searches import SEARCHES
from shardwright.errors import UsageError
from shardwright.progress_callback import Progress
from shardwright.search.best_simulation_with_certificate import CertifiedSimulation
from shardwright.search.grid.find_best_grid import find
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation


def require_series_of_searches(request: Request) -> None:
    """Raise UsageError for a space whose search takes too long for a series of searches.

    Raises:
        UsageError: the request's space has general plans, or it has scenarios.
        ClusterError: the cluster cannot be read.
    """
    method = method_of(request)
    if method not in (SearchMethod.GRID, SearchMethod.MIXED):
        raise UsageError(
            f"several {method.value} searches in one call",
            hint="drop --space and --scenarios, or plan one by one",
        )


def find_certified_simulation(
    request: Request,
    *,
    hints: bool = True,
    most_looks: int = 0,
    progress: Progress | None = None,
) -> CertifiedSimulation:
    """Search the best plan of a request, without alternatives, sensitivity and goodput.

    Args:
        hints: see `search.grid.build_error_where_nothing_fits.nothing_fits`.
        most_looks: clock checks after which a search of grids ends with its best plan so far; 0 =
            no such limit.

    Raises:
        InfeasibleError: nothing fits.
        UsageError: see `require_series_of_searches`.
        ShardwrightError: as `problem_of`.
    """
    request = with_defaults(request)
    require_series_of_searches(request)
    if method_of(request) is SearchMethod.MIXED:
        mixed = SEARCHES[SearchMethod.MIXED].answer(replace(request, top=0), progress=progress)
        assert mixed.simulation is not None
        return CertifiedSimulation(simulation=mixed.simulation, certificate=mixed.certificate)
    problem = problem_of(request)
    facts = facts_of(problem)
    answer = find(
        problem,
        space_of(request, problem, facts),
        facts,
        capacity=capacity_of(request, problem),
        top=1,
        most_looks=most_looks,
        memory=request.search_memory,
        hints=hints,
        progress=progress,
    )
    return CertifiedSimulation(
        simulation=Simulation(
            request=request,
            name="",
            grid=answer.grid,
            plan=None,
            prediction=answer.prediction,
        ),
        certificate=answer.certificate,
    )
