"""What every registered algorithm must hold, for each kind that it runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import (
    ALGORITHMS,
    ENGINE_ALGORITHMS,
    SCHEDULED,
    algorithm_named,
)
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.errors import UsageError
from tests.collectives.spans import spans
from tests.tiers import examples

CASES = [
    pytest.param(name, kind, id=f"{name}-{kind.value}")
    for name in ALGORITHMS
    for kind in sorted(algorithm_named(name).kinds, key=lambda kind: kind.value)
]
SEVERAL_LINKS_AT_ONCE = (
    "pairwise",
    "double_binary_tree",
    "nvlink_sharp",
    "forest",
    "tree",
    "low_latency",
)  # a member's island and network links both work
FEW = examples(25)
volumes = st.floats(0.0, 1e12)


def priced(name: str, kind: Collective, volume: float, span: Span) -> FloatArray:
    seconds = algorithm_named(name).seconds(
        kind, volume=np.full(span.size.shape, volume), span=span
    )
    assert seconds.shape == span.size.shape
    assert seconds.dtype == np.float64
    return seconds


def is_free_for_one_member(span: Span, seconds: FloatArray) -> None:
    assert not np.isnan(seconds).any()
    assert (seconds[span.size == 1] == 0.0).all()
    assert (seconds[span.size > 1] > 0.0).all()


def is_homogeneous_in_seconds_and_bytes(
    name: str, kind: Collective, volume: float, span: Span, scale: float
) -> None:
    seconds = priced(name, kind, volume, span)
    slower = replace(
        span,
        bandwidth=tuple(b / scale for b in span.bandwidth),
        latency_s=tuple(latency * scale for latency in span.latency_s),
    )
    np.testing.assert_allclose(priced(name, kind, volume, slower), seconds * scale, rtol=1e-12)
    larger = replace(span, bandwidth=tuple(b * scale for b in span.bandwidth))
    np.testing.assert_allclose(priced(name, kind, volume * scale, larger), seconds, rtol=1e-12)


def grows_when_the_outermost_tier_has_twice_the_members(
    name: str, kind: Collective, volume: float, span: Span
) -> None:
    if name in ("nvlink_sharp", "multimem") and len(span.members) == 1:
        return  # each member writes back its 1/n of the sum: more members, fewer bytes
    if name == "forest":
        # how numbers divide decides how many trees there are; its bytes are those of its packing
        # (test_schedules)
        return
    if name == "tree" and not all(
        (outer % inner == 0).all() for inner, outer in pairwise(span.below)
    ):
        return  # twice the members of 8 and 1 are 8, 8 and 2: other islands, and other rounds
    wider = replace(span, below=(*span.below[:-1], span.below[-1] * 2))
    before, after = priced(name, kind, volume, span), priced(name, kind, volume, wider)
    legal = np.isfinite(before)
    assert (after[legal] >= before[legal] * (1 - 1e-12)).all()


def keeps_every_link_busy_no_longer_than_it_lasts(
    name: str, kind: Collective, volume: float, span: Span
) -> None:
    seconds = priced(name, kind, volume, span)
    sent = algorithm_named(name).wire_bytes(
        kind, volume=np.full(span.size.shape, volume), span=span
    )
    assert len(sent) == len(span.members)
    for tier, (load, bandwidth) in enumerate(zip(sent, span.bandwidth, strict=True)):
        assert load.shape == span.size.shape
        assert (load >= 0.0).all()
        assert (load[span.size == 1] == 0.0).all(), tier
        assert (load / bandwidth <= seconds * (1 + 1e-12)).all(), tier


def respects_the_bandwidth_bound(name: str, kind: Collective, volume: float, span: Span) -> None:
    size = span.size
    fastest = np.max(span.bandwidth, axis=0)
    share = (
        np.ones(size.shape)
        if kind in (Collective.BROADCAST, Collective.SEND)
        else (size - 1) / size
    )
    if kind is Collective.ALL_REDUCE and name not in ("nvlink_sharp", "multimem"):
        share = share * 2
    if name in SEVERAL_LINKS_AT_ONCE and len(span.bandwidth) > 1:
        fastest = span.bandwidth[0] + np.max(span.bandwidth[1:], axis=0)
    bound = np.where(size > 1, share * volume / fastest, 0.0)
    assert (priced(name, kind, volume, span) >= bound * (1 - 1e-12)).all(), (
        f"{name} takes less time than its fastest link needs for the bytes: correct its seconds, or"
        " add it to SEVERAL_LINKS_AT_ONCE in tests/collectives/test_conformance.py if it works on"
        " the island's and the network's links at once"
    )


@pytest.mark.parametrize(("name", "kind"), CASES)
class TestEveryAlgorithm:
    @FEW
    @given(span=spans(), volume=volumes, scale=st.floats(1e-3, 1e3), more=st.floats(1.0, 10.0))
    def test_takes_what_its_links_and_members_allow(
        self, name: str, kind: Collective, span: Span, volume: float, scale: float, more: float
    ) -> None:
        seconds = priced(name, kind, volume, span)
        is_free_for_one_member(span, seconds)
        is_homogeneous_in_seconds_and_bytes(name, kind, volume, span, scale)
        assert (priced(name, kind, volume * more, span) >= seconds).all()
        grows_when_the_outermost_tier_has_twice_the_members(name, kind, volume, span)
        keeps_every_link_busy_no_longer_than_it_lasts(name, kind, max(volume, 1.0), span)
        respects_the_bandwidth_bound(name, kind, max(volume, 1.0), span)

    @FEW
    @given(span=spans(max_groups=5), volume=volumes)
    def test_prices_each_group_by_itself(
        self, name: str, kind: Collective, span: Span, volume: float
    ) -> None:
        together = priced(name, kind, volume, span)
        for group in range(together.size):
            alone = replace(
                span,
                below=tuple(array[group : group + 1] for array in span.below),
                bandwidth=tuple(array[group : group + 1] for array in span.bandwidth),
                latency_s=tuple(array[group : group + 1] for array in span.latency_s),
            )
            np.testing.assert_allclose(
                priced(name, kind, volume, alone)[0], together[group], rtol=1e-14
            )

    def test_carries_its_registry_name(self, name: str, kind: Collective) -> None:
        algorithm = algorithm_named(name)
        assert algorithm.name == name, (
            f"the algorithm {algorithm.name} is {name} in ALGORITHMS of"
            " src/shardwright/collectives/algorithm_registry.py: use one name"
        )
        assert kind in algorithm.kinds

    def test_refuses_other_kinds(self, name: str, kind: Collective) -> None:
        span = Span(
            below=(np.array([2]),), bandwidth=(np.array([1e9]),), latency_s=(np.array([1e-6]),)
        )
        for other in set(Collective) - algorithm_named(name).kinds:
            with pytest.raises(UsageError, match=other.value):
                algorithm_named(name).seconds(other, volume=np.ones(1), span=span)


@FEW
@given(span=spans(), volume=volumes)
def test_adjoint_pairs_cost_the_same(span: Span, volume: float) -> None:
    for name in ALGORITHMS:
        kinds = algorithm_named(name).kinds
        for one, other in (
            (Collective.ALL_GATHER, Collective.REDUCE_SCATTER),
            (Collective.SCATTER, Collective.GATHER),
        ):
            if one in kinds:
                assert other in kinds
                np.testing.assert_array_equal(
                    priced(name, one, volume, span), priced(name, other, volume, span)
                )
        if Collective.ALL_GATHER in kinds:
            both = priced(name, Collective.ALL_GATHER, volume, span) + priced(
                name, Collective.REDUCE_SCATTER, volume, span
            )
            np.testing.assert_allclose(
                priced(name, Collective.ALL_REDUCE, volume, span), both, rtol=1e-12
            )


def test_every_kind_has_an_algorithm_that_is_always_legal() -> None:
    always = {
        kind
        for name in ALGORITHMS
        if name not in ("halving_doubling", "nvlink_sharp", *SCHEDULED, *ENGINE_ALGORITHMS)
        for kind in algorithm_named(name).kinds
    }
    assert always == set(Collective)
