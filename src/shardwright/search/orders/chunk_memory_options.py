"""Memory options of a pipeline chunk, such as recomputation or offloading, with their cost.

Also the order problems in which an option of each chunk is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.errors import UsageError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.orders.order_problem import LARGEST, OrderProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOption:
    """One way to keep a chunk's activations between its forward and its backward.

    In the problem's units, for every microbatch. Recomputation that restores the inputs of W makes
    its backward whole: W runs directly after I and nothing is kept in between.

    Args:
        extra: time by which I is longer: recomputation, or the exposed part of an offload.
        held, stash: as in `OrderProblem`.
        working: most bytes that I takes beyond `held` while it runs; every rank keeps that much
            free for the largest of its chunks.
        whole: W runs with I; `stash` is then 0.
    """

    extra: int
    held: int
    stash: int = 0
    working: int = 0
    whole: bool = False

    def __post_init__(self) -> None:
        if not all(
            0 <= number <= LARGEST for number in (self.extra, self.held, self.stash, self.working)
        ):
            raise UsageError(
                f"extra, held, stash and working must be whole numbers from 0 to {LARGEST}"
            )
        if self.stash > (0 if self.whole else self.held):
            raise UsageError(
                "stash is the part of held that stays after I: it must be at most held, and 0 for a"
                " whole backward"
            )

    @property
    def cost(self) -> tuple[int, int, int, int, bool]:
        """(extra, held, stash, working, whole); an option with no larger number is as good."""
        return self.extra, self.held, self.stash, self.working, self.whole


MemoryOptions = Sequence[Sequence[MemoryOption]]
"""Options of each chunk, in the order of lanes and chunks (lane * chunks + chunk)."""


def check_options(problem: OrderProblem, options: MemoryOptions) -> None:
    """Raise UsageError unless every chunk of every lane has an option."""
    if len(options) != problem.lanes * problem.chunks or not all(options):
        raise UsageError(
            f"each of the {problem.lanes * problem.chunks} chunks needs at least one memory option"
        )


def with_chosen_options(
    problem: OrderProblem, options: MemoryOptions, choice: Sequence[int]
) -> OrderProblem:
    """The order problem with each chunk's option, by its index in `choice`.

    Raises:
        InfeasibleError: a rank cannot keep one microbatch.
    """
    return with_options(
        problem,
        [chunk_options[index] for chunk_options, index in zip(options, choice, strict=True)],
    )


def with_options(problem: OrderProblem, chunk_options: Sequence[MemoryOption]) -> OrderProblem:
    """The order problem with the given option itself for each chunk, in chunk order.

    With the `least_option` of some options for each chunk, every order of every choice among them
    also solves it, no later and in no more memory.

    Raises:
        InfeasibleError: a rank cannot keep one microbatch.
    """
    shape = problem.owner.shape
    extra, held, stash, working, whole = np.array(
        [option.cost for option in chunk_options], np.int64
    ).T
    taken = np.zeros(problem.ranks, np.int64)
    np.maximum.at(taken, problem.owner.reshape(-1), working)
    with_input = np.where(whole > 0, problem.weight.reshape(-1), 0)
    return replace(
        problem,
        input=problem.input + (extra + with_input).reshape(shape),
        weight=problem.weight - with_input.reshape(shape),
        held=held.reshape(shape),
        stash=stash.reshape(shape),
        limit=np.maximum(problem.limit - taken, 0),
    )


def least_option(options: Sequence[MemoryOption]) -> MemoryOption:
    """An option that is a lower bound on all options: the least of every number.

    Whole only if all options are.
    """
    extra, held, stash, working, _ = (
        min(column) for column in zip(*(option.cost for option in options), strict=True)
    )
    whole = all(option.whole for option in options)
    return MemoryOption(
        extra=extra, held=held, stash=min(stash, held), working=working, whole=whole
    )


def pareto_options(options: Sequence[MemoryOption]) -> tuple[int, ...]:
    """Indices of the Pareto-optimal options, ascending by `MemoryOption.cost`; of equals the first.

    Of equal options the first.
    """
    ranked = sorted(range(len(options)), key=lambda place: (options[place].cost, place))
    pareto: list[int] = []
    for place in ranked:
        if not any(
            all(a <= b for a, b in zip(options[other].cost, options[place].cost, strict=True))
            for other in pareto
        ):
            pareto.append(place)
    return tuple(pareto)
