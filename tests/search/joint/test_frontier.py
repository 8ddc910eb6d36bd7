"""Frontiers of time against memory: the same as over all assignments, and bounds that bound."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import UsageError
from shardwright.search.joint.frontier import Choice, LayerGroup, exposed_copy, frontier, lower_envelope, memory_options, thinned


@st.composite
def layer_groups(draw: st.DrawFn) -> list[LayerGroup]:
    """Up to 4 groups of up to 5 layers with up to 3 options; eighths of a second, so sums are exact."""
    result = []
    for _ in range(draw(st.integers(1, 4))):
        k = draw(st.integers(1, 3))
        seconds = draw(st.lists(st.integers(0, 12), min_size=k, max_size=k))
        size = draw(st.lists(st.integers(0, 12), min_size=k, max_size=k))
        result.append(LayerGroup(count=draw(st.integers(0, 5)), seconds=np.array(seconds) / 8, bytes=np.array(size)))
    return result


def counts_of(group: LayerGroup) -> list[tuple[int, ...]]:
    """All counts of a group's layers by option."""
    return [counts for counts in product(range(group.count + 1), repeat=len(group.seconds)) if sum(counts) == group.count]


def brute(groups: list[LayerGroup], limit: int | None) -> list[tuple[int, float]]:
    """(bytes, seconds) that nothing is as good as, over all assignments."""
    points = {
        (
            sum(n * int(b) for g, of in zip(groups, counts, strict=True) for n, b in zip(of, g.bytes, strict=True)),
            sum(n * float(s) for g, of in zip(groups, counts, strict=True) for n, s in zip(of, g.seconds, strict=True)),
        )
        for counts in product(*(counts_of(group) for group in groups))
    }
    best: list[tuple[int, float]] = []
    for size, seconds in sorted(points):
        if (limit is None or size <= limit) and (not best or seconds < best[-1][1]):
            best.append((size, seconds))
    return best


@given(groups=layer_groups(), limit=st.none() | st.integers(0, 80))
@settings(deadline=None, max_examples=60)
def test_the_frontier_of_all_assignments(groups: list[LayerGroup], limit: int | None) -> None:
    found = frontier(groups, limit=limit)
    assert [(choice.bytes, choice.seconds) for choice in found] == brute(groups, limit)
    for choice in found:
        assert [sum(of) for of in choice.counts] == [group.count for group in groups]
        assert choice.bytes == sum(int(np.dot(of, g.bytes)) for of, g in zip(choice.counts, groups, strict=True))
        assert choice.seconds == sum(float(np.dot(of, g.seconds)) for of, g in zip(choice.counts, groups, strict=True))


@given(groups=layer_groups(), most=st.integers(2, 6))
@settings(deadline=None, max_examples=60)
def test_thinned_stays_achievable_and_the_envelope_below(groups: list[LayerGroup], most: int) -> None:
    found = frontier(groups)
    few, envelope = thinned(found, max_points=most), lower_envelope(found)
    assert set(few) <= set(found)
    assert len(few) <= most
    assert few[0] == found[0]
    assert few[-1] == found[-1]
    assert all(envelope.at(choice.bytes) <= choice.seconds + 1e-12 for choice in found)
    assert envelope.at(found[0].bytes - 1) == float("inf")
    assert envelope.at(found[-1].bytes + 5) == found[-1].seconds
    slopes = np.diff(envelope.seconds) / np.diff(envelope.bytes)
    assert (np.diff(slopes) > 0).all()


def test_the_envelope_leaves_out_what_lies_above() -> None:
    points = [Choice(seconds=s, bytes=b, counts=()) for b, s in ((0, 10.0), (5, 9.0), (10, 0.0))]
    envelope = lower_envelope(points)
    assert envelope.bytes.tolist() == [0, 10]
    assert envelope.at(5) == 5.0


def test_many_layers() -> None:
    """126 layers, seconds and bytes that share no divisor: ends are all-full and all-none, and one more kept layer always helps."""
    group = LayerGroup(count=126, seconds=np.array([0.0, 0.0031, 0.0173]), bytes=np.array([1_000_003, 611_953, 50_021]))
    found = frontier([group])
    assert found[0].counts == ((0, 0, 126),)
    assert found[-1].counts == ((126, 0, 0),)
    assert len(found) >= 127
    half = frontier([group], limit=63_000_000)
    assert half == tuple(choice for choice in found if choice.bytes <= 63_000_000)


@given(groups=layer_groups(), seconds=st.integers(2, 5), size=st.integers(2, 5))
@settings(deadline=None, max_examples=30)
def test_rescaled(groups: list[LayerGroup], seconds: int, size: int) -> None:
    """Times and bytes rescale the frontier."""
    scaled = [LayerGroup(count=g.count, seconds=g.seconds * seconds, bytes=g.bytes * size) for g in groups]
    assert [(c.seconds, c.bytes) for c in frontier(scaled)] == [(c.seconds * seconds, c.bytes * size) for c in frontier(groups)]


def test_exposed_copies() -> None:
    assert exposed_copy(50 * 10**9, bytes_per_second=25e9, overlap_seconds=1.5) == 0.5
    assert exposed_copy(10**9, bytes_per_second=25e9, overlap_seconds=1.5) == 0.0
    with pytest.raises(UsageError, match="a rate above 0"):
        exposed_copy(1, bytes_per_second=0, overlap_seconds=0)


def test_options_of_an_order() -> None:
    """Times round up; what keeps less than W reads has a whole backward."""
    found = frontier([LayerGroup(count=2, seconds=np.array([0.0, 0.25]), bytes=np.array([10, 3]))])
    options = memory_options(found, seconds_per_unit=0.1, stash=8, working=7)
    assert [(o.extra, o.held, o.stash, o.working, o.whole) for o in options] == [
        (5, 6, 0, 7, True),
        (3, 13, 8, 7, False),
        (0, 20, 8, 0, False),
    ]


def test_what_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="seconds and bytes of each"):
        LayerGroup(count=1, seconds=np.array([0.0, 1.0]), bytes=np.array([1]))
    with pytest.raises(UsageError, match="finite"):
        LayerGroup(count=1, seconds=np.array([np.nan]), bytes=np.array([1]))
    with pytest.raises(UsageError, match="both its ends"):
        thinned([Choice(seconds=1 - i / 9, bytes=i, counts=()) for i in range(3)], max_points=1)
    with pytest.raises(UsageError, match="no envelope"):
        lower_envelope(())
