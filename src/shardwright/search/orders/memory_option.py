"""What a chunk may keep of a microbatch and what that costs, and problems with a choice made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.errors import UsageError
from shardwright.search.orders.problem import LARGEST, OrderProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOption:
    """One way to keep a chunk's activations between its forward and its backward, for every microbatch; in the problem's units.

    A recompute that restores what W reads makes its backward whole: W runs right behind I and nothing stays in between, for a stash of
    what was not kept would have to be kept after all.

    Args:
        extra: time that I takes longer: recompute, the exposed part of an offload. held, stash: as in `OrderProblem`.
        working: most that I takes beyond `held` while it runs; every rank keeps that much free for the largest of its chunks.
        whole: W runs with I; `stash` is then 0.
    """

    extra: int
    held: int
    stash: int = 0
    working: int = 0
    whole: bool = False

    def __post_init__(self) -> None:
        if not all(0 <= number <= LARGEST for number in (self.extra, self.held, self.stash, self.working)):
            raise UsageError(f"extra, held, stash and working must be whole numbers from 0 to {LARGEST}")
        if self.stash > (0 if self.whole else self.held):
            raise UsageError("stash is what stays of held: it cannot be more, and nothing stays of a whole backward")

    @property
    def cost(self) -> tuple[int, int, int, int, bool]:
        """What another option must not exceed anywhere to be as good."""
        return self.extra, self.held, self.stash, self.working, self.whole


Options = Sequence[Sequence[MemoryOption]]
"""For each chunk, lanes numbered through (lane * chunks + chunk), what it may keep."""


def check_options(problem: OrderProblem, options: Options) -> None:
    """UsageError unless every chunk of every lane has an option."""
    if len(options) != problem.lanes * problem.chunks or not all(options):
        raise UsageError(f"each of the {problem.lanes * problem.chunks} chunks needs at least one memory option")


def applied(problem: OrderProblem, options: Options, choice: Sequence[int]) -> OrderProblem:
    """The problem in which each chunk keeps what its chosen option says; InfeasibleError if a rank cannot keep one microbatch."""
    return relaxed(problem, [(of[index],) for of, index in zip(options, choice, strict=True)])


def relaxed(problem: OrderProblem, options: Options) -> OrderProblem:
    """A problem that every order of every choice among `options` also solves, no later and in no more memory: each number is the least.

    With one option a chunk it is the problem of that choice. Where some options are whole and others are not, W counts as apart.

    Raises:
        InfeasibleError: no choice fits.
    """
    shape = problem.owner.shape
    least = {
        name: np.array([min(getattr(option, name) for option in of) for of in options], np.int64)
        for name in ("extra", "held", "stash", "working")
    }
    whole = np.array([all(option.whole for option in of) for of in options]).reshape(shape)
    taken = np.zeros(problem.ranks, np.int64)
    np.maximum.at(taken, problem.owner.reshape(-1), least["working"])
    return replace(
        problem,
        input=problem.input + least["extra"].reshape(shape) + np.where(whole, problem.weight, 0),
        weight=np.where(whole, 0, problem.weight),
        held=least["held"].reshape(shape),
        stash=np.minimum(least["stash"], least["held"]).reshape(shape),
        limit=np.maximum(problem.limit - taken, 0),
    )


def useful(options: Sequence[MemoryOption]) -> tuple[int, ...]:
    """Places of the options that no other one is as good as everywhere, from the cheapest on; of equals the first."""
    ranked = sorted(range(len(options)), key=lambda place: (options[place].cost, place))
    kept: list[int] = []
    for place in ranked:
        if not any(all(a <= b for a, b in zip(options[other].cost, options[place].cost, strict=True)) for other in kept):
            kept.append(place)
    return tuple(kept)
