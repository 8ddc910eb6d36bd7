"""The best memory options for a given order: a small knapsack on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from shardwright.arrays import IntArray, distinct_rows
from shardwright.lazy_dataclass import dataclass
from shardwright.search.orders.memory_option import MemoryOption, Options, useful
from shardwright.search.orders.order_longest_path import HELD, INPUT, STASH, WEIGHT, walk
from shardwright.search.orders.order_problem import OrderProblem, flat

COMBINATIONS = 512
"""Most combinations of one rank's options that are weighed."""
TRIED = 12
"""Most combinations of one rank that a whole order is run with."""

Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offers:
    """Combinations of one rank's options.

    Args:
        chunks: (n,) of the rank.
        places: (combinations, n) option of each.
        extra, held, stash, whole: (combinations, n).
        working: (combinations,) the largest.
    """

    chunks: IntArray
    places: IntArray
    extra: IntArray
    held: IntArray
    stash: IntArray
    whole: IntArray
    working: IntArray


def offers_of(problem: OrderProblem, options: Options) -> tuple[Offers, ...]:
    """Every rank's combinations of useful options; with very many, of an even selection of each
    chunk's.
    """
    owner = problem.owner.reshape(-1)
    result = []
    for rank in range(problem.ranks):
        chunks = np.flatnonzero(owner == rank).tolist()
        most = max(int(COMBINATIONS ** (1 / len(chunks)) + 1e-9), 2)
        mine = [_selected(options[c], most) for c in chunks]
        places = np.array(list(product(*mine)), np.int64)
        columns = {
            name: np.stack(
                [
                    np.array([getattr(o, name) for o in options[c]], np.int64)[places[:, i]]
                    for i, c in enumerate(chunks)
                ],
                axis=1,
            )
            for name in ("extra", "held", "stash", "whole", "working")
        }
        working = columns.pop("working").max(axis=1)
        result.append(
            Offers(chunks=np.array(chunks, np.int64), places=places, working=working, **columns)
        )
    return tuple(result)


def in_flight(problem: OrderProblem, codes: IntArray, row_start: IntArray) -> tuple[IntArray, ...]:
    """For each rank, the microbatches that an order keeps right after each of its forwards.

    Returns:
        A (states, 2 n) array of each rank with n chunks: how many microbatches of each have their I
        ahead, how many their W alone.
    """
    chunks = problem.lanes * problem.chunks
    owner = problem.owner.reshape(-1)
    result = []
    for rank in range(problem.ranks):
        row = codes[row_start[rank] : row_start[rank + 1]]
        done = np.stack(
            [
                np.cumsum(row[:, None] == kind * chunks + np.flatnonzero(owner == rank), axis=0)
                for kind in range(3)
            ]
        )
        states = np.concatenate([done[0] - done[1], done[1] - done[2]], axis=1)[row < chunks]
        result.append(distinct_rows(states))
    return tuple(result)


def fitting(offers: Offers, states: IntArray, limit: int) -> IntArray:
    """Numbers of the rank's combinations that fit in `limit` in all `states` (see `in_flight`), the
    least time first.

    Of them only those that no other one is as quick as on every chunk.
    """
    amounts = np.concatenate([offers.held, offers.stash], axis=1)
    fits = np.flatnonzero((amounts @ states.T).max(axis=1) + offers.working <= limit)
    times = np.concatenate([offers.extra, offers.whole], axis=1)[fits]
    order = np.lexsort((*times.T[::-1], times.sum(axis=1)))
    kept: list[int] = []
    for place in order.tolist():
        if not kept or not (times[kept] <= times[place]).all(axis=1).any():
            kept.append(place)
    return fits[np.array(kept, np.int64)]


def choose_for(
    problem: OrderProblem,
    offers: Sequence[Offers],
    codes: IntArray,
    row_start: IntArray,
    *,
    states: Sequence[IntArray] | None = None,
) -> tuple[int, Choice] | None:
    """The fastest choice found with which an order fits, and its makespan; None if none fits or the
    order deadlocks.

    With one chunk a rank and no whole backwards it is the best for this order: on every rank the
    least time that fits. Else each rank's combinations are run one after the other until none of
    them ends earlier.
    """
    states = in_flight(problem, codes, row_start) if states is None else states
    found = [
        fitting(mine, seen, int(limit))
        for mine, seen, limit in zip(offers, states, problem.limit, strict=True)
    ]
    if not all(len(mine) for mine in found):
        return None
    run = Runs(problem, codes, row_start)
    for mine, numbers in zip(offers, found, strict=True):
        run.set(mine, int(numbers[0]))
    now = [int(numbers[0]) for numbers in found]
    best = run.makespan()
    if best < 0:
        return None
    moving = True
    while moving:
        moving = False
        for rank, (mine, numbers) in enumerate(zip(offers, found, strict=True)):
            for number in _spread(tuple(numbers.tolist()), TRIED):
                run.set(mine, number)
                makespan = run.makespan()
                if makespan < best:
                    best, now[rank], moving = makespan, number, True
            run.set(mine, now[rank])
    return best, choice_of(problem, offers, now)


def choice_of(problem: OrderProblem, offers: Sequence[Offers], numbers: Sequence[int]) -> Choice:
    """The option of each chunk where each rank has a combination."""
    choice = np.zeros(problem.lanes * problem.chunks, np.int64)
    for mine, number in zip(offers, numbers, strict=True):
        choice[mine.chunks] = mine.places[number]
    return tuple(choice.tolist())


class Runs:
    """One order, run with changing options; `table` is the problem's with the options as they are
    (see `problem.flat`).
    """

    def __init__(self, problem: OrderProblem, codes: IntArray, row_start: IntArray) -> None:
        self.table = flat(problem)[0].copy()
        self._input, self._weight = problem.input.reshape(-1), problem.weight.reshape(-1)
        self._codes, self._row_start, self._microbatches = codes, row_start, problem.microbatches
        kinds = 3 * self.table.shape[1]
        self._end = np.zeros((kinds, problem.microbatches), np.int64)
        self._at, self._free = np.zeros(problem.ranks, np.int64), np.zeros(problem.ranks, np.int64)
        self._count = np.zeros(kinds, np.int64)

    def set(self, offers: Offers, number: int) -> None:
        """Give a rank's chunks the options of combination `number`."""
        whole = offers.whole[number] > 0
        c = offers.chunks
        self.table[INPUT, c] = (
            self._input[c] + offers.extra[number] + np.where(whole, self._weight[c], 0)
        )
        self.table[WEIGHT, c] = np.where(whole, 0, self._weight[c])
        self.table[HELD, c], self.table[STASH, c] = offers.held[number], offers.stash[number]

    def makespan(self) -> int:
        """Makespan of the order with the current options; -1 if it deadlocks."""
        return int(
            walk(
                self.table,
                self._codes,
                self._row_start,
                self._microbatches,
                self._end,
                self._at,
                self._free,
                self._count,
            )
        )


def _selected(options: Sequence[MemoryOption], most: int) -> tuple[int, ...]:
    """An even selection of the useful options, the smallest among them."""
    places = useful(options)
    leanest = min(places, key=lambda place: options[place].held + options[place].working)
    return tuple(sorted({*_spread(places, most), leanest}, key=places.index))


def _spread(places: tuple[int, ...], most: int) -> tuple[int, ...]:
    """At most `most` of the places, evenly spaced, with both ends."""
    if len(places) <= most:
        return places
    return tuple(
        places[i]
        for i in sorted({round(step * (len(places) - 1) / (most - 1)) for step in range(most)})
    )
