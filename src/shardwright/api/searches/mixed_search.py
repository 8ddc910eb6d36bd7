"""Search for the best plan on a mixed cluster, and check the certificate of a stored plan."""

from __future__ import annotations

from functools import partial
from math import inf

from shardwright.api.request_to_problem import (
    has_cost_goal,
    problem_of,
    require_unequal_stages,
    require_unranked,
    with_defaults,
)
from shardwright.api.searches.mixed_search_pins_and_memory_headroom import (
    NAME,
    choices_for,
    with_headroom,
)
from shardwright.api.simulate_grid_or_plan_of_request import with_simulation
from shardwright.errors import DataError, UsageError
from shardwright.program.training_problem import Problem, under
from shardwright.progress_callback import Progress
from shardwright.runtime.runtime_registry import options_in_text
from shardwright.search.grid.gain_of_unsearched_options import unsearched
from shardwright.search.mixed.bounds.cost_bound import interval_holds
from shardwright.search.mixed.bounds.time_bound import covers_space, dual_holds
from shardwright.search.mixed.find_by_cost_or_energy import find_for_goal
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.mixed.pipelines.pool_cost_rates import Goal, price_per_second_of
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.best_grid_on_each_pool_alone import (
    PoolGridSearch,
    pool_grid_space,
)
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan
from shardwright.search.mixed.price_pipelines_and_describe_space import TOLERANCE
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.mixed_cluster_certificate import ValuedPart
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_answer import GeneralAnswer, Unsearched
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import Stops


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
    """Search the best plan on a mixed cluster, with a lower bound and the `top` next best plans.

    The bound holds for the whole space.

    Args:
        tolerance: gap at which the search stops.
        time_limit_s, stops, effort, engine: see `find_mixed`.

    Raises:
        UsageError: a pinned axis is not an axis of pipelines, or no plan has the pinned values.
        InfeasibleError: nothing fits. OutOfTimeError: no plan was found long after the limit.
    """
    if request.use_all:
        raise UsageError(
            "--use-all is of uniform clusters: devices of a mixed one stay idle where they only"
            " slow a plan",
            hint="drop it",
        )
    if has_cost_goal(request):
        require_unranked(request, "a search for cost, energy or within a budget")
    request = with_defaults(request)
    problem = problem_of(request)
    require_unequal_stages(problem, "a search on a mixed cluster")
    choices = choices_for(request, problem)
    find = (
        partial(find_for_goal, goal=goal_of(request))
        if has_cost_goal(request)
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
    """Options that a mixed search kept at one value, and the largest gain of another value.

    Only options that change no numerics.
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
    space, set_options = pool_grid_space(problem, task)[1], options_in_text(request.runtime)
    return unsearched(
        problem,
        space,
        answer.strategy,
        step_time_s=answer.step_time_s,
        capacity=None,
        decided=set_options,
    )


def goal_of(request: Request) -> Goal:
    """The objective and budget (dollars an hour, infinite by default) of a request."""
    return Goal(objective=request.objective, budget=request.budget or inf)


def check_prices(
    request: Request, certificate: Certificate, *, progress: Progress | None = None
) -> int:
    """Verify by dual prices that each subspace of a mixed certificate is closed; returns the count.

    Every shape of every frame is priced again.

    Raises:
        DataError: prices do not close a subspace at the claimed limit, or one is missing.
    """
    part = certificate.mixed
    assert part is not None
    problem = with_headroom(request, problem_of(request))
    choices = choices_for(request, problem)
    if part.valued is not None:
        return _check_intervals(request, problem, part.valued, progress)
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


def _check_intervals(
    request: Request, problem: Problem, part: ValuedPart, progress: Progress | None
) -> int:
    """Verify by dual prices each time interval of a cost certificate; returns their number.

    Every shape of every frame is priced again.

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
