"""Search of the pipelines of a cluster for cost, energy or a front of time and cost, or for time within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from shardwright.cost.model_flops import LONGEST_STEP_S
from shardwright.cost.spending import SECONDS_PER_HOUR
from shardwright.errors import InfeasibleError
from shardwright.program.problem import Problem, under
from shardwright.runtime.runtime import Options
from shardwright.search.engine.protocol import Engine
from shardwright.search.engine.serial import Serial
from shardwright.search.frames import Cell, PoolAlone, Stops
from shardwright.search.limit import Limit, limit_of
from shardwright.search.mixed.alone import Alone, each_alone
from shardwright.search.mixed.choices import Choices
from shardwright.search.mixed.find import ALONE, COMPOSED, ROUNDS, MixedAnswer, option_rows
from shardwright.search.mixed.floors import Known
from shardwright.search.mixed.incumbents import Composing, Standing, first_limit, look_at_one_shape, simulate_best, whole_frame
from shardwright.search.mixed.march import cell_of, earliest_within, march
from shardwright.search.mixed.market import Market
from shardwright.search.mixed.offers import Book, Point, limits_between, look_at
from shardwright.search.mixed.polish import climb, polish
from shardwright.search.mixed.pools import pools_of
from shardwright.search.mixed.tables import require_searched
from shardwright.search.mixed.tariff import COST, ENERGY, PARETO, TIME, Tariff, tariff_of
from shardwright.search.mixed.terms import Ground
from shardwright.search.mixed.valued_part import Goal, valued_certificate
from shardwright.search.request import SEARCH_MEMORY

Progress = Callable[[str, int, int], None]
TOLERANCE = 0.03
"""Gap that is good enough."""
RISE, FINER = 1.15, 1.03
"""Times a limit at which compositions are looked for that the next is, from the fastest to the cheapest; and near the best."""
FAST = 2
"""Rounds of the search for time that a front begins with."""
NEAR = 4
"""Finer limits on each side of the best."""


@dataclass(kw_only=True)
class Search:
    """What all parts of a search share.

    Args:
        known: of the frames of each market, for the bound. say: tells what is done.
    """

    goal: Goal
    tariff: Tariff
    markets: dict[Options, Market]
    book: Book
    known: dict[Options, Known]
    say: Callable[[str], None]

    @property
    def per_second(self) -> float:
        """Units a second of the tariff that plans may take."""
        return inf if self.goal.objective == ENERGY else self.goal.budget / SECONDS_PER_HOUR


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
) -> MixedAnswer:
    """The best plan found for a goal among the pipelines of a cluster's pools, with a bound; a cluster of one kind is one pool.

    Args:
        choices, tolerance, time_limit_s, stops, memory, engine: as of `find.find_mixed`.

    Raises:
        UsageError: as `find_mixed`; or a price, or a power limit, is missing. InfeasibleError: nothing fits, or nothing within the budget.
        OutOfTimeError: long past the limit there is no plan yet.
    """
    require_searched(problem)
    begun = time.monotonic()
    choices, standing = choices or Choices(), Standing(problem=problem)
    pools = pools_of(problem.cluster)
    tariff = tariff_of(problem.cluster, pools, goal.objective)
    if goal.budget < inf:
        tariff_of(problem.cluster, pools, COST)

    def left_s() -> float:
        return max(begun + time_limit_s - time.monotonic(), 0.0)

    def say(text: str, done: int = 0, total: int = 1) -> None:
        if progress is not None:
            progress(text, done, total)

    singles = each_alone(
        standing,
        pools,
        engine or Serial(),
        choices=choices,
        seconds=ALONE * time_limit_s,
        stops=stops,
        memory=memory,
        done=lambda count: say("plan each kind of device alone", count, len(pools)),
    )
    search = _search(problem, goal, tariff, standing, option_rows(singles, choices), choices, say)
    standing.limit = limit_of(COMPOSED * left_s(), stop_at=stops.composed if stops else None)
    last = _look(search)
    proof = limit_of(left_s(), stop_at=stops.proven if stops else None)
    best = search.book.fastest() if goal.objective == TIME else search.book.cheapest()
    assert best is not None
    cells = _cells(search, last, best, tolerance, proof)
    certificate = valued_certificate(
        search.goal, search.book, search.markets, best, cells, _told(singles), choices, tolerance=tolerance, stopped_at=proof.stopped_at
    )
    return MixedAnswer(
        plan=best.plan,
        mixed=best.mixed,
        step_time_s=best.seconds,
        certificate=certificate,
        waited=standing.limit.waited,
        search_time_s=time.monotonic() - begun,
    )


def _told(singles: list[Alone]) -> tuple[PoolAlone, ...]:
    return tuple(one.told(None) for one in singles)


def _search(
    problem: Problem,
    goal: Goal,
    tariff: Tariff,
    standing: Standing,
    rows: tuple[Options, ...],
    choices: Choices,
    say: Callable[[str], None],
) -> Search:
    """Every set of options with its market, and an empty book of plans."""
    markets = {options: Market.of(Ground.of(under(problem, options), choices)) for options in rows}
    book = Book(standing=standing, tariff=tariff, budget=goal.budget)
    standing.after = book.note
    return Search(goal=goal, tariff=tariff, markets=markets, book=book, known={options: {} for options in rows}, say=say)


def _look(search: Search) -> Cell:
    """Simulate plans from the fastest to the cheapest; what plans take a second whatever their time.

    Raises:
        InfeasibleError: nothing fits, or nothing within the budget. OutOfTimeError: there is no time for a first plan.
    """
    book = search.book
    search.say("find what plans take at least")
    last = cell_of(search.markets, search.tariff, LONGEST_STEP_S, search.known, budget=search.per_second, enough=inf)
    if last.rate is None:
        raise InfeasibleError("no plan fits in memory on any pool or on all together", hint="more or larger devices, or a smaller model")
    if last.empty:
        raise _too_dear(search, last.rate)
    known: dict[Options, Known] = {options: {} for options in search.markets}

    def look(limit_s: float, *, timed: bool = False) -> None:
        search.say(f"compose plans of about {limit_s:.4g} s")
        look_at(book, search.markets, limit_s, known=known, timed=timed)

    first = limit = _first(search)
    if search.goal.objective == PARETO:
        _look_fast(search)
    while not book.points:
        if limit > LONGEST_STEP_S:
            raise _too_dear(search, last.rate)
        look(limit, timed=True)
        limit *= RISE
    timed = search.goal.objective == TIME
    top = limit if timed else min(book.least() / last.rate, LONGEST_STEP_S)
    for limit in limits_between(first, max(top, first), rise=FINER if timed else RISE):
        if not book.ends():
            look(limit, timed=timed)
    best = book.cheapest()
    assert best is not None
    for step in () if timed else range(-NEAR, NEAR + 1):
        if not book.ends():
            look(best.seconds * FINER**step)
    _polish(search)
    return last


def _look_fast(search: Search) -> None:
    """Plans that end early, whatever they take: those of a search for time."""
    standing, markets = search.book.standing, search.markets
    search.say("compose the fastest plans")
    for options, market in markets.items():
        look_at_one_shape(standing, market, options)
    composing = [Composing.of(standing, market, options) for options, market in markets.items()]
    for limits, most in ROUNDS[:FAST]:
        for one in composing:
            one.look(standing, most=limits)
        simulate_best(standing, markets, most=most)
    polish(standing, {options: market.ground for options, market in markets.items()})
    standing.waiting = []


def _polish(search: Search) -> None:
    """Change the best plan, or some of the front, step by step: on the same nodes what ends earlier takes less."""
    book = search.book
    best = book.fastest() if search.goal.objective == TIME else book.cheapest()
    for point in book.front() if search.goal.objective == PARETO else (best,):
        if point is not None and not book.ends():
            options = point.plan.options
            climb(book.standing, search.markets[options].ground, point.seconds, point.mixed, options)


def _first(search: Search) -> float:
    """The limit, nearly, at which prices no longer show that no plan, or none within the budget, ends by it."""
    first = min(first_limit(market, whole_frame(market), most=LONGEST_STEP_S)[0] for market in search.markets.values())
    if search.per_second == inf:
        return first
    clock = search.book.standing.limit
    high = first
    while high < LONGEST_STEP_S and not clock.passed():
        cell = cell_of(search.markets, search.tariff, high, search.known, budget=search.per_second, enough=search.per_second * 1.001)
        if not cell.empty:
            break
        high *= RISE
    return high / RISE if high > first else first


def _cells(search: Search, last: Cell, best: Point, tolerance: float, clock: Limit) -> tuple[Cell, ...]:
    """What shows the bound of the best plan found, and of the front."""
    book, share = search.book, 1.0 - tolerance
    markets, tariff, known = search.markets, search.tariff, search.known
    if search.goal.objective == TIME:
        search.say("prove that nothing within the budget is faster")
        return (earliest_within(markets, tariff, budget=search.per_second, high=best.seconds * share, clock=clock, known=known),)
    assert last.rate
    begin = min(best.value / last.rate, LONGEST_STEP_S)
    front = search.goal.objective == PARETO

    def target(limit_s: float) -> float:
        least = book.least(by=limit_s) if front else best.value
        return share * least

    return march(
        markets,
        tariff,
        budget=search.per_second,
        last=replace(last, begin_s=begin),
        target=target,
        edges=tuple(point.seconds for point in book.front()) if front else (),
        clock=clock,
        known=known,
        say=lambda limit_s: search.say(f"prove that no plan of up to {limit_s:.4g} s takes less"),
    )


def _too_dear(search: Search, rate: float) -> InfeasibleError:
    hourly = rate * SECONDS_PER_HOUR
    return InfeasibleError(
        f"no plan that fits rents for {search.goal.budget:g} dollars an hour", hint=f"the least that any may do is {hourly:.4g}: --budget"
    )
