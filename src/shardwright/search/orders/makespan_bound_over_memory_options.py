"""Lower bounds on the makespan of any order when each chunk also chooses a memory option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.orders.chunk_memory_options import (
    MemoryOption,
    MemoryOptions,
    least_option,
    with_options,
)
from shardwright.search.orders.list_scheduling import NEVER
from shardwright.search.orders.makespan_lower_bounds import order_bounds
from shardwright.search.orders.order_problem import OrderProblem

BLOCKS = 64
"""Most combinations of one rank's options that are bounded one by one.

Beyond that, neighbouring options share a bound.
"""
ROUNDS = 6
"""Rounds in which options that end too late are dropped and the rest is bounded again."""
STEPS = 7
"""Bisections of the time between the bound and the best known order."""

Block = tuple[int, ...]
"""Indices of neighbouring options of one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """A lower bound on the makespan over all choices of memory options and all orders.

    Args:
        value: the bound.
        best: for each chunk, the option with which its own rank's bound is least.
        left: for each chunk, indices of the options that may end before the best known order; all
            options if no order is known.
    """

    value: int
    best: tuple[int, ...]
    left: tuple[Block, ...]


def makespan_bound(
    problem: OrderProblem, options: MemoryOptions, *, below: int = NEVER
) -> MemoryBound:
    """Lower bound on the makespan over all choices of memory options and all orders.

    For a rank r and a choice x of its chunks, all other chunks get the least of each number over
    their options; `order_bounds` of that problem bounds every order of every choice that agrees
    with x on r. So no choice ends before max over r of min over x. For a time T, options whose
    bound is not under T are dropped, and the others are bounded again: a choice ends at T or later,
    or is made of the others. Where their bound reaches T, T is a bound; the largest such T up to
    `below` is searched by bisection.

    Args:
        below: makespan of a known order; the value is at most that.

    Raises:
        InfeasibleError: no choice fits.
    """
    everything = [tuple(range(len(of))) for of in options]
    best, _, value = _drop_options(problem, options, everything, NEVER)
    if value >= NEVER:
        raise InfeasibleError(
            "no memory option of a rank's chunks fits",
            hint="offer options that keep less or raise the limit",
        )
    if below >= NEVER:
        return MemoryBound(value=value, best=best, left=tuple(everything))
    # `low` is a proven bound: a time at which the options that are left all end, or later. Halving
    # looks for the largest such time up to `below`.
    value = min(value, below)
    found, left = _bound_up_to(problem, options, everything, below)
    low, high = max(value, found), below
    for _ in range(STEPS):
        middle = (low + high + 1) // 2
        if low >= high:
            break
        found, _ = _bound_up_to(problem, options, left, middle)
        low = max(low, found)
        if found < middle:
            high = middle - 1
    return MemoryBound(value=low, best=best, left=tuple(left))


def _bound_up_to(
    problem: OrderProblem, options: MemoryOptions, remaining: Sequence[Block], time: int
) -> tuple[int, list[Block]]:
    """A lower bound of at most `time`, and the options with which a choice may end before it."""
    kept, value = list(remaining), 0
    for _ in range(ROUNDS):
        before = kept
        _, kept, found = _drop_options(problem, options, before, time)
        value = max(value, min(found, time))
        if value >= time or kept == before:
            break
    return value, kept


def _drop_options(
    problem: OrderProblem, options: MemoryOptions, remaining: Sequence[Block], below: int
) -> tuple[tuple[int, ...], list[Block], int]:
    """Bound every rank once: best option of each chunk, options that may end in time, the bound.

    Options are dropped as soon as they cannot be in a choice that ends before `below`.
    """
    picked, kept, value = [mine[0] for mine in remaining], list(remaining), 0
    others = [
        least_option([of[place] for place in mine])
        for of, mine in zip(options, remaining, strict=True)
    ]
    owner = problem.owner.reshape(-1)
    for rank in range(problem.ranks):
        chunks = np.flatnonzero(owner == rank).tolist()
        most = max(int(BLOCKS ** (1 / len(chunks)) + 1e-9), 2)
        survivors: list[set[int]] = [set() for _ in chunks]
        lowest = NEVER
        for blocks in product(*(_option_blocks(options[c], kept[c], most) for c in chunks)):
            bound = _rank_bound(problem, options, others, rank, chunks, blocks)
            if bound < below:
                for mine, block in zip(survivors, blocks, strict=True):
                    mine.update(block)
            if bound < lowest:
                lowest = bound
                for c, block in zip(chunks, blocks, strict=True):
                    picked[c] = block[0]
        value = max(value, lowest)
        if value >= below:
            break
        for c, mine in zip(chunks, survivors, strict=True):
            kept[c] = tuple(place for place in kept[c] if place in mine)
            others[c] = least_option([options[c][place] for place in kept[c]])
    return tuple(picked), kept, value


def _rank_bound(
    problem: OrderProblem,
    options: MemoryOptions,
    least_options: Sequence[MemoryOption],
    rank: int,
    chunks: list[int],
    blocks: Sequence[Block],
) -> int:
    """Lower bound of one rank with its chunks' options narrowed to blocks; NEVER = does not fit."""
    chosen = list(least_options)
    for c, block in zip(chunks, blocks, strict=True):
        chosen[c] = least_option([options[c][place] for place in block])
    try:
        narrowed = with_options(problem, chosen)
    except InfeasibleError:
        return NEVER
    if len(chunks) == len(blocks[0]) == 1:
        limit = narrowed.limit.copy()
        limit[rank] = _reachable_bytes(chosen[chunks[0]], int(limit[rank]), problem.microbatches)
        narrowed = replace(narrowed, limit=limit)
    return order_bounds(narrowed, ranks=(rank,)).best


def _reachable_bytes(option: MemoryOption, limit: int, microbatches: int) -> int:
    """Most bytes up to `limit` that a rank with one chunk can keep.

    Some microbatches whole, and some that wait for W alone.
    """
    if option.held == 0:
        return limit
    most = min(limit // option.held, microbatches)
    if option.stash == 0:
        return most * option.held
    rest = [
        min((limit - n * option.held) // option.stash, microbatches - n) * option.stash
        for n in range(most + 1)
    ]
    return max(n * option.held + stays for n, stays in enumerate(rest))


def _option_blocks(
    options: Sequence[MemoryOption], remaining: Block, max_blocks: int
) -> list[Block]:
    """Indices of the remaining options, the cheapest first, in `max_blocks` blocks or fewer."""
    ranked = sorted(remaining, key=lambda place: options[place].cost)
    size = -(-len(ranked) // max_blocks)
    return [tuple(ranked[start : start + size]) for start in range(0, len(ranked), size)]
