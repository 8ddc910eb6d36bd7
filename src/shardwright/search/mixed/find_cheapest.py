"""Search of the pipelines of a cluster for cost, energy or a front of time and cost, or for time
within a budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from shardwright.cost.step.dollars_and_joules import SECONDS_PER_HOUR
from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.errors import InfeasibleError
from shardwright.program.problem import Problem, under
from shardwright.progress import Progress
from shardwright.runtime.runtime import Options
from shardwright.search.mixed.bounds.cost_bound import cell_of, cells_of_all_times, earliest_within
from shardwright.search.mixed.bounds.cost_rate_bound import Known
from shardwright.search.mixed.cost_certificate import Goal, valued_certificate
from shardwright.search.mixed.effort import USUAL, Effort
from shardwright.search.mixed.find_fastest import option_rows
from shardwright.search.mixed.pipelines.price_per_second import (
    COST,
    ENERGY,
    PARETO,
    TIME,
    PricePerSecond,
    price_per_second_of,
)
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed.pipelines.search_tasks import SearchTasks
from shardwright.search.mixed.plans.composition_search import (
    compose_by_limits,
    composing_of,
    first_limit,
)
from shardwright.search.mixed.plans.local_changes import improve_best_plans, improve_plan
from shardwright.search.mixed.plans.low_cost_plans import (
    PlanRecord,
    Point,
    compose_low_cost,
    limits_between,
)
from shardwright.search.mixed.plans.pool_grids_by_nodes import OwnGrids
from shardwright.search.mixed.plans.simulated_plans import Standing, simulate_best
from shardwright.search.mixed.plans.single_shape_plans import compose_one_shape
from shardwright.search.mixed.plans.write_plan import MixedPlan
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.frame_terms import StageCosts, first_frames
from shardwright.search.mixed.stages.pinned_values import Choices
from shardwright.search.mixed.stages.stage_tables import why_alone
from shardwright.search.mixed_certificate import Cell
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_limit import Limit, Stops, limit_of
from shardwright.search.search_request import SEARCH_MEMORY

TOLERANCE = 0.03
"""Gap that is good enough."""


@dataclass(kw_only=True)
class GoalSearch:
    """State that all steps of a search for a goal share.

    Args:
        pipeline_sets: of each set of options; none where the model's pipelines are not searched.
        own: grids of each pool.
        known: values of the frames of each set of pipelines, for the bound.
        say: tells what is done.
    """

    goal: Goal
    price_per_second: PricePerSecond
    tolerance: float
    pipeline_sets: dict[Options, PricedPipelines]
    record: PlanRecord
    own: OwnGrids
    known: dict[Options, Known]
    say: Callable[[str], None]

    @property
    def effort(self) -> Effort:
        """Limits on the work of the search."""
        return self.own.effort

    @property
    def per_second(self) -> float:
        """Dollars or joules a second that plans may take."""
        return inf if self.goal.objective == ENERGY else self.goal.budget / SECONDS_PER_HOUR

    @property
    def best(self) -> Point | None:
        """The best plan so far; None = there is none."""
        return self.record.fastest() if self.goal.objective == TIME else self.record.cheapest()

    def target(self, limit_s: float) -> float:
        """The value that is to be shown of plans that end by a limit."""
        least = self.record.least(by=limit_s if self.goal.objective == PARETO else inf)
        fastest = self.record.fastest()
        return (1.0 - self.tolerance) * (least if least < inf or fastest is None else fastest.value)


def find_valued(
    problem: Problem,
    goal: Goal,
    *,
    choices: Choices | None = None,
    tolerance: float = TOLERANCE,
    time_limit_s: float = inf,
    stops: Stops | None = None,
    memory: int = SEARCH_MEMORY,
    effort: Effort = USUAL,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[MixedPlan | None]:
    """The best plan found for a goal among the pipelines of a cluster's pools and each pool's own
    grids, with a bound; a cluster of one kind is one pool. Models whose pipelines are not searched
    (`tables.why_alone`) have the grids alone.

    Args:
        choices, tolerance, time_limit_s, stops, memory, effort, engine: as of `find.find_mixed`.

    Raises:
        UsageError: as `find_mixed`; or a price, or a power limit, is missing. InfeasibleError:
        nothing fits, or nothing within the budget. OutOfTimeError: long past the limit there is no
        plan yet.
    """
    begun = time.monotonic()

    def left_s() -> float:
        return max(begun + time_limit_s - time.monotonic(), 0.0)

    def say(text: str, done: int = 0, total: int = 0) -> None:
        if progress is not None:
            progress(text, done, total)

    own = _own_grids(
        problem,
        goal,
        choices or Choices(),
        engine or Serial(),
        effort=effort,
        seconds=effort.pool_grid_time_share * time_limit_s,
        stops=stops,
        memory=memory,
    )
    own.begin(pools_of(problem.cluster), lambda count: say("plan each kind of device alone", count))
    search = _search(own, goal, tolerance, say, searched=not why_alone(problem))
    standing = own.record.standing
    standing.limit = limit_of(
        effort.composition_time_share * left_s(), stop_at=stops.composed if stops else None
    )
    last = _compose_plans(search) if search.pipeline_sets else None
    if search.best is None:
        raise _nothing(search, last)
    proof = limit_of(left_s(), stop_at=stops.search if stops else None)
    if goal.objective != TIME:
        own.refine(search.target, proof, say)
    best = search.best
    assert best is not None
    cells = _cells(search, last, best, proof) if last is not None else ()
    return GeneralAnswer(
        strategy=best.plan,
        detail=best.mixed,
        certificate=valued_certificate(
            goal,
            own,
            search.pipeline_sets,
            best,
            cells,
            tolerance=tolerance,
            stopped_at=proof.stopped_at,
        ),
        waited=standing.limit.waited,
        search_time_s=time.monotonic() - begun,
    )


def _own_grids(
    problem: Problem,
    goal: Goal,
    choices: Choices,
    engine: Engine,
    *,
    effort: Effort,
    seconds: float,
    stops: Stops | None,
    memory: int,
) -> OwnGrids:
    """Grids of each pool, none searched yet, and no simulated plans."""
    pools, standing = pools_of(problem.cluster), Standing(problem=problem)
    price_per_second = price_per_second_of(problem.cluster, pools, goal.objective)
    if goal.budget < inf:
        price_per_second_of(problem.cluster, pools, COST)
    record = PlanRecord(
        standing=standing, price_per_second=price_per_second, budget=goal.budget, effort=effort
    )
    standing.after = record.add
    return OwnGrids(
        record=record,
        engine=engine,
        choices=choices,
        seconds=seconds / 4,
        memory=memory,
        stops=stops,
        effort=effort,
    )


def _search(
    own: OwnGrids, goal: Goal, tolerance: float, say: Callable[[str], None], *, searched: bool
) -> GoalSearch:
    """The state of a search: the pipelines under the options of each grid."""
    largest = {one.pool.group: one.found for one in reversed(own.ranges)}
    rows = (
        option_rows([largest[group] for group in sorted(largest)], own.choices) if searched else ()
    )
    problem = own.record.standing.problem
    pipeline_sets = {
        options: PricedPipelines.of(
            StageCosts.of(under(problem, options), own.choices), effort=own.effort
        )
        for options in rows
    }
    return GoalSearch(
        goal=goal,
        price_per_second=own.record.price_per_second,
        tolerance=tolerance,
        pipeline_sets=pipeline_sets,
        record=own.record,
        own=own,
        known={options: {} for options in rows},
        say=say,
    )


def _compose_plans(search: GoalSearch) -> Cell:
    """Simulate plans from the fastest to the cheapest; what plans take a second whatever their
    time.

    Raises:
        OutOfTimeError: there is no time for a first plan.
    """
    record = search.record
    search.say("find what plans take at least")
    last = cell_of(
        search.pipeline_sets,
        search.price_per_second,
        LONGEST_STEP_S,
        search.known,
        budget=search.per_second,
        enough=inf,
    )
    if last.empty or last.rate is None:
        return last
    known: dict[Options, Known] = {options: {} for options in search.pipeline_sets}
    timed = search.goal.objective == TIME

    def compose(limit_s: float, *, timed: bool = timed) -> None:
        if not record.ends():
            search.say(f"compose plans of about {limit_s:.4g} s")
            compose_low_cost(record, search.pipeline_sets, limit_s, known=known, timed=timed)

    first = limit = _first(search)
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
    _polish(search)
    return last


def _compose_fast_plans(search: GoalSearch) -> None:
    """Plans that end early, whatever they take: those of a search for time."""
    standing, pipeline_sets = search.record.standing, search.pipeline_sets
    search.say("compose the fastest plans")
    tasks = SearchTasks.of(
        search.own.engine, standing.problem, tuple(pipeline_sets.values()), effort=search.effort
    )
    stage_costs_of = {
        options: pipelines.stage_costs for options, pipelines in pipeline_sets.items()
    }
    for options, pipelines in pipeline_sets.items():
        compose_one_shape(standing, tasks, pipelines, options)
    composing = composing_of(standing, tasks, tuple(pipeline_sets.items()))
    for limits, most in search.effort.rounds[: search.effort.front_rounds]:
        compose_by_limits(standing, tasks, composing, most=limits)
        simulate_best(standing, tasks, stage_costs_of, most=most)
        simulate_best(
            standing, tasks, stage_costs_of, most=most // search.effort.sharding_share, sharded=True
        )
    improve_best_plans(standing, tasks, stage_costs_of)
    standing.waiting = []


def _polish(search: GoalSearch) -> None:
    """Change the best plan, or those of the front, step by step: on the same nodes what ends
    earlier takes less.
    """
    record = search.record
    tasks = SearchTasks.of(
        Serial(),
        record.standing.problem,
        tuple(search.pipeline_sets.values()),
        effort=search.effort,
    )
    for point in record.front() if search.goal.objective == PARETO else (search.best,):
        if point is not None and point.mixed is not None and not record.ends():
            options = point.plan.options
            improve_plan(
                record.standing,
                tasks,
                search.pipeline_sets[options].stage_costs,
                point.seconds,
                point.mixed,
                options,
            )


def _first(search: GoalSearch) -> float:
    """The limit, nearly, at which prices no longer show that no plan, or none within the budget,
    ends by it.
    """
    first = min(
        first_limit(pipelines, frame, most=LONGEST_STEP_S)[0]
        for pipelines in search.pipeline_sets.values()
        for frame in first_frames(pipelines.stage_costs)
    )
    if search.per_second == inf:
        return first
    clock = search.record.standing.limit
    high = first
    while high < LONGEST_STEP_S and not clock.passed():
        cell = cell_of(
            search.pipeline_sets,
            search.price_per_second,
            high,
            search.known,
            budget=search.per_second,
            enough=search.per_second * 1.001,
        )
        if not cell.empty:
            break
        high *= search.effort.cost_limit_ratio
    return high / search.effort.cost_limit_ratio if high > first else first


def _cells(search: GoalSearch, last: Cell, best: Point, clock: Limit) -> tuple[Cell, ...]:
    """Intervals of step times that prove the bound of pipelines, of the best plan and the front."""
    pipeline_sets, price_per_second, known = (
        search.pipeline_sets,
        search.price_per_second,
        search.known,
    )
    if last.empty or not last.rate:
        return (last,)
    if search.goal.objective == TIME:
        search.say("prove that nothing within the budget is faster")
        high = best.seconds * (1.0 - search.tolerance)
        return (
            earliest_within(
                pipeline_sets,
                price_per_second,
                budget=search.per_second,
                high=high,
                effort=search.effort,
                clock=clock,
                known=known,
            ),
        )
    edges = (
        tuple(point.seconds for point in search.record.front())
        if search.goal.objective == PARETO
        else ()
    )
    return cells_of_all_times(
        pipeline_sets,
        price_per_second,
        budget=search.per_second,
        last=replace(last, begin_s=min(best.value / last.rate, LONGEST_STEP_S)),
        target=search.target,
        edges=edges,
        effort=search.effort,
        clock=clock,
        known=known,
        say=lambda limit_s: search.say(f"prove that no plan of up to {limit_s:.4g} s takes less"),
    )


def _nothing(search: GoalSearch, last: Cell | None) -> InfeasibleError:
    """Nothing fits, or nothing that fits is paid by the budget."""
    if search.goal.budget == inf or (last is not None and last.rate is None):
        return InfeasibleError(
            "no plan fits in memory on any pool or on all together",
            hint="more or larger devices, or a smaller model",
        )
    hint = (
        f"the least that any may do is {last.rate * SECONDS_PER_HOUR:.4g}: --budget"
        if last is not None and last.rate
        else "a larger one"
    )
    return InfeasibleError(
        f"no plan that fits rents for {search.goal.budget:g} dollars an hour", hint=hint
    )
