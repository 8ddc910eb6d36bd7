"""How early any order can end when each chunk also chooses what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from shardwright.errors import InfeasibleError
from shardwright.search.orders.bounds import order_bounds
from shardwright.search.orders.memory_option import MemoryOption, Options, relaxed
from shardwright.search.orders.problem import OrderProblem

BLOCKS = 64
"""Most combinations of one rank's options that are bounded one by one; beyond, neighbouring options share a bound."""
ROUNDS = 3
"""How often options that cannot beat the best known order leave and the rest is bounded again."""
NEVER = 2**62

Block = tuple[int, ...]
"""Places of neighbouring options of one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """A lower bound of the makespan over all choices and orders.

    Args:
        value: the bound. best: for each chunk, the option with which its own rank's bound is least. left: for each chunk, places of the
            options that may end before the best known order; all of them if none is known.
    """

    value: int
    best: tuple[int, ...]
    left: tuple[tuple[int, ...], ...]


def memory_bound(problem: OrderProblem, options: Options, *, below: int = NEVER) -> MemoryBound:
    """The largest over ranks of the least bound that the rank's own choices leave.

    For a rank r and a choice x of its chunks, all other chunks get the least of each number over their options; `order_bounds` of that
    problem bounds every order of every choice that agrees with x on r. So no choice ends before max over r of min over x. Choices whose
    bound is not under `below` leave, and what is left is bounded again: a choice ends at `below` or later, or is made of what is left.

    Args:
        below: makespan of a known order; the value is at most that.

    Raises:
        InfeasibleError: no choice fits.
    """
    left = [tuple(range(len(of))) for of in options]
    value = min(order_bounds(relaxed(problem, options)).best, below)
    best: tuple[int, ...] = ()
    for _ in range(ROUNDS):
        first = not best
        picked, kept, found = _round(problem, options, left, below)
        best = best or picked
        if found >= NEVER and first and below >= NEVER:
            raise InfeasibleError("no memory option of a rank's chunks fits", hint="offer options that keep less or raise the limit")
        value = max(value, min(found, below))
        done = value >= below or kept == left or below >= NEVER
        left = kept if value < below else left
        if done:
            break
    return MemoryBound(value=value, best=best, left=tuple(left))


def _round(
    problem: OrderProblem, options: Options, left: Sequence[Block], below: int
) -> tuple[tuple[int, ...], list[Block], int]:
    """Each chunk's option in its rank's best combination, the options left, and the bound."""
    sets = [tuple(of[place] for place in mine) for of, mine in zip(options, left, strict=True)]
    picked, kept, value = [mine[0] for mine in left], list(left), 0
    owner = problem.owner.reshape(-1).tolist()
    for rank in range(problem.ranks):
        chunks = [c for c, of in enumerate(owner) if of == rank]
        most = max(int(BLOCKS ** (1 / len(chunks)) + 1e-9), 2)
        survivors: list[set[int]] = [set() for _ in chunks]
        least = NEVER
        for blocks in product(*(_blocks(options[c], left[c], most) for c in chunks)):
            bound = _bound(problem, options, sets, chunks, blocks)
            if bound < below:
                for mine, block in zip(survivors, blocks, strict=True):
                    mine.update(block)
            if bound < least:
                least = bound
                for c, block in zip(chunks, blocks, strict=True):
                    picked[c] = block[0]
        for c, mine in zip(chunks, survivors, strict=True):
            kept[c] = tuple(place for place in left[c] if place in mine) or left[c]
        value = max(value, least)
    return tuple(picked), kept, value


def _bound(problem: OrderProblem, options: Options, sets: list[tuple[MemoryOption, ...]], chunks: list[int], blocks: Sequence[Block]) -> int:
    """The bound with `chunks` narrowed to `blocks`; NEVER if that does not fit."""
    narrowed = list(sets)
    for c, block in zip(chunks, blocks, strict=True):
        narrowed[c] = tuple(options[c][place] for place in block)
    try:
        return order_bounds(relaxed(problem, narrowed)).best
    except InfeasibleError:
        return NEVER


def _blocks(options: Sequence[MemoryOption], left: Block, most: int) -> list[Block]:
    """Options from the cheapest on in at most `most` blocks of neighbours."""
    ranked = sorted(left, key=lambda place: options[place].cost)
    size = -(-len(ranked) // most)
    return [tuple(ranked[start : start + size]) for start in range(0, len(ranked), size)]
