"""Slices of equal time against every cut."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import UsageError
from shardwright.search.orders.slices import equal_time_slices


@given(linear=st.floats(0.1, 10), quadratic=st.floats(0, 2), fixed=st.floats(0, 5), length=st.integers(2, 14), count=st.integers(1, 5))
@settings(deadline=None)
def test_no_cut_is_better(linear: float, quadratic: float, fixed: float, length: int, count: int) -> None:
    count = min(count, length)

    def seconds(tokens: int, end: int) -> float:
        return fixed + linear * tokens + quadratic * tokens * (2 * end - tokens) / 2

    def longest(cut: tuple[int, ...]) -> float:
        return max(seconds(tokens, sum(cut[: i + 1])) for i, tokens in enumerate(cut))

    found = equal_time_slices(seconds, length=length, count=count)
    assert sum(found) == length
    assert len(found) == count
    every = [(0, *inside, length) for inside in combinations(range(1, length), count - 1)]
    best = min(longest(tuple(b - a for a, b in pairwise(ends))) for ends in every)
    assert longest(found) == pytest.approx(best, rel=1e-9)


def test_later_slices_are_shorter_and_whole_blocks() -> None:
    found = equal_time_slices(lambda tokens, end: tokens + tokens * (2 * end - tokens) / 2000, length=4096, count=6, quantum=64)
    assert all(tokens % 64 == 0 for tokens in found)
    assert sorted(found, reverse=True) == list(found)
    assert found[0] > found[-1]


def test_more_slices_than_blocks() -> None:
    with pytest.raises(UsageError, match="blocks of 64"):
        equal_time_slices(lambda tokens, end: float(tokens), length=100, count=3, quantum=64)
