"""Local search over the memory options of ranks together with their scheduling policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import IntArray
from shardwright.search.orders.best_memory_options_of_given_order import (
    Choice,
    OptionCombinations,
    OrderReplay,
    choice_of_combinations,
)
from shardwright.search.orders.chunk_memory_options import MemoryOptions, with_chosen_options
from shardwright.search.orders.find_order import list_scheduling_policies
from shardwright.search.orders.list_scheduling import deeper_chunk_bytes, list_schedule
from shardwright.search.orders.order_problem import OrderProblem, problem_arrays

REACH = 4
"""Most combinations of a rank that a change moves past."""
DEEPEST = 3
"""Largest change of the number of forwards in flight."""


class _Climb:
    """Current choice of each rank's combination and policy, with their list schedule.

    A rank's ladder holds its combinations from the fastest to the one of least memory.
    """

    def __init__(
        self, problem: OrderProblem, offers: Sequence[OptionCombinations], choice: Choice
    ) -> None:
        self.problem, self.offers = problem, offers
        self.ladders = [_ladder(mine) for mine in offers]
        self.runs = OrderReplay(
            problem, np.zeros(0, np.int64), np.zeros(problem.ranks + 1, np.int64)
        )
        self.local = problem_arrays(problem)[2]
        wanted = np.array(choice)
        self.places = np.array(
            [
                int(np.abs(mine.places[ladder] - wanted[mine.chunks]).sum(axis=1).argmin())
                for mine, ladder in zip(offers, self.ladders, strict=True)
            ]
        )

    def combination_numbers(self, places: IntArray) -> list[int]:
        """Index in its offers of each rank's option combination, from its place on its ladder."""
        return [
            int(ladder[place]) for ladder, place in zip(self.ladders, places.tolist(), strict=True)
        ]

    def schedule(self, places: IntArray, policy: IntArray) -> tuple[int, IntArray, IntArray]:
        """Run the list schedule of the combinations at `places`; returns as `list_schedule`."""
        limit = self.problem.limit.copy()
        for rank, (mine, number) in enumerate(
            zip(self.offers, self.combination_numbers(places), strict=True)
        ):
            self.runs.set_options(mine, number)
            limit[rank] -= mine.working[number]
        table = self.runs.table
        made: tuple[int, IntArray, IntArray] = list_schedule(
            table,
            limit,
            self.local,
            deeper_chunk_bytes(table, self.local),
            self.problem.microbatches,
            policy,
        )
        return made

    def changed(
        self, places: IntArray, policy: IntArray, random: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Places and policy after a random change.

        A few neighbouring ranks move along their ladders, or a rank's policy changes, or both.
        """
        places, policy = places.copy(), policy.copy()
        ranks = self.problem.ranks
        what = int(random.integers(3))
        if what != 1:
            first = int(random.integers(ranks))
            last = first + (1 if random.random() < 0.5 else int(random.integers(1, ranks + 1)))
            step = int(random.integers(1, REACH + 1)) * (1 if random.random() < 0.5 else -1)
            for rank in range(first, min(last, ranks)):
                places[rank] = min(max(places[rank] + step, 0), len(self.ladders[rank]) - 1)
        if what != 0:
            rank, row = int(random.integers(ranks)), int(random.integers(3))
            if row == 0:
                policy[0, rank] = 3 * int(random.integers(8))
            elif row == 1:
                policy[1, rank] = 1 - policy[1, rank]
            else:
                flight = min(int(policy[2, rank]), self.problem.microbatches)
                policy[2, rank] = max(1, flight + int(random.integers(-DEEPEST, DEEPEST + 1)))
        return places, policy


def climb_choices(
    problem: OrderProblem,
    options: MemoryOptions,
    offers: Sequence[OptionCombinations],
    choice: Choice,
    *,
    goal: int,
    tries: int,
    random: np.random.Generator,
) -> tuple[Choice, IntArray, IntArray] | None:
    """Improve a choice by random changes; (choice, codes, row_start), None = no policy fits it.

    Args:
        goal: makespan to stop at.
        tries: largest number of changes.

    Returns:
        Choice, codes, row_start; None where no policy schedules the choice.
    """
    climb = _Climb(problem, offers, choice)
    places = climb.places
    made = [
        (climb.schedule(places, policy)[0], policy)
        for policy in list_scheduling_policies(with_chosen_options(problem, options, choice))
    ]
    made = [(makespan, policy) for makespan, policy in made if makespan >= 0]
    if not made:
        return None
    best, policy = min(made, key=lambda pair: pair[0])
    for _ in range(tries):
        if best <= goal:
            break
        other = climb.changed(places, policy, random)
        makespan = climb.schedule(*other)[0]
        if 0 <= makespan <= best:
            best, (places, policy) = makespan, other
    _, codes, row_start = climb.schedule(places, policy)
    return (
        choice_of_combinations(problem, offers, climb.combination_numbers(places)),
        codes,
        row_start,
    )


def _ladder(offers: OptionCombinations) -> IntArray:
    """Indices of a rank's combinations from the fastest to the one of least memory.

    Without combinations that hold no less than a faster one.
    """
    time, kept = offers.extra.sum(axis=1), offers.held.sum(axis=1)
    order = np.lexsort((kept, time))
    before = np.concatenate(([np.iinfo(np.int64).max], np.minimum.accumulate(kept[order])[:-1]))
    ladder: IntArray = order[kept[order] < before]
    return ladder
