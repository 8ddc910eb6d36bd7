"""Search for the best plan on a mixed cluster, and check of its certificate."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

from shardwright.api.problems import (
    Progress,
    is_valued,
    problem_of,
    require_any_stages,
    require_headroom,
    require_unranked,
    with_defaults,
)
from shardwright.api.simulated import simulated
from shardwright.errors import DataError, UsageError
from shardwright.hardware.overrides import keep_free
from shardwright.program.problem import Problem, under
from shardwright.runtime.registry import written_options
from shardwright.search.answer import Unsearched
from shardwright.search.certificate import Certificate
from shardwright.search.engine.protocol import Engine
from shardwright.search.frames import Stops, ValuedPart
from shardwright.search.grid.unsearched import unsearched
from shardwright.search.mixed.bounds.cost_bound import cell_holds
from shardwright.search.mixed.bounds.time_bound import covers, holds
from shardwright.search.mixed.cost_certificate import Goal
from shardwright.search.mixed.find_cheapest import find_valued
from shardwright.search.mixed.find_fastest import TOLERANCE, MixedAnswer, find_mixed
from shardwright.search.mixed.pipelines.price_per_second import tariff_of
from shardwright.search.mixed.pipelines.priced_pipelines import Market
from shardwright.search.mixed.plans.pool_grids import AloneSearch, space_alone
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.frame_terms import Ground
from shardwright.search.mixed.stages.pinned_values import Choices, choices_of
from shardwright.search.mixed.stages.stage_meshes import has_experts
from shardwright.search.mixed.stages.stage_tables import why_alone
from shardwright.search.request import Request

NAME = "mixed"
"""What a mixed plan is called in its notation."""


def plan_mixed(
    request: Request,
    *,
    tolerance: float = TOLERANCE,
    time_limit_s: float = inf,
    stops: Stops | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> MixedAnswer:
    """The best plan found on a mixed cluster, with a bound of its whole space, and the `top` next
    best plans found.

    Args:
        tolerance: gap at which the search stops.
        time_limit_s, stops, engine: see `find_mixed`.

    Raises:
        UsageError: a pinned axis is not one of pipelines, or no plan has the pinned values.
        InfeasibleError: nothing fits.
        OutOfTimeError: long past the limit there is no plan yet.
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
        partial(find_valued, goal=goal_of(request))
        if is_valued(request)
        else partial(find_mixed, top=request.top)
    )
    answer = find(
        roomy(request, problem),
        choices=choices,
        tolerance=tolerance,
        time_limit_s=time_limit_s,
        stops=stops,
        memory=request.search_memory,
        engine=engine,
        progress=progress,
    )
    return replace(
        answer, simulation=simulated(request, problem, name=NAME, grid=None, plan=answer.plan)
    )


def unsearched_of_mixed(answer: MixedAnswer) -> Unsearched:
    """Options that the search of `answer` left at one value although they change no numerics, and
    the best gain of another value.
    """
    assert answer.simulation is not None
    request = answer.simulation.request
    problem = roomy(request, problem_of(request))
    # The options that are tried are the same in every pool: those of the runtime and of the model.
    task = AloneSearch(
        pool=pools_of(problem.cluster)[0],
        choices=choices_for(request, problem),
        seconds=inf,
        stop=None,
        memory=request.search_memory,
    )
    space, decided = space_alone(problem, task)[1], written_options(request.runtime)
    return unsearched(
        problem, space, answer.plan, step_time_s=answer.step_time_s, capacity=None, decided=decided
    )


def choices_for(request: Request, problem: Problem) -> Choices:
    """Choices that a request fixes in a mixed search.

    They are the pins on pipelines, or on grids alone, and the options that the request sets
    together with its runtime.
    """
    choices = choices_of(
        request.pins,
        request.excludes,
        pipelines=not why_alone(problem),
        experts=has_experts(problem),
    )
    return replace(choices, said=tuple(sorted(written_options(request.runtime))))


def goal_of(request: Request) -> Goal:
    """Objective and budget of a request."""
    return Goal(objective=request.objective, budget=request.budget or inf)


def roomy(request: Request, problem: Problem) -> Problem:
    """The problem with only the memory that plans may fill."""
    require_headroom(request)
    return replace(problem, cluster=keep_free(problem.cluster, share=request.headroom))


def check_prices(
    request: Request, certificate: Certificate, *, progress: Progress | None = None
) -> int:
    """Number of frames whose prices still close them, after pricing every shape of every frame
    anew.

    Raises:
        DataError: a frame's prices do not close it at the claimed limit, or a frame is missing.
    """
    part = certificate.mixed
    assert part is not None
    problem = roomy(request, problem_of(request))
    choices = choices_for(request, problem)
    if part.valued is not None:
        return _check_cells(request, problem, part.valued, progress)
    done = 0
    for closed in part.closed if part.lower_bound_s else ():
        market = Market.of(Ground.of(under(problem, closed.options), choices))
        if not covers(market.ground, [dual.frame for dual in closed.duals]):
            raise DataError(
                "the frames of the certificate leave out a part of the space", hint="plan again"
            )
        for dual in closed.duals:
            if dual.limit_s < part.lower_bound_s * (1 - 1e-8) or not holds(market, dual):
                raise DataError(
                    f"the prices of a frame do not close it: {dual.frame.text()}", hint="plan again"
                )
            done += 1
            if progress is not None:
                progress("price frames again", done, sum(len(one.duals) for one in part.closed))
    return done


def _check_cells(
    request: Request, problem: Problem, part: ValuedPart, progress: Progress | None
) -> int:
    """Number of intervals of step times whose prices hold, after pricing every shape of every frame
    anew.

    Raises:
        DataError: prices do not prove an interval's claim, or a frame is missing.
    """
    choices, tariff = (
        choices_for(request, problem),
        tariff_of(problem.cluster, pools_of(problem.cluster), request.objective),
    )
    options = dict.fromkeys(dual.options for cell in part.cells for dual in cell.shown)
    markets = {row: Market.of(Ground.of(under(problem, row), choices)) for row in options}
    for number, cell in enumerate(part.cells, start=1):
        if cell.shown and not cell_holds(markets, tariff, cell):
            raise DataError(
                "the prices of a cell of times do not show what it claims: up to"
                f" {cell.limit_s:.6g} s",
                hint="plan again",
            )
        if progress is not None:
            progress("price cells of times again", number, len(part.cells))
    return len(part.cells)
