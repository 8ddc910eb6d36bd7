"""Search for the order of a pipeline's actions together with the memory option of each chunk,
under every rank's memory limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import ceil

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import InfeasibleError
from shardwright.lazy_dataclass import dataclass
from shardwright.search.orders.find_order import find_order, found_order
from shardwright.search.orders.found_order import FoundOrder, codes_of, one_at_a_time, weigh
from shardwright.search.orders.memory_knapsack import Choice, Offers, choose_for, fitting, offers_of
from shardwright.search.orders.memory_local_search import climb_choices
from shardwright.search.orders.memory_option import (
    Options,
    applied,
    check_options,
    least,
    with_options,
)
from shardwright.search.orders.named_schedules import named_tables
from shardwright.search.orders.order_and_memory_bound import NEVER, memory_bound
from shardwright.search.orders.order_bounds import order_bounds, trip
from shardwright.search.orders.order_problem import OrderProblem, flat

DEPTHS = (0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 1.75, 2.0, 3.0, 100.0)
"""Microbatches in flight that a start makes room for, in what a pipeline without waits has in
flight."""
SKETCHED = 8
"""Choices that an order is sketched for."""
REFINED = 3
"""Choices that an order is searched for, each again as long as order and choice improve each other.
"""
SKETCH = 0.05
"""Share of an order search's random changes that a sketch takes."""

CLIMB_ACTIONS = 6_000_000
"""Actions that changes of choice and policy are tried on in all."""
CLIMB_TRIES = 1000
"""Changes tried from one choice at most."""
CLIMBED = 2
"""Choices that random changes begin from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWithMemory:
    """An order with the memory option of each chunk, and the proven lower bound of both together.

    Args:
        order: of the problem with the choice made; its own `lower_bound` holds for this choice
            alone.
        choice: option of each chunk, lanes numbered through.
        problem: with the choice made.
        lower_bound: no order of any choice ends earlier.
    """

    order: FoundOrder
    choice: Choice
    problem: OrderProblem
    lower_bound: int


def order_with_memory(
    problem: OrderProblem,
    options: Options,
    *,
    starts: Sequence[Sequence[int]] = (),
    effort: float = 1.0,
    seed: int = 0,
) -> FoundWithMemory:
    """The best order and memory options found, with a lower bound over all of both.

    Never worse than a named schedule that fits with one of `starts`, nor, where all chunks have as
    many options, with the same option everywhere. Given an order, its microbatches in flight are
    known and the best options of each rank are a small knapsack; given options, `find_order`
    orders. The two take turns from several starts: named schedules, the options that the bound
    likes, and the cheapest options that leave room for some depth of the pipeline. The same
    arguments give the same answer.

    Args:
        problem: its `held` and `stash` are not used: options say what is kept. Its `limit` is of
            everything, `working` included.
        options: of each chunk, lanes numbered through.
        starts: choices to begin from too, an option of each chunk.
        effort: as in `find_order`.
        seed: of random changes.

    Raises:
        UsageError: a chunk without options, numbers that make no sense. InfeasibleError: no choice
        fits.

    Source: AdaPipe (Sun et al. 2024, section 5) chooses recompute for 1F1B's fixed counts in
    flight; here the order is found with it.
    """
    check_options(problem, options)
    first = memory_bound(problem, options)
    search = _Search(problem, options, effort=effort, seed=seed, bound=first.value)
    search.begin(_starts(options, starts))
    search.sketch([first.best, *_deep(problem, options, search.offers)])
    search.refine(REFINED)
    search.climb()
    search.refine(1)
    choice = search.best()
    if choice is None:
        raise InfeasibleError(
            "no choice of memory options fits",
            hint="offer options that keep less or raise the limit",
        )
    order, value = search.found[choice], first.value
    if order.makespan > value:
        value = memory_bound(problem, options, below=order.makespan).value
    return FoundWithMemory(
        order=order, choice=choice, problem=applied(problem, options, choice), lower_bound=value
    )


class _Search:
    """Choices of memory options with the best order known of each."""

    def __init__(
        self, problem: OrderProblem, options: Options, *, effort: float, seed: int, bound: int
    ) -> None:
        self.problem, self.options, self.effort, self.seed, self.bound = (
            problem,
            options,
            effort,
            seed,
            bound,
        )
        self.offers = offers_of(problem, options)
        self.found: dict[Choice, FoundOrder] = {}
        self.refined: set[Choice] = set()

    def best(self, tried: Set[Choice] = frozenset()) -> Choice | None:
        """The choice with the least makespan that is not among `tried`; the smallest of equals."""
        left = [
            (order.makespan, choice) for choice, order in self.found.items() if choice not in tried
        ]
        return min(left)[1] if left else None

    @property
    def least(self) -> int:
        """The least makespan known."""
        return min((order.makespan for order in self.found.values()), default=NEVER)

    def keep(self, choice: Choice, order: FoundOrder) -> None:
        """Keep an order of a choice that fits."""
        if choice not in self.found or order.makespan < self.found[choice].makespan:
            self.found[choice] = order

    def rechoose(self, codes: IntArray, row_start: IntArray, *, method: str) -> Choice | None:
        """Keep the best choice for a given order."""
        chosen = choose_for(self.problem, self.offers, codes, row_start)
        if chosen is None:
            return None
        self.weigh(chosen[1], codes, row_start, method=method)
        return chosen[1]

    def weigh(self, choice: Choice, codes: IntArray, row_start: IntArray, *, method: str) -> None:
        """Keep an order if it fits with a choice."""
        made = applied(self.problem, self.options, choice)
        order = weigh(made, flat(made)[0], codes, row_start, method=method)
        self.keep(choice, found_order(made, order, lower_bound=order_bounds(made).best))

    def order(self, choice: Choice, *, effort: float) -> Choice:
        """Keep the order found for `choice`, and return the best choice for that order."""
        order = find_order(
            applied(self.problem, self.options, choice), effort=effort, seed=self.seed
        )
        self.keep(choice, order)
        return self.rechoose(*codes_of(self.problem, order.table), method=order.method) or choice

    def begin(self, choices: Sequence[Choice]) -> None:
        """Keep the named schedules and one microbatch at a time, each with its best choice, and
        the given choices with the named schedules that fit.
        """
        for name, table in named_tables(self.problem):
            self.rechoose(*codes_of(self.problem, table), method=name)
        self.rechoose(*one_at_a_time(self.problem), method="one at a time")
        for choice in choices:
            try:
                self.order(choice, effort=0.0)
            except InfeasibleError:
                continue

    def sketch(self, choices: Sequence[Choice]) -> None:
        """Orders of the choices with the least bounds, by a short search."""
        bounds = []
        for choice in dict.fromkeys(choices):
            try:
                bounds.append(
                    (order_bounds(applied(self.problem, self.options, choice)).best, choice)
                )
            except InfeasibleError:
                continue
        for bound, choice in sorted(bounds)[:SKETCHED]:
            if self.bound < self.least and bound < self.least:
                self.order(choice, effort=SKETCH * self.effort)

    def climb(self) -> None:
        """Random changes of choice and policy from the best choices."""
        actions = 3 * len(self.options) * self.problem.microbatches * CLIMBED
        tries = int(self.effort * min(CLIMB_ACTIONS // actions, CLIMB_TRIES))
        random = np.random.default_rng(self.seed)
        tried: set[Choice] = set()
        for _ in range(CLIMBED):
            choice = self.best(tried)
            if choice is None or self.least <= self.bound:
                break
            tried.add(choice)
            made = climb_choices(
                self.problem,
                self.options,
                self.offers,
                choice,
                goal=self.bound,
                tries=tries,
                random=random,
            )
            if made is not None:
                self.weigh(*made, method="list schedule")
                self.rechoose(*made[1:], method="list schedule")

    def refine(self, choices: int) -> None:
        """Full searches from the best choices; order and choice take turns until a choice comes
        back.
        """
        tried = self.refined
        for _ in range(choices):
            choice = self.best(tried)
            while choice is not None and choice not in tried and self.bound < self.least:
                tried.add(choice)
                choice = self.order(choice, effort=self.effort)


def _starts(options: Options, starts: Sequence[Sequence[int]]) -> list[Choice]:
    """The given choices, and each with the same option everywhere."""
    count = len(options[0])
    same = (
        [(place,) * len(options) for place in range(count)]
        if all(len(of) == count for of in options)
        else []
    )
    return list(dict.fromkeys([*(tuple(choice) for choice in starts), *same]))


def _deep(problem: OrderProblem, options: Options, offers: Sequence[Offers]) -> Iterator[Choice]:
    """For each depth the cheapest options with which a rank keeps the microbatches of a pipeline
    without waits, or as many as fit.
    """
    quick = with_options(problem, [least(of) for of in options])
    period = max(int(quick.work().max()) / problem.microbatches, 1.0)
    flight = trip(quick)
    for depth in DEPTHS:
        choice = [0] * len(options)
        for mine, limit in zip(offers, problem.limit.tolist(), strict=True):
            numbers = np.empty(0, np.int64)
            share = depth
            while not len(numbers):
                most = [
                    max(1, min(problem.microbatches, ceil(share * time / period - 1e-9)))
                    for time in flight[mine.chunks].tolist()
                ]
                numbers = fitting(mine, np.array([most + [0] * len(most)]), limit)
                if max(most) == 1:
                    break
                share *= 0.9
            if not len(numbers):
                break
            for c, place in zip(
                mine.chunks.tolist(), mine.places[numbers[0]].tolist(), strict=True
            ):
                choice[c] = place
        else:
            yield tuple(choice)
