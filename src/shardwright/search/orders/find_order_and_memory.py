"""Search for an action order together with the memory option of each chunk.

Under every rank's memory limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import ceil

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.orders.best_memory_options_of_given_order import (
    Choice,
    OptionCombinations,
    best_choice_for_order,
    fitting_combinations,
    option_combinations,
)
from shardwright.search.orders.chunk_memory_options import (
    MemoryOptions,
    check_options,
    least_option,
    with_chosen_options,
    with_options,
)
from shardwright.search.orders.find_order import find_order, make_found_order
from shardwright.search.orders.found_order import (
    FoundOrder,
    codes_of_table,
    evaluate_order,
    one_microbatch_at_a_time,
)
from shardwright.search.orders.list_scheduling import NEVER
from shardwright.search.orders.local_search_of_memory_options import climb_choices
from shardwright.search.orders.makespan_bound_over_memory_options import makespan_bound
from shardwright.search.orders.makespan_lower_bounds import order_bounds, round_trip_times
from shardwright.search.orders.named_schedules_with_same_placement import named_tables
from shardwright.search.orders.order_problem import OrderProblem, problem_arrays

DEPTHS = (0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 1.75, 2.0, 3.0, 100.0)
"""Microbatches in flight that a start makes room for, as multiples of those without waits."""
SKETCHED = 8
"""Choices of options that get a short order search."""
REFINED = 3
"""Choices that get full order searches, as long as order and choice improve each other."""
SKETCH = 0.05
"""Share of a full order search's random changes in a short one."""

CLIMB_ACTIONS = 6_000_000
"""Total number of actions scheduled in changes of choice and policy."""
CLIMB_TRIES = 1000
"""Most changes tried from one choice."""
CLIMBED = 2
"""Choices from which random changes begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOrderWithMemory:
    """An order with the memory option of each chunk, and a lower bound over both together.

    Args:
        order: the order under the choice; its own `lower_bound` holds for this choice alone.
        choice: option of each chunk, in the order of lanes and chunks.
        problem: the order problem under the choice.
        lower_bound: lower bound on the makespan of every order of every choice.
    """

    order: FoundOrder
    choice: Choice
    problem: OrderProblem
    lower_bound: int


def find_order_with_memory(
    problem: OrderProblem,
    options: MemoryOptions,
    *,
    starts: Sequence[Sequence[int]] = (),
    effort: float = 1.0,
    seed: int = 0,
) -> FoundOrderWithMemory:
    """Find the best order and memory options together, with a lower bound over all of both.

    Never worse than a named schedule that fits with one of `starts`, nor, where all chunks have as
    many options, with the same option everywhere. Given an order, its microbatches in flight are
    known and the best options of each rank are a small knapsack; given options, `find_order`
    finds an order. The two alternate from several starts: named schedules, the options with the
    least bound, and the cheapest options that leave room for some depth of the pipeline. The same
    arguments give the same answer.

    Args:
        problem: order problem; its `held` and `stash` are replaced by those of the options. Its
            `limit` includes `working`.
        options: options of each chunk, in the order of lanes and chunks.
        starts: additional choices to begin from, an option of each chunk.
        effort: as in `find_order`.
        seed: seed of the random changes.

    Raises:
        UsageError: a chunk without options, or invalid numbers. InfeasibleError: no choice fits.

    Source: AdaPipe (Sun et al. 2024, section 5) chooses recompute for 1F1B's fixed counts in
    flight; here the order is found with it.
    """
    check_options(problem, options)
    first = makespan_bound(problem, options)
    search = _ChoiceSearch(problem, options, effort=effort, seed=seed, bound=first.value)
    search.keep_named_schedules(_start_choices(options, starts))
    search.sketch([first.best, *_choices_by_depth(problem, options, search.offers)])
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
        value = makespan_bound(problem, options, below=order.makespan).value
    return FoundOrderWithMemory(
        order=order,
        choice=choice,
        problem=with_chosen_options(problem, options, choice),
        lower_bound=value,
    )


class _ChoiceSearch:
    """State of the search: choices of memory options with the best order known of each."""

    def __init__(
        self, problem: OrderProblem, options: MemoryOptions, *, effort: float, seed: int, bound: int
    ) -> None:
        self.problem, self.options, self.effort, self.seed, self.bound = (
            problem,
            options,
            effort,
            seed,
            bound,
        )
        self.offers = option_combinations(problem, options)
        self.found: dict[Choice, FoundOrder] = {}
        self.refined: set[Choice] = set()

    def best(self, tried: Set[Choice] = frozenset()) -> Choice | None:
        """The untried choice with the least makespan, the smallest of equals; None if none left."""
        left = [
            (order.makespan, choice) for choice, order in self.found.items() if choice not in tried
        ]
        return min(left)[1] if left else None

    @property
    def least(self) -> int:
        """Least makespan of all known orders; NEVER if none is known."""
        return min((order.makespan for order in self.found.values()), default=NEVER)

    def keep(self, choice: Choice, order: FoundOrder) -> None:
        """Keep the order of a choice if it is the choice's best."""
        if choice not in self.found or order.makespan < self.found[choice].makespan:
            self.found[choice] = order

    def choose_for_order(
        self, codes: IntArray, row_start: IntArray, *, method: str
    ) -> Choice | None:
        """Find the best choice for a given order, keep and return the choice; None = none fits."""
        chosen = best_choice_for_order(self.problem, self.offers, codes, row_start)
        if chosen is None:
            return None
        self.keep_codes(chosen[1], codes, row_start, method=method)
        return chosen[1]

    def keep_codes(
        self, choice: Choice, codes: IntArray, row_start: IntArray, *, method: str
    ) -> None:
        """Evaluate an order under a choice that it fits, and keep it."""
        made = with_chosen_options(self.problem, self.options, choice)
        order = evaluate_order(made, problem_arrays(made)[0], codes, row_start, method=method)
        self.keep(choice, make_found_order(made, order, lower_bound=order_bounds(made).best))

    def search_order(self, choice: Choice, *, effort: float) -> Choice:
        """Search an order for a choice and keep it; return the best choice for that order."""
        order = find_order(
            with_chosen_options(self.problem, self.options, choice), effort=effort, seed=self.seed
        )
        self.keep(choice, order)
        return (
            self.choose_for_order(*codes_of_table(self.problem, order.table), method=order.method)
            or choice
        )

    def keep_named_schedules(self, choices: Sequence[Choice]) -> None:
        """Keep the named schedules, each with its best choice, and schedules of the given choices.

        One microbatch at a time counts as a schedule.
        """
        for name, table in named_tables(self.problem):
            self.choose_for_order(*codes_of_table(self.problem, table), method=name)
        self.choose_for_order(*one_microbatch_at_a_time(self.problem), method="one at a time")
        for choice in choices:
            try:
                self.search_order(choice, effort=0.0)
            except InfeasibleError:
                continue

    def sketch(self, choices: Sequence[Choice]) -> None:
        """Run short order searches for the choices with the least bounds."""
        bounds = []
        for choice in dict.fromkeys(choices):
            try:
                bounds.append(
                    (
                        order_bounds(with_chosen_options(self.problem, self.options, choice)).best,
                        choice,
                    )
                )
            except InfeasibleError:
                continue
        for bound, choice in sorted(bounds)[:SKETCHED]:
            if self.bound < self.least and bound < self.least:
                self.search_order(choice, effort=SKETCH * self.effort)

    def climb(self) -> None:
        """Improve the best choices by random changes of choice and scheduling policy."""
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
                self.keep_codes(*made, method="list schedule")
                self.choose_for_order(*made[1:], method="list schedule")

    def refine(self, choices: int) -> None:
        """Run full order searches from the best `choices` choices, alternating order and choice."""
        tried = self.refined
        for _ in range(choices):
            choice = self.best(tried)
            while choice is not None and choice not in tried and self.bound < self.least:
                tried.add(choice)
                choice = self.search_order(choice, effort=self.effort)


def _start_choices(options: MemoryOptions, starts: Sequence[Sequence[int]]) -> list[Choice]:
    """The given choices, and each choice with the same option everywhere."""
    count = len(options[0])
    same = (
        [(place,) * len(options) for place in range(count)]
        if all(len(chunk_options) == count for chunk_options in options)
        else []
    )
    return list(dict.fromkeys([*(tuple(choice) for choice in starts), *same]))


def _choices_by_depth(
    problem: OrderProblem, options: MemoryOptions, offers: Sequence[OptionCombinations]
) -> Iterator[Choice]:
    """Yield for each depth the cheapest options with which ranks keep that many microbatches.

    Depths are multiples of the microbatches in flight of a pipeline without waits; fewer where they
    do not fit.
    """
    quick = with_options(problem, [least_option(of) for of in options])
    period = max(int(quick.work().max()) / problem.microbatches, 1.0)
    flight = round_trip_times(quick)
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
                numbers = fitting_combinations(mine, np.array([most + [0] * len(most)]), limit)
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
