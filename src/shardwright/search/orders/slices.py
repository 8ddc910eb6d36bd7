"""Lengths of token slices that take equal time (TeraPipe): later slices look back on more keys, so they are shorter."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.errors import UsageError

SliceSeconds = Callable[[int, int], float]
"""(tokens, last position) -> seconds of a slice's forward on one stage; grows with both."""


def equal_time_slices(seconds: SliceSeconds, *, length: int, count: int, quantum: int = 1) -> tuple[int, ...]:
    """`count` lengths that add up to `length` with the least longest time, multiples of `quantum` (the last takes the remainder).

        least T such that the greedy cut, each slice as long as T allows, needs at most `count` slices

    The greedy cut is best for a given T, as a slice that starts later is never cheaper; T is bisected over the times of slices that occur.

    Args:
        seconds: monotone in both arguments. length: positions. quantum: a kernel's block.

    Raises:
        UsageError: there are fewer blocks of `quantum` than slices.

    Source: Li et al. 2021, arXiv:2102.07988, section 3.3 (there a dynamic program over the same choice).
    """
    blocks = -(-length // quantum)
    if not 1 <= count <= blocks:
        raise UsageError(f"{count} slices of {length} tokens in blocks of {quantum}", hint=f"1 to {blocks} slices")
    low, high = 0.0, seconds(length, length)
    best = _greedy(seconds, length=length, count=count, quantum=quantum, limit=high)
    assert best is not None
    for _ in range(60):
        middle = (low + high) / 2
        found = _greedy(seconds, length=length, count=count, quantum=quantum, limit=middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _greedy(seconds: SliceSeconds, *, length: int, count: int, quantum: int, limit: float) -> tuple[int, ...] | None:
    """Slices from the first on, each the longest within `limit` that leaves a block for every slice after it; None if they do not reach."""
    result: list[int] = []
    done = 0
    for left in range(count - 1, -1, -1):
        most = length - done - left * quantum if left else length - done
        low, high = 0, -(-most // quantum)
        while low < high:
            middle = (low + high + 1) // 2
            tokens = min(middle * quantum, most)
            if seconds(tokens, done + tokens) <= limit:
                low = middle
            else:
                high = middle - 1
        tokens = min(low * quantum, most)
        if not tokens:
            return None
        result.append(tokens)
        done += tokens
    return tuple(result) if done == length else None
