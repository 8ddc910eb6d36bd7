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
from shardwright.search.answer import GeneralAnswer
from shardwright.search.engine.protocol import Engine
from shardwright.search.engine.serial import Serial
from shardwright.search.frames import Cell
from shardwright.search.limit import Limit, Stops, limit_of
from shardwright.search.mixed.bounds.cost_bound import cell_of, earliest_within, march
from shardwright.search.mixed.bounds.cost_rate_bound import Known
from shardwright.search.mixed.cost_certificate import Goal, valued_certificate
from shardwright.search.mixed.find_fastest import ALONE, COMPOSED, ROUNDS, option_rows
from shardwright.search.mixed.pipelines.price_per_second import (
    COST,
    ENERGY,
    PARETO,
    TIME,
    Tariff,
    tariff_of,
)
from shardwright.search.mixed.pipelines.priced_pipelines import Market
from shardwright.search.mixed.pipelines.search_tasks import Bench
from shardwright.search.mixed.plans.composition_search import (
    OTHERS,
    composing_of,
    first_limit,
    look_at_limits,
)
from shardwright.search.mixed.plans.local_changes import climb, polish
from shardwright.search.mixed.plans.low_cost_plans import Book, Point, limits_between, look_at
from shardwright.search.mixed.plans.pool_grids_by_nodes import OwnGrids
from shardwright.search.mixed.plans.simulated_plans import Standing, simulate_best
from shardwright.search.mixed.plans.single_shape_plans import look_at_one_shape
from shardwright.search.mixed.plans.write_plan import MixedPlan
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.frame_terms import Ground, first_frames
from shardwright.search.mixed.stages.pinned_values import Choices
from shardwright.search.mixed.stages.stage_tables import why_alone
from shardwright.search.request import SEARCH_MEMORY

TOLERANCE = 0.03
"""Gap that is good enough."""
RISE, FINER = 1.15, 1.03
"""Times a limit at which compositions are looked for that the next is, from the fastest to the
cheapest; and near the best."""
FAST = 2
"""Rounds of the search for time that a front begins with."""
NEAR = 4
"""Finer limits on each side of the best."""


@dataclass(kw_only=True)
class GoalSearch:
    """What all parts of a search share.

    Args:
        markets: of each set of options; none where the model's pipelines are not searched.
        own: grids of each pool.
        known: of the frames of each market, for the bound.
        say: tells what is done.
    """

    goal: Goal
    tariff: Tariff
    tolerance: float
    markets: dict[Options, Market]
    book: Book
    own: OwnGrids
    known: dict[Options, Known]
    say: Callable[[str], None]

    @property
    def per_second(self) -> float:
        """Units a second of the tariff that plans may take."""
        return inf if self.goal.objective == ENERGY else self.goal.budget / SECONDS_PER_HOUR

    @property
    def best(self) -> Point | None:
        """The best plan so far; None = there is none."""
        return self.book.fastest() if self.goal.objective == TIME else self.book.cheapest()

    def target(self, limit_s: float) -> float:
        """The value that is to be shown of plans that end by a limit."""
        least = self.book.least(by=limit_s if self.goal.objective == PARETO else inf)
        fastest = self.book.fastest()
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
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> GeneralAnswer[MixedPlan | None]:
    """The best plan found for a goal among the pipelines of a cluster's pools and each pool's own
    grids, with a bound; a cluster of one kind is one pool. Models whose pipelines are not searched
    (`tables.why_alone`) have the grids alone.

    Args:
        choices, tolerance, time_limit_s, stops, memory, engine: as of `find.find_mixed`.

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
        seconds=ALONE * time_limit_s,
        stops=stops,
        memory=memory,
    )
    own.begin(pools_of(problem.cluster), lambda count: say("plan each kind of device alone", count))
    search = _search(own, goal, tolerance, say, searched=not why_alone(problem))
    standing = own.book.standing
    standing.limit = limit_of(COMPOSED * left_s(), stop_at=stops.composed if stops else None)
    last = _look(search) if search.markets else None
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
            goal, own, search.markets, best, cells, tolerance=tolerance, stopped_at=proof.stopped_at
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
    seconds: float,
    stops: Stops | None,
    memory: int,
) -> OwnGrids:
    """Grids of each pool, none searched yet, and a book without plans."""
    pools, standing = pools_of(problem.cluster), Standing(problem=problem)
    tariff = tariff_of(problem.cluster, pools, goal.objective)
    if goal.budget < inf:
        tariff_of(problem.cluster, pools, COST)
    book = Book(standing=standing, tariff=tariff, budget=goal.budget)
    standing.after = book.note
    return OwnGrids(
        book=book, engine=engine, choices=choices, seconds=seconds / 4, memory=memory, stops=stops
    )


def _search(
    own: OwnGrids, goal: Goal, tolerance: float, say: Callable[[str], None], *, searched: bool
) -> GoalSearch:
    """Every set of options of the grids with its market."""
    largest = {one.pool.group: one.found for one in reversed(own.ranges)}
    rows = (
        option_rows([largest[group] for group in sorted(largest)], own.choices) if searched else ()
    )
    problem = own.book.standing.problem
    markets = {
        options: Market.of(Ground.of(under(problem, options), own.choices)) for options in rows
    }
    return GoalSearch(
        goal=goal,
        tariff=own.book.tariff,
        tolerance=tolerance,
        markets=markets,
        book=own.book,
        own=own,
        known={options: {} for options in rows},
        say=say,
    )


def _look(search: GoalSearch) -> Cell:
    """Simulate plans from the fastest to the cheapest; what plans take a second whatever their
    time.

    Raises:
        OutOfTimeError: there is no time for a first plan.
    """
    book = search.book
    search.say("find what plans take at least")
    last = cell_of(
        search.markets,
        search.tariff,
        LONGEST_STEP_S,
        search.known,
        budget=search.per_second,
        enough=inf,
    )
    if last.empty or last.rate is None:
        return last
    known: dict[Options, Known] = {options: {} for options in search.markets}
    timed = search.goal.objective == TIME

    def look(limit_s: float, *, timed: bool = timed) -> None:
        if not book.ends():
            search.say(f"compose plans of about {limit_s:.4g} s")
            look_at(book, search.markets, limit_s, known=known, timed=timed)

    first = limit = _first(search)
    if search.goal.objective == PARETO:
        _look_fast(search)
    while not book.points and limit <= LONGEST_STEP_S:
        look(limit, timed=True)
        limit *= RISE
    if not book.points:
        return last
    top = (
        min(first * RISE, book.points[0].seconds)
        if timed
        else min(book.least() / last.rate, LONGEST_STEP_S)
    )
    for limit in limits_between(first, max(top, first), rise=FINER if timed else RISE):
        look(limit)
    best = book.cheapest()
    if best is not None and not timed:
        for step in range(-NEAR, NEAR + 1):
            look(best.seconds * FINER**step)
    _polish(search)
    return last


def _look_fast(search: GoalSearch) -> None:
    """Plans that end early, whatever they take: those of a search for time."""
    standing, markets = search.book.standing, search.markets
    search.say("compose the fastest plans")
    bench = Bench.of(search.own.engine, standing.problem, tuple(markets.values()))
    grounds = {options: market.ground for options, market in markets.items()}
    for options, market in markets.items():
        look_at_one_shape(standing, bench, market, options)
    composing = composing_of(standing, bench, tuple(markets.items()))
    for limits, most in ROUNDS[:FAST]:
        look_at_limits(standing, bench, composing, most=limits)
        simulate_best(standing, bench, grounds, most=most)
        simulate_best(standing, bench, grounds, most=most // OTHERS, sharded=True)
    polish(standing, bench, grounds)
    standing.waiting = []


def _polish(search: GoalSearch) -> None:
    """Change the best plan, or those of the front, step by step: on the same nodes what ends
    earlier takes less.
    """
    book = search.book
    bench = Bench.of(Serial(), book.standing.problem, tuple(search.markets.values()))
    for point in book.front() if search.goal.objective == PARETO else (search.best,):
        if point is not None and point.mixed is not None and not book.ends():
            options = point.plan.options
            climb(
                book.standing,
                bench,
                search.markets[options].ground,
                point.seconds,
                point.mixed,
                options,
            )


def _first(search: GoalSearch) -> float:
    """The limit, nearly, at which prices no longer show that no plan, or none within the budget,
    ends by it.
    """
    first = min(
        first_limit(market, frame, most=LONGEST_STEP_S)[0]
        for market in search.markets.values()
        for frame in first_frames(market.ground)
    )
    if search.per_second == inf:
        return first
    clock = search.book.standing.limit
    high = first
    while high < LONGEST_STEP_S and not clock.passed():
        cell = cell_of(
            search.markets,
            search.tariff,
            high,
            search.known,
            budget=search.per_second,
            enough=search.per_second * 1.001,
        )
        if not cell.empty:
            break
        high *= RISE
    return high / RISE if high > first else first


def _cells(search: GoalSearch, last: Cell, best: Point, clock: Limit) -> tuple[Cell, ...]:
    """What shows the bound of pipelines by the best plan found, and by the front."""
    markets, tariff, known = search.markets, search.tariff, search.known
    if last.empty or not last.rate:
        return (last,)
    if search.goal.objective == TIME:
        search.say("prove that nothing within the budget is faster")
        high = best.seconds * (1.0 - search.tolerance)
        return (
            earliest_within(
                markets, tariff, budget=search.per_second, high=high, clock=clock, known=known
            ),
        )
    edges = (
        tuple(point.seconds for point in search.book.front())
        if search.goal.objective == PARETO
        else ()
    )
    return march(
        markets,
        tariff,
        budget=search.per_second,
        last=replace(last, begin_s=min(best.value / last.rate, LONGEST_STEP_S)),
        target=search.target,
        edges=edges,
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
