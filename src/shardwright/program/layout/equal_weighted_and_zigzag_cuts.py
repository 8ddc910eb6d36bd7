"""Indices of a list that a sequence of equal, weighted or zigzag cuts takes."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Indices, Interval, count, joined_intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisStep:
    """One cut on the way down a placement tree to a device: the parts and the index taken.

    Parts are equal (a count) or weights; pieces may be taken zigzag.
    """

    parts: int | tuple[int, ...]
    index: int
    zigzag: bool = False

    @property
    def total(self) -> int:
        """Sum of the weights of the parts; the number of parts where they are equal."""
        return self.parts if isinstance(self.parts, int) else sum(self.parts)


Way = tuple[AxisStep, ...]


def largest_remainder(count: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Divide `count` by weights into whole numbers by the largest-remainder method.

    Rounded down, with one more for the largest remainders, ties to the lower index.
    """
    total = sum(weights)
    floors = [count * w // total for w in weights]
    if left := count - sum(floors):
        for i in sorted(range(len(weights)), key=lambda i: (-(count * weights[i] % total), i))[
            :left
        ]:
            floors[i] += 1
    return tuple(floors)


def cut(indices: Indices, step: AxisStep) -> Indices:
    """The part of an index list that `step` takes.

    Zigzag takes pieces i and 2n - 1 - i of 2n.
    """
    pieces = _pieces(indices, step.parts, step.zigzag)
    return (
        joined_intervals((*pieces[step.index], *pieces[-1 - step.index]))
        if step.zigzag
        else pieces[step.index]
    )


@lru_cache(maxsize=1024)
def _pieces(
    indices: Indices, number_or_weights: int | tuple[int, ...], zigzag: bool
) -> tuple[Indices, ...]:
    """Cut an index list into equal parts or by weights; zigzag: twice as many pieces."""
    weights = (1,) * number_or_weights if isinstance(number_or_weights, int) else number_or_weights
    ends = list(
        accumulate(
            largest_remainder(count(indices), (*weights, *reversed(weights)) if zigzag else weights)
        )
    )
    pieces: list[list[Interval]] = [[] for _ in ends]
    piece = passed = 0
    for low, high in indices:
        while low < high:
            while ends[piece] == passed:
                piece += 1
            taken = min(high - low, ends[piece] - passed)
            pieces[piece].append((low, low + taken))
            low, passed = low + taken, passed + taken
    return tuple(map(tuple, pieces))


@lru_cache(maxsize=65536)
def indices(way: Way, length: int) -> Indices:
    """The indices that a sequence of cuts takes of a list of `length`.

    Empty where more parts than indices leave none.
    """
    taken: Indices = ((0, length),) if length else ()
    for step in way:
        taken = cut(taken, step)
    return taken


@lru_cache(maxsize=65536)
def covered_runs(way: Way, runs: int, reference: int) -> Interval:
    """Interval of runs of a coarser list that a sequence of cuts touches.

    [low, high), where the way cuts a list of `reference` runs; copies where a part would have none.

    Key heads under query heads: a part of the query heads needs every key head that one of them
    reads.
    """
    parts, fine = 1, max(reference, runs)
    smallest = fine
    for step in way:
        parts *= step.total
        smallest = min(
            largest_remainder(
                smallest, (1,) * step.parts if isinstance(step.parts, int) else step.parts
            )
        )
    if not smallest:
        fine *= -(-parts // fine)
    taken = indices(way, fine)
    if not taken:
        return (0, 0)
    low, high = taken[0][0], taken[-1][1]
    return (low * runs // fine, -(-high * runs // fine))
