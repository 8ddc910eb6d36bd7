"""Search for the cheapest plan, least energy, a time-cost front, or the fastest in a budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf

from shardwright.cost.step.dollars_and_joules import SECONDS_PER_HOUR
from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.errors import InfeasibleError
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.mixed.bounds.cost_bound import earliest_within, intervals_of_all_times
from shardwright.search.mixed.compose_plans_for_goal import GoalSearch, compose_plans
from shardwright.search.mixed.cost_certificate import build_cost_certificate
from shardwright.search.mixed.pipelines.pool_cost_rates import (
    COST,
    PARETO,
    TIME,
    Goal,
    price_per_second_of,
)
from shardwright.search.mixed.plans.best_grid_on_each_pool_alone import option_rows
from shardwright.search.mixed.plans.low_cost_plans import PlanRecord, ValuedPlan
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import MixedPlan
from shardwright.search.mixed.plans.plan_search_state import SearchState
from shardwright.search.mixed.plans.search_grids_of_device_pool_by_node_ranges import PoolGrids
from shardwright.search.mixed.price_pipelines_and_describe_space import (
    TOLERANCE,
    no_plan_fits,
    price_pipelines,
)
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.stage_cost_table import why_no_pipelines
from shardwright.search.mixed_cluster_certificate import TimeInterval
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.search.search_time_limit import Limit, Stops, limit_of


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
    one pool. Models whose pipelines are not searched (`stage_cost_table.why_no_pipelines`) have the
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
    last = compose_plans(search) if search.pipeline_sets else None
    if search.best is None:
        raise _infeasible_error(search, last)
    proof = limit_of(left_s(), stop_at=stops.search if stops else None)
    if goal.objective != TIME:
        own.split_weak_device_ranges(search.target, proof, say)
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


def _proof_intervals(
    search: GoalSearch, longest_interval: TimeInterval, best: ValuedPlan, clock: Limit
) -> tuple[TimeInterval, ...]:
    """Bound the cost rate of every step time in intervals, which proves the best plan or front."""
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
