"""Plan on a mixed cluster; check the certificate of a stored plan of one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

from shardwright.api.request_to_problem import (
    is_valued,
    problem_of,
    require_any_stages,
    require_headroom,
    require_unranked,
    with_defaults,
)
from shardwright.api.simulate_legal_strategy import with_simulation
from shardwright.errors import DataError, UsageError
from shardwright.hardware.changed_cluster import keep_free
from shardwright.program.problem import Problem, under
from shardwright.progress import Progress
from shardwright.runtime.runtime_registry import written_options
from shardwright.search.certificate import Certificate
from shardwright.search.grid.unsearched_options import unsearched
from shardwright.search.mixed.bounds.cost_bound import interval_holds
from shardwright.search.mixed.bounds.time_bound import covers_space, dual_holds
from shardwright.search.mixed.cost_certificate import Goal
from shardwright.search.mixed.effort import USUAL, Effort
from shardwright.search.mixed.find_cheapest import find_for_goal
from shardwright.search.mixed.find_fastest import TOLERANCE, find_mixed
from shardwright.search.mixed.pipelines.price_per_second import price_per_second_of
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed.plans.pool_grids import PoolGridSearch, pool_grid_space
from shardwright.search.mixed.plans.write_plan import MixedPlan
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.frame_terms import MixedStageCosts
from shardwright.search.mixed.stages.pinned_values import PinnedValues, pinned_values_of
from shardwright.search.mixed.stages.stage_meshes import has_experts
from shardwright.search.mixed.stages.stage_tables import why_no_pipelines
from shardwright.search.mixed_certificate import ValuedPart
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_answer import GeneralAnswer, Unsearched
from shardwright.search.search_limit import Stops
from shardwright.search.search_request import Request

NAME = "mixed"
"""Name of a mixed plan in its notation."""


def plan_mixed(
    request: Request,
    *,
    tolerance: float = TOLERANCE,
    time_limit_s: float = inf,
    stops: Stops | None = None,
    effort: Effort = USUAL,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[MixedPlan | None]:
    """The best plan found on a mixed cluster, with a bound of its whole space, and the `top` next
    best that were found.

    Args:
        tolerance: gap that is good enough.
        time_limit_s, stops, effort, engine: see `find_mixed`.

    Raises:
        UsageError: a pinned axis is not one of pipelines, or nothing has what is pinned.
        InfeasibleError: nothing fits. OutOfTimeError: long past the limit there is no plan yet.
    """
    if request.use_all:
        raise UsageError(
            "--use-all is of uniform clusters: devices of a mixed one stay idle where they only"
            " slow a plan",
            hint="drop it",
        )
    if is_valued(request):
        require_unranked(request, "a search for cost, energy or within a budget")
    request = with_defaults(request)
    problem = problem_of(request)
    require_any_stages(problem, "a search on a mixed cluster")
    choices = choices_for(request, problem)
    find = (
        partial(find_for_goal, goal=goal_of(request))
        if is_valued(request)
        else partial(find_mixed, top=request.top)
    )
    answer = find(
        with_headroom(request, problem),
        choices=choices,
        tolerance=tolerance,
        time_limit_s=time_limit_s,
        stops=stops,
        memory=request.search_memory,
        effort=effort,
        engine=engine,
        progress=progress,
    )
    return with_simulation(request, problem, answer, name=NAME)


def unsearched_of_mixed(answer: GeneralAnswer[MixedPlan | None]) -> Unsearched:
    """The options that the search of `answer` kept at one value although they change no
    numerics, and the largest gain of another value of one.
    """
    assert answer.simulation is not None
    request = answer.simulation.request
    problem = with_headroom(request, problem_of(request))
    # The options that are tried are the same in every pool: those of the runtime and of the model.
    task = PoolGridSearch(
        pool=pools_of(problem.cluster)[0],
        choices=choices_for(request, problem),
        seconds=inf,
        stop=None,
        memory=request.search_memory,
    )
    space, said = pool_grid_space(problem, task)[1], written_options(request.runtime)
    return unsearched(
        problem, space, answer.strategy, step_time_s=answer.step_time_s, capacity=None, decided=said
    )


def choices_for(request: Request, problem: Problem) -> PinnedValues:
    """The choices that a request fixes in a mixed search.

    They are the pins on pipelines, or on grids alone, and the options that the request sets
    together with its runtime.
    """
    found = pinned_values_of(
        request.pins,
        request.excludes,
        pipelines=not why_no_pipelines(problem),
        experts=has_experts(problem),
    )
    return replace(found, said=tuple(sorted(written_options(request.runtime))))


def goal_of(request: Request) -> Goal:
    """The goal of a request: its objective and budget."""
    return Goal(objective=request.objective, budget=request.budget or inf)


def with_headroom(request: Request, problem: Problem) -> Problem:
    """The problem with the memory that plans may fill."""
    require_headroom(request)
    return replace(problem, cluster=keep_free(problem.cluster, share=request.headroom))


def check_prices(
    request: Request, certificate: Certificate, *, progress: Progress | None = None
) -> int:
    """Price every shape of every closed subspace again; return the number of subspaces that hold.

    Raises:
        DataError: prices do not close a subspace at the claimed limit, or one is missing.
    """
    part = certificate.mixed
    assert part is not None
    problem = with_headroom(request, problem_of(request))
    choices = choices_for(request, problem)
    if part.valued is not None:
        return _check_cells(request, problem, part.valued, progress)
    done = 0
    for closed in part.closed if part.lower_bound_s else ():
        pipelines = PricedPipelines.of(MixedStageCosts.of(under(problem, closed.options), choices))
        if not covers_space(pipelines.stage_costs, [dual.frame for dual in closed.duals]):
            raise DataError(
                "the subspaces of the certificate leave out a part of the space", hint="plan again"
            )
        for dual in closed.duals:
            if dual.limit_s < part.lower_bound_s * (1 - 1e-8) or not dual_holds(pipelines, dual):
                raise DataError(
                    f"the prices of a subspace do not close it: {dual.frame.text()}",
                    hint="plan again",
                )
            done += 1
            if progress is not None:
                progress("price subspaces again", done, sum(len(one.duals) for one in part.closed))
    return done


def _check_cells(
    request: Request, problem: Problem, part: ValuedPart, progress: Progress | None
) -> int:
    """Price every shape of every subspace of every interval of times again; returns the number of
    intervals that hold.

    Raises:
        DataError: prices do not show what a cell claims, or a subspace is missing.
    """
    choices, price_per_second = (
        choices_for(request, problem),
        price_per_second_of(problem.cluster, pools_of(problem.cluster), request.objective),
    )
    options = dict.fromkeys(one.options for cell in part.cells for one in cell.shown)
    pipeline_sets = {
        row: PricedPipelines.of(MixedStageCosts.of(under(problem, row), choices)) for row in options
    }
    for number, cell in enumerate(part.cells, start=1):
        if cell.shown and not interval_holds(pipeline_sets, price_per_second, cell):
            raise DataError(
                "the prices of a cell of times do not show what it claims: up to"
                f" {cell.limit_s:.6g} s",
                hint="plan again",
            )
        if progress is not None:
            progress("price cells of times again", number, len(part.cells))
    return len(part.cells)
