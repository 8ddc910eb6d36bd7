"""Best memory options for a given action order: a small knapsack on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from shardwright.arrays import IntArray, distinct_rows
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.orders.chunk_memory_options import (
    MemoryOption,
    MemoryOptions,
    pareto_options,
)
from shardwright.search.orders.order_makespan_and_peak_memory import (
    HELD,
    INPUT,
    STASH,
    WEIGHT,
    walk,
)
from shardwright.search.orders.order_problem import OrderProblem, problem_arrays

COMBINATIONS = 512
"""Most combinations of one rank's options that are considered."""
TRIED = 12
"""Most combinations of one rank with which a whole order is run."""

Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionCombinations:
    """Combinations of the memory options of one rank's chunks.

    Args:
        chunks: (n,) chunks of the rank.
        places: (combinations, n) index of each chunk's option.
        extra, held, stash, whole: (combinations, n) numbers of each chunk's option.
        working: (combinations,) largest `working` of the options.
    """

    chunks: IntArray
    places: IntArray
    extra: IntArray
    held: IntArray
    stash: IntArray
    whole: IntArray
    working: IntArray


def option_combinations(
    problem: OrderProblem, options: MemoryOptions
) -> tuple[OptionCombinations, ...]:
    """Combinations of Pareto-optimal memory options, by rank.

    With very many options, of an even selection of each chunk's.
    """
    owner = problem.owner.reshape(-1)
    result = []
    for rank in range(problem.ranks):
        chunks = np.flatnonzero(owner == rank).tolist()
        most = max(int(COMBINATIONS ** (1 / len(chunks)) + 1e-9), 2)
        selected = [_select_options(options[c], most) for c in chunks]
        places = np.array(list(product(*selected)), np.int64)
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
            OptionCombinations(
                chunks=np.array(chunks, np.int64), places=places, working=working, **columns
            )
        )
    return tuple(result)


def microbatch_states(
    problem: OrderProblem, codes: IntArray, row_start: IntArray
) -> tuple[IntArray, ...]:
    """Distinct (microbatches before I, between I and W) counts by chunk after a forward, by rank.

    Returns:
        A (states, 2 n) array of each rank with n chunks: microbatches of each chunk before their I,
        and microbatches of each chunk between I and W.
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


def fitting_combinations(offers: OptionCombinations, states: IntArray, limit: int) -> IntArray:
    """Indices of combinations that fit in `limit` bytes in all states, the least time first.

    Without combinations that another one is no slower than on every chunk. States are those of
    `microbatch_states`.
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


def best_choice_for_order(
    problem: OrderProblem,
    offers: Sequence[OptionCombinations],
    codes: IntArray,
    row_start: IntArray,
    *,
    states: Sequence[IntArray] | None = None,
) -> tuple[int, Choice] | None:
    """(makespan, fastest choice of memory options with which an order fits); None if none fits.

    With one chunk a rank and no whole backwards it is the best for this order: on every rank the
    least time that fits. Else each rank's combinations are run one after the other until none of
    them ends earlier. None also where the order deadlocks.
    """
    states = microbatch_states(problem, codes, row_start) if states is None else states
    fitting = [
        fitting_combinations(combinations, rank_states, int(limit))
        for combinations, rank_states, limit in zip(offers, states, problem.limit, strict=True)
    ]
    if not all(len(combinations) for combinations in fitting):
        return None
    replay = OrderReplay(problem, codes, row_start)
    for combinations, numbers in zip(offers, fitting, strict=True):
        replay.set_options(combinations, int(numbers[0]))
    current = [int(numbers[0]) for numbers in fitting]
    best = replay.makespan()
    if best < 0:
        return None
    moving = True
    while moving:
        moving = False
        for rank, (combinations, numbers) in enumerate(zip(offers, fitting, strict=True)):
            for number in _evenly_spaced(tuple(numbers.tolist()), TRIED):
                replay.set_options(combinations, number)
                makespan = replay.makespan()
                if makespan < best:
                    best, current[rank], moving = makespan, number, True
            replay.set_options(combinations, current[rank])
    return best, choice_of_combinations(problem, offers, current)


def choice_of_combinations(
    problem: OrderProblem, offers: Sequence[OptionCombinations], numbers: Sequence[int]
) -> Choice:
    """Index of each chunk's option, from the number of each rank's combination."""
    choice = np.zeros(problem.lanes * problem.chunks, np.int64)
    for mine, number in zip(offers, numbers, strict=True):
        choice[mine.chunks] = mine.places[number]
    return tuple(choice.tolist())


class OrderReplay:
    """Runs one order with changing memory options.

    `table` is the table of `problem_arrays` with the current options.
    """

    def __init__(self, problem: OrderProblem, codes: IntArray, row_start: IntArray) -> None:
        self.table = problem_arrays(problem)[0].copy()
        self._input, self._weight = problem.input.reshape(-1), problem.weight.reshape(-1)
        self._codes, self._row_start, self._microbatches = codes, row_start, problem.microbatches
        kinds = 3 * self.table.shape[1]
        self._end = np.zeros((kinds, problem.microbatches), np.int64)
        self._at, self._free = np.zeros(problem.ranks, np.int64), np.zeros(problem.ranks, np.int64)
        self._count = np.zeros(kinds, np.int64)

    def set_options(self, offers: OptionCombinations, number: int) -> None:
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


def _select_options(options: Sequence[MemoryOption], max_options: int) -> tuple[int, ...]:
    """Indices of `max_options` evenly spaced Pareto-optimal options, and that of least memory."""
    places = pareto_options(options)
    leanest = min(places, key=lambda place: options[place].held + options[place].working)
    return tuple(sorted({*_evenly_spaced(places, max_options), leanest}, key=places.index))


def _evenly_spaced(indices: tuple[int, ...], max_count: int) -> tuple[int, ...]:
    """At most `max_count` of the indices, evenly spaced, with both ends."""
    if len(indices) <= max_count:
        return indices
    return tuple(
        indices[i]
        for i in sorted(
            {round(step * (len(indices) - 1) / (max_count - 1)) for step in range(max_count)}
        )
    )
