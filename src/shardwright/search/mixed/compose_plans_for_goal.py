"""Composition of plans for a goal, such as cost or energy, from the fastest to the cheapest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from shardwright.cost.step.dollars_and_joules import SECONDS_PER_HOUR
from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.bounds.cost_bound import interval_up_to
from shardwright.search.mixed.bounds.dollars_or_joules_per_second_bound import ValuesCache
from shardwright.search.mixed.pipelines.pool_cost_rates import (
    ENERGY,
    PARETO,
    TIME,
    Goal,
    PricePerSecond,
)
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.pipelines.run_tasks_on_engine import SearchTasks
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
from shardwright.search.mixed.plans.plan_search_state import simulate_best
from shardwright.search.mixed.plans.plans_of_equal_replicas import compose_one_shape
from shardwright.search.mixed.plans.search_grids_of_device_pool_by_node_ranges import PoolGrids
from shardwright.search.mixed.price_pipelines_and_describe_space import stage_costs_by_options
from shardwright.search.mixed.search_effort_limits import Effort
from shardwright.search.mixed.stages.subspaces_and_stage_costs import root_subspaces
from shardwright.search.mixed_cluster_certificate import TimeInterval
from shardwright.search.parallel.serial_engine import Serial


@dataclass(kw_only=True)
class GoalSearch:
    """State that all steps of a search for a goal share.

    Args:
        pipeline_sets: pipelines of each set of options; empty where the model's pipelines are not
            searched.
        own: grids of each pool.
        values_cache: shape values of the subspaces of each set of pipelines, for the bound.
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
        """Upper limit on the dollars a second of a plan; infinity = no budget, as for energy."""
        return inf if self.goal.objective == ENERGY else self.goal.budget / SECONDS_PER_HOUR

    @property
    def best(self) -> ValuedPlan | None:
        """Best plan so far: the fastest if the goal is time, else the cheapest; None = no plan."""
        return self.record.fastest() if self.goal.objective == TIME else self.record.cheapest()

    def target(self, limit_s: float) -> float:
        """(1 - tolerance) x least dollars or joules of a step so far (Pareto: by `limit_s`)."""
        least = self.record.least(limit_s=limit_s if self.goal.objective == PARETO else inf)
        fastest = self.record.fastest()
        return (1.0 - self.tolerance) * (least if least < inf or fastest is None else fastest.value)


def compose_plans(search: GoalSearch) -> TimeInterval:
    """Compose and simulate plans of all times; return the bound on the cost rate of any plan.

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
    """Smallest step-time limit, in seconds, that dual prices and budget leave open, to a ratio.

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
