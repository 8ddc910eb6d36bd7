"""Search for the cheapest plan, least energy, a time-cost front, or the fastest in a budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from shardwright.cost.step.dollars_and_joules import SECONDS_PER_HOUR
from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.errors import InfeasibleError
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.bounds.cost_bound import (
    earliest_within,
    interval_up_to,
    intervals_of_all_times,
)
from shardwright.search.mixed.bounds.cost_rate_bound import ValuesCache
from shardwright.search.mixed.cost_certificate import Goal, build_cost_certificate
from shardwright.search.mixed.pipelines.column_generation_pricing import PricedPipelines
from shardwright.search.mixed.pipelines.pool_cost_rates import (
    COST,
    ENERGY,
    PARETO,
    TIME,
    PricePerSecond,
    price_per_second_of,
)
from shardwright.search.mixed.pipelines.search_tasks import SearchTasks
from shardwright.search.mixed.plans.best_grid_of_each_pool import option_rows
from shardwright.search.mixed.plans.compose_at_time_limits import (
    all_queues,
    compose_by_limits,
    first_limit,
)
from shardwright.search.mixed.plans.local_search_of_plans import improve_best_plans, improve_plan
from shardwright.search.mixed.plans.low_cost_plans import (
    PlanRecord,
    ValuedPlan,
    compose_low_cost,
    limits_between,
)
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan
from shardwright.search.mixed.plans.plan_search_state import SearchState, simulate_best
from shardwright.search.mixed.plans.plans_of_one_shape import compose_one_shape
from shardwright.search.mixed.plans.pool_grids_by_nodes import PoolGrids
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.mixed.searched_space import (
    TOLERANCE,
    no_plan_fits,
    price_pipelines,
    stage_costs_by_options,
)
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.stage_cost_table import why_no_pipelines
from shardwright.search.mixed.stages.subspaces_and_stage_costs import root_subspaces
from shardwright.search.mixed_cluster_certificate import TimeInterval
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.search_time_limit import Limit, Stops, limit_of


@dataclass(kw_only=True)
class GoalSearch:
    """State that all steps of a search for a goal share.

    Args:
        pipeline_sets: pipelines of each set of options; empty where the model's pipelines are not
            searched.
        own: grids of each pool.
        values_cache: shape values of the subspaces of each set of pipelines, for the bound.
        say: called with a description of each step of the search.

    Args:
        pipeline_sets: of each set of options; none where the model's pipelines are not searched.
        own: grids of each pool.
        values_cache: values of the subspaces of each set of pipelines, for the bound.
        say: called with a description of each step of the search.
    """

    goal: Goal
    price_per_second: PricePerSecond
    tolerance: float
    pipeline_sets: dict[Options, PricedPipelines]
    record: PlanRecord
    own: PoolGrids
    values_cache: dict[Options, ValuesCache]
    say: Callable[[str], None]

    @property
    def effort(self) -> Effort:
        """Limits on the work of the search."""
        return self.own.effort

    @property
    def per_second(self) -> float:
        """Upper limit on the dollars or joules a second of a plan; infinity = no limit."""
        return inf if self.goal.objective == ENERGY else self.goal.budget / SECONDS_PER_HOUR

    @property
    def best(self) -> ValuedPlan | None:
        """Best plan so far for the goal; None = there is no plan yet."""
        return self.record.fastest() if self.goal.objective == TIME else self.record.cheapest()

    def target(self, limit_s: float) -> float:
        """Dollars or joules a step to prove as a lower bound for plans that end by a limit."""
        least = self.record.least(limit_s=limit_s if self.goal.objective == PARETO else inf)
        fastest = self.record.fastest()
        return (1.0 - self.tolerance) * (least if least < inf or fastest is None else fastest.value)


def find_for_goal(
    problem: Problem,
    goal: Goal,
    *,
    choices: PinnedValues | None = None,
    tolerance: float = TOLERANCE,
    time_limit_s: float = inf,
    stops: Stops | None = None,
    memory: int = SEARCH_MEMORY,
    effort: Effort = USUAL,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[MixedPlan | None]:
    """Find the best plan for a cost, energy, time-cost front or budget goal, with a lower bound.

    The space: pipelines over the cluster's pools, and each pool's own grids. A uniform cluster is
    one pool. Models whose pipelines are not searched (`stage_tables.why_no_pipelines`) have the
    grids alone.

    Args:
        choices, tolerance, time_limit_s, stops, memory, effort, engine: as of
            `find_fastest.find_mixed`.

    Raises:
        UsageError: as `find_mixed`; or a price or a power limit is missing.
        InfeasibleError: no plan fits, or no plan within the budget.
        OutOfTimeError: there is no plan long after the time limit.
    """
    begun = time.monotonic()

    def left_s() -> float:
        """Seconds left until the time limit."""
        return max(begun + time_limit_s - time.monotonic(), 0.0)

    def say(text: str, done: int = 0, total: int = 0) -> None:
        """Report progress, if a progress function is given."""
        if progress is not None:
            progress(text, done, total)

    own = _create_pool_grids(
        problem,
        goal,
        choices or PinnedValues(),
        engine or Serial(),
        effort=effort,
        seconds=effort.pool_grid_time_share * time_limit_s,
        stops=stops,
        memory=memory,
    )
    own.search_halves(
        pools_of(problem.cluster), lambda count: say("plan each kind of device alone", count)
    )
    search = _goal_search(own, goal, tolerance, say, searched=not why_no_pipelines(problem))
    state = own.record.state
    state.limit = limit_of(
        effort.composition_time_share * left_s(), stop_at=stops.composed if stops else None
    )
    last = _compose_plans(search) if search.pipeline_sets else None
    if search.best is None:
        raise _infeasible_error(search, last)
    proof = limit_of(left_s(), stop_at=stops.search if stops else None)
    if goal.objective != TIME:
        own.split_weak_ranges(search.target, proof, say)
    best = search.best
    assert best is not None
    cells = _proof_intervals(search, last, best, proof) if last is not None else ()
    return GeneralAnswer(
        strategy=best.plan,
        detail=best.mixed,
        certificate=build_cost_certificate(
            goal,
            own,
            search.pipeline_sets,
            best,
            cells,
            tolerance=tolerance,
            stopped_at=proof.stopped_at,
        ),
        waited=state.limit.waited,
        search_time_s=time.monotonic() - begun,
    )


def _create_pool_grids(
    problem: Problem,
    goal: Goal,
    choices: PinnedValues,
    engine: Engine,
    *,
    effort: Effort,
    seconds: float,
    stops: Stops | None,
    memory: int,
) -> PoolGrids:
    """Create the record of each pool's grids; no grid is searched yet."""
    pools, state = pools_of(problem.cluster), SearchState(problem=problem)
    price_per_second = price_per_second_of(problem.cluster, pools, goal.objective)
    if goal.budget < inf:
        price_per_second_of(problem.cluster, pools, COST)
    record = PlanRecord(
        state=state, price_per_second=price_per_second, budget=goal.budget, effort=effort
    )
    state.after = record.add
    return PoolGrids(
        record=record,
        engine=engine,
        choices=choices,
        seconds=seconds / 4,
        memory=memory,
        stops=stops,
        effort=effort,
    )


def _goal_search(
    pool_grids: PoolGrids,
    goal: Goal,
    tolerance: float,
    say: Callable[[str], None],
    *,
    searched: bool,
) -> GoalSearch:
    """Create the state of a goal search, with the pipelines under each pool's best options."""
    largest = {
        device_range.pool.group: device_range.found for device_range in reversed(pool_grids.ranges)
    }
    rows = (
        option_rows([largest[group] for group in sorted(largest)], pool_grids.choices)
        if searched
        else ()
    )
    problem = pool_grids.record.state.problem
    pipeline_sets = price_pipelines(problem, rows, pool_grids.choices, effort=pool_grids.effort)
    return GoalSearch(
        goal=goal,
        price_per_second=pool_grids.record.price_per_second,
        tolerance=tolerance,
        pipeline_sets=pipeline_sets,
        record=pool_grids.record,
        own=pool_grids,
        values_cache={options: {} for options in rows},
        say=say,
    )


def _compose_plans(search: GoalSearch) -> TimeInterval:
    """Compose and simulate plans from the fastest to the cheapest; return the last interval.

    The interval covers all step times and holds a lower bound on the dollars or joules a second of
    a plan.

    Raises:
        OutOfTimeError: there is no time for a first plan.
    """
    record = search.record
    search.say("find what plans take at least")
    last = interval_up_to(
        search.pipeline_sets,
        search.price_per_second,
        LONGEST_STEP_S,
        search.values_cache,
        budget=search.per_second,
        enough=inf,
    )
    if last.empty or last.rate is None:
        return last
    values_cache: dict[Options, ValuesCache] = {options: {} for options in search.pipeline_sets}
    timed = search.goal.objective == TIME

    def compose(limit_s: float, *, timed: bool = timed) -> None:
        """Compose and simulate plans for one step-time limit, unless the search ends."""
        if not record.ends():
            search.say(f"compose plans of about {limit_s:.4g} s")
            compose_low_cost(
                record, search.pipeline_sets, limit_s, values_cache=values_cache, timed=timed
            )

    first = limit = _first_open_limit_s(search)
    if search.goal.objective == PARETO:
        _compose_fast_plans(search)
    while not record.points and limit <= LONGEST_STEP_S:
        compose(limit, timed=True)
        limit *= search.effort.cost_limit_ratio
    if not record.points:
        return last
    top = (
        min(first * search.effort.cost_limit_ratio, record.points[0].seconds)
        if timed
        else min(record.least() / last.rate, LONGEST_STEP_S)
    )
    for limit in limits_between(
        first,
        max(top, first),
        rise=search.effort.near_cost_limit_ratio if timed else search.effort.cost_limit_ratio,
    ):
        compose(limit)
    best = record.cheapest()
    if best is not None and not timed:
        near = search.effort.near_cost_limits
        for step in range(-near, near + 1):
            compose(best.seconds * search.effort.near_cost_limit_ratio**step)
    _improve_best_plans(search)
    return last


def _compose_fast_plans(search: GoalSearch) -> None:
    """Compose and simulate the fastest plans, at any cost, as a search for time does."""
    state, pipeline_sets = search.record.state, search.pipeline_sets
    search.say("compose the fastest plans")
    tasks = SearchTasks.of(
        search.own.engine, state.problem, tuple(pipeline_sets.values()), effort=search.effort
    )
    stage_costs_of = stage_costs_by_options(pipeline_sets)
    for options, pipelines in pipeline_sets.items():
        compose_one_shape(state, tasks, pipelines, options)
    composing = all_queues(state, tasks, tuple(pipeline_sets.items()))
    for limits, most in search.effort.rounds[: search.effort.front_rounds]:
        compose_by_limits(state, tasks, composing, max_limits=limits)
        simulate_best(state, tasks, stage_costs_of, max_simulations=most)
        simulate_best(
            state,
            tasks,
            stage_costs_of,
            max_simulations=most // search.effort.sharding_share,
            sharded=True,
        )
    improve_best_plans(state, tasks, stage_costs_of)
    state.waiting = []


def _improve_best_plans(search: GoalSearch) -> None:
    """Improve the best plan, or each plan of the front, by small changes on the same devices."""
    record = search.record
    tasks = SearchTasks.of(
        Serial(),
        record.state.problem,
        tuple(search.pipeline_sets.values()),
        effort=search.effort,
    )
    for point in record.front() if search.goal.objective == PARETO else (search.best,):
        if point is not None and point.mixed is not None and not record.ends():
            options = point.plan.options
            improve_plan(
                record.state,
                tasks,
                search.pipeline_sets[options].stage_costs,
                point.seconds,
                point.mixed,
                options,
            )


def _first_open_limit_s(search: GoalSearch) -> float:
    """Smallest step-time limit, in seconds, that the dual prices do not rule out, to a tolerance.

    A budget rules out the limits by which no plan within it ends.
    """
    first = min(
        first_limit(pipelines, subspace, latest_limit_s=LONGEST_STEP_S)[0]
        for pipelines in search.pipeline_sets.values()
        for subspace in root_subspaces(pipelines.stage_costs)
    )
    if search.per_second == inf:
        return first
    clock = search.record.state.limit
    high = first
    while high < LONGEST_STEP_S and not clock.passed():
        cell = interval_up_to(
            search.pipeline_sets,
            search.price_per_second,
            high,
            search.values_cache,
            budget=search.per_second,
            enough=search.per_second * 1.001,
        )
        if not cell.empty:
            break
        high *= search.effort.cost_limit_ratio
    return high / search.effort.cost_limit_ratio if high > first else first


def _proof_intervals(
    search: GoalSearch, longest_interval: TimeInterval, best: ValuedPlan, clock: Limit
) -> tuple[TimeInterval, ...]:
    """Intervals of step times that prove the bound of the best plan, or of the front."""
    pipeline_sets, price_per_second, values_cache = (
        search.pipeline_sets,
        search.price_per_second,
        search.values_cache,
    )
    if longest_interval.empty or not longest_interval.rate:
        return (longest_interval,)
    if search.goal.objective == TIME:
        search.say("prove that nothing within the budget is faster")
        high = best.seconds * (1.0 - search.tolerance)
        return (
            earliest_within(
                pipeline_sets,
                price_per_second,
                budget=search.per_second,
                latest_limit_s=high,
                effort=search.effort,
                clock=clock,
                values_cache=values_cache,
            ),
        )
    edges = (
        tuple(point.seconds for point in search.record.front())
        if search.goal.objective == PARETO
        else ()
    )
    return intervals_of_all_times(
        pipeline_sets,
        price_per_second,
        budget=search.per_second,
        longest_interval=replace(
            longest_interval, begin_s=min(best.value / longest_interval.rate, LONGEST_STEP_S)
        ),
        target=search.target,
        edges=edges,
        effort=search.effort,
        clock=clock,
        values_cache=values_cache,
        say=lambda limit_s: search.say(f"prove that no plan of up to {limit_s:.4g} s takes less"),
    )


def _infeasible_error(search: GoalSearch, longest_interval: TimeInterval | None) -> InfeasibleError:
    """Create the error that no plan fits, or that no plan that fits is within the budget."""
    if search.goal.budget == inf or (
        longest_interval is not None and longest_interval.rate is None
    ):
        return no_plan_fits()
    hint = (
        f"the cheapest plan rents for at least {longest_interval.rate * SECONDS_PER_HOUR:.4g}:"
        " --budget"
        if longest_interval is not None and longest_interval.rate
        else "a larger one"
    )
    return InfeasibleError(
        f"no plan that fits rents for {search.goal.budget:g} dollars an hour", hint=hint
    )
