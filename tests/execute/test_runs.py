"""Calls of a fused kernel over runs of positions, against every pair of a query and a key."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.execute.numerics.attention.fused_calls_covering_causal_mask import (
    KernelCall,
    kernel_calls,
)
from shardwright.program.layout.tensor_layout import Indices
from tests.tiers import examples

LENGTH = 24


@st.composite
def positions(draw: st.DrawFn) -> Indices:
    """Runs without a common position, in any order, some of which touch."""
    borders = sorted(draw(st.sets(st.integers(0, LENGTH), max_size=10)))
    pieces = [(low, high) for low, high in pairwise(borders) if draw(st.integers(0, 3))]
    return tuple(draw(st.permutations(pieces)) if draw(st.booleans()) else pieces)


def rows_of(indices: Indices) -> list[int]:
    return [position for low, high in indices for position in range(low, high)]


def pairs(found: tuple[KernelCall, ...]) -> list[tuple[int, int]]:
    """(row of a query, row of a key) of all calls."""
    listed = []
    for call in found:
        (first, end), (low, high) = call.queries, call.keys
        assert first < end
        assert low < high
        assert not call.causal or end - first == high - low, "a diagonal is square"
        listed += [
            (q, k)
            for q in range(first, end)
            for k in range(low, high)
            if not call.causal or k - low <= q - first
        ]
    return listed


@given(positions(), positions(), st.booleans())
@examples(200)
def test_every_pair_that_is_seen_is_in_one_call(
    queries: Indices, keys: Indices, same: bool
) -> None:
    keys = queries if same else keys
    found = pairs(kernel_calls(queries, keys, causal=True))
    seen = [
        (i, j)
        for i, q in enumerate(rows_of(queries))
        for j, k in enumerate(rows_of(keys))
        if k <= q
    ]
    assert sorted(found) == seen


@given(positions(), positions())
@examples(200)
def test_where_all_is_seen_one_call_has_it(queries: Indices, keys: Indices) -> None:
    rows, columns = len(rows_of(queries)), len(rows_of(keys))
    expected = (KernelCall((0, rows), (0, columns), False),) if rows and columns else ()
    assert kernel_calls(queries, keys, causal=False) == expected


@pytest.mark.parametrize(
    ("queries", "keys", "expected"),
    [
        (((0, 8),), ((0, 8),), [KernelCall((0, 8), (0, 8), True)]),
        (((0, 2), (6, 8)), ((0, 2), (6, 8)), [KernelCall((0, 4), (0, 4), True)]),
        (((0, 2), (6, 8)), ((2, 6),), [KernelCall((2, 4), (0, 4), False)]),
        (((2, 6),), ((0, 2), (6, 8)), [KernelCall((0, 4), (0, 2), False)]),
        (
            ((0, 2), (6, 8)),
            ((0, 2), (6, 8), (2, 6)),
            [KernelCall((0, 4), (0, 4), True), KernelCall((2, 4), (4, 8), False)],
        ),
        (
            ((4, 8),),
            ((0, 8),),
            [KernelCall((0, 4), (4, 8), True), KernelCall((0, 4), (0, 4), False)],
        ),
        (((7, 8),), ((0, 8),), [KernelCall((0, 1), (0, 8), False)]),
        (((0, 4),), ((4, 8),), []),
    ],
)
def test_calls_are_few(queries: Indices, keys: Indices, expected: list[KernelCall]) -> None:
    assert list(kernel_calls(queries, keys, causal=True)) == expected
