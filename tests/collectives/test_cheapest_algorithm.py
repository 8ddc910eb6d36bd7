"""`choose` is the elementwise minimum, the same for many groups and for one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs import nvlink_sharp_all_reduce as nvlink_sharp
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import (
    ALGORITHMS,
    LIBRARIES,
    algorithm_named,
    algorithms_for,
)
from shardwright.collectives.cheapest_algorithm import collective_seconds, price_list
from shardwright.collectives.groups.span_cost_quantities import distinct_groups, span_quantities
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.errors import RuntimeModelError
from tests.collectives.spans import nested, one_group, spans
from tests.tiers import examples

FEW = examples(50)


def many_groups(count: int, *, tiers: int = 3, varied: bool = False) -> Span:
    random = np.random.default_rng(7)
    spread = random.uniform(0.5, 1.0, count) if varied else np.ones(count)
    return Span(
        below=nested(tuple(random.integers(1, 9, count) for _ in range(tiers))),
        bandwidth=tuple(spread * value for value in (400e9, 50e9, 25e9)[:tiers]),
        latency_s=tuple(spread * value for value in (2e-6, 9e-6, 12e-6)[:tiers]),
        in_network_reduction=True,
    )


@FEW
@given(
    span=spans(),
    volume=st.floats(0, 1e12),
    kind=st.sampled_from(Collective),
    library=st.sampled_from(sorted(LIBRARIES)),
)
def test_is_the_minimum_over_legal_algorithms(
    span: Span, volume: float, kind: Collective, library: str
) -> None:
    algorithms = algorithms_for(kind, library=library)
    volumes = np.full(span.size.shape, volume)
    seconds, chosen = collective_seconds(kind, volume=volumes, span=span, algorithms=algorithms)
    each = np.stack(
        [algorithm.seconds(kind, volume=volumes, span=span) for algorithm in algorithms]
    )
    np.testing.assert_array_equal(seconds, each.min(axis=0))
    np.testing.assert_array_equal(chosen, each.argmin(axis=0))
    assert (seconds[span.size == 1] == 0.0).all()
    assert np.isfinite(seconds).all()


@pytest.mark.parametrize("kind", Collective)
@pytest.mark.parametrize("varied", [False, True], ids=["alike", "varied"])
def test_many_groups_cost_what_each_costs_alone(kind: Collective, varied: bool) -> None:
    span = many_groups(600, varied=varied)
    volume = np.random.default_rng(1).uniform(1e2, 1e9, 600)
    seconds, chosen = collective_seconds(kind, volume=volume, span=span)
    assert (distinct_groups(span)[1] is None) is varied
    algorithms = price_list(kind, span=span).algorithms
    loads = [
        algorithms[i].wire_bytes(kind, volume=volume, span=span) for i in range(len(algorithms))
    ]
    for group in range(0, 600, 37):
        alone = one_group(
            tuple(int(m[group]) for m in span.members),
            bandwidth=tuple(float(b[group]) for b in span.bandwidth),
            latency_s=tuple(float(latency[group]) for latency in span.latency_s),
        )
        expected, index = collective_seconds(kind, volume=volume[group : group + 1], span=alone)
        assert seconds[group] == pytest.approx(expected[0], rel=1e-13)
        assert chosen[group] == index[0]
        load = algorithms[index[0]].wire_bytes(kind, volume=volume[group : group + 1], span=alone)
        assert [float(tier[group]) for tier in loads[index[0]]] == pytest.approx(
            [float(tier[0]) for tier in load], rel=1e-12
        )


def test_distinct_groups_restore_the_span() -> None:
    span = many_groups(1000)
    smaller, rows = distinct_groups(span)
    assert rows is not None
    for small, full in zip(smaller.below, span.below, strict=True):
        np.testing.assert_array_equal(small[rows], full)
    counts = np.stack(smaller.below)
    assert np.unique(counts, axis=1).shape == counts.shape


def test_distinct_groups_leave_huge_counts_alone() -> None:
    span = many_groups(1000)
    huge = replace(span, below=(span.below[0], span.below[1] * 100_000, span.below[2] * 100_000))
    assert distinct_groups(huge) == (huge, None)
    seconds, _ = collective_seconds(Collective.ALL_REDUCE, volume=np.full(1000, 1e6), span=huge)
    assert np.isfinite(seconds).all()


@pytest.mark.parametrize("count", [3, 600])
def test_one_volume_for_all_groups_and_all_volumes_for_one_group(count: int) -> None:
    span = many_groups(count)
    all_volumes, _ = collective_seconds(
        Collective.ALL_REDUCE, volume=np.full(count, 1e7), span=span
    )
    one_volume, chosen = collective_seconds(
        Collective.ALL_REDUCE, volume=np.array([1e7]), span=span
    )
    np.testing.assert_array_equal(one_volume, all_volumes)
    assert chosen.shape == (count,)
    group = one_group((8, 4), bandwidth=(400e9, 50e9), latency_s=(2e-6, 9e-6))
    sweep, index = collective_seconds(
        Collective.ALL_REDUCE, volume=np.geomspace(1e3, 1e9, 7), span=group
    )
    assert sweep.shape == index.shape == (7,)
    assert (np.diff(sweep) > 0).all()


def test_an_extent_prices_like_its_span() -> None:
    span = many_groups(600)
    extent = span_quantities(span)
    for kind in Collective:
        by_span = collective_seconds(kind, volume=np.full(600, 1e6), span=span)
        by_extent = collective_seconds(kind, volume=np.full(600, 1e6), span=extent)
        np.testing.assert_array_equal(by_span, by_extent)


def test_small_buffers_take_few_steps_and_large_ones_few_bytes() -> None:
    span = one_group(
        (8, 16), bandwidth=(400e9, 50e9), latency_s=(2e-6, 9e-6), in_network_reduction=False
    )
    nccl = algorithms_for(Collective.ALL_REDUCE, library="nccl")
    _, chosen = collective_seconds(
        Collective.ALL_REDUCE, volume=np.array([1e3, 1e11]), span=span, algorithms=nccl
    )
    assert [nccl[index].name for index in chosen] == ["double_binary_tree", "ring"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLaw:
    """An algorithm whose time is no straight line in the volume."""

    name: str = "root_law"
    kinds: frozenset[Collective] = frozenset({Collective.SEND})

    def seconds(self, kind: Collective, *, volume: FloatArray, span: Span) -> FloatArray:
        return np.broadcast_to(1e-9 * np.sqrt(volume), span.size.shape).copy()

    def wire_bytes(
        self, kind: Collective, *, volume: FloatArray, span: Span
    ) -> tuple[FloatArray, ...]:
        return tuple(volume for _ in span.members)


def test_takes_algorithms_that_are_no_straight_line() -> None:
    span = one_group((2,), bandwidth=(1e9,), latency_s=(1e-6,))
    volume = np.array([1e6])
    seconds, chosen = collective_seconds(
        Collective.SEND, volume=volume, span=span, algorithms=(algorithm_named("send"), RootLaw())
    )
    assert (seconds[0], chosen[0]) == (1e-9 * 1e3, 1)


def test_no_algorithm_for_the_kind_is_an_error_with_a_hint() -> None:
    span = one_group((2,), bandwidth=(1e9,), latency_s=(1e-6,))
    with pytest.raises(
        RuntimeModelError, match="none of the algorithms given can run all_to_all"
    ) as caught:
        collective_seconds(
            Collective.ALL_TO_ALL,
            volume=np.ones(1),
            span=span,
            algorithms=(algorithm_named("ring"),),
        )
    assert "pairwise" in caught.value.hint


def test_unknown_names_suggest_the_near_one() -> None:
    with pytest.raises(RuntimeModelError, match="did you mean ring"):
        algorithm_named("rings")
    with pytest.raises(RuntimeModelError, match="did you mean nccl"):
        algorithms_for(Collective.SEND, library="ncl")


def test_libraries_list_registered_algorithms_and_run_every_kind() -> None:
    for library, names in LIBRARIES.items():
        assert set(names) <= set(ALGORITHMS)
        for kind in Collective:
            assert algorithms_for(kind, library=library)


def test_the_page_says_what_the_switch_takes() -> None:
    """The row of `nvlink_sharp` has its hops, its share of the links, and that two islands take
    half."""
    page = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| nvlink_sharp |"))
    assert f"| {nvlink_sharp.START_HOPS:g} a_0 + 2 sum_(k>0) lg(m_k) a_k |" in row
    assert f"max((c_0+1)/c_0 / ({nvlink_sharp.LINK_SHARE:g} B_0), 2 / (c_(k-1) B_k))" in row
    # Network alone: an island link that takes nothing, so that the second part of the maximum is
    # left.
    two, four = (
        one_group(
            (8, nodes), bandwidth=(1e20, 5e10), latency_s=(0.0, 0.0), in_network_reduction=True
        )
        for nodes in (2, 4)
    )
    seconds = [
        nvlink_sharp.NVLINK_SHARP.seconds(Collective.ALL_REDUCE, volume=np.array([1e9]), span=span)[
            0
        ]
        for span in (two, four)
    ]
    assert seconds == pytest.approx([1 / 8 / 50, 2 / 8 / 50])
    assert "the second half as large for N = 2" in row
