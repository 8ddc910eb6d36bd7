"""Prices over an oversubscribed network against a fluid model: every message a flow, and the
fullest link says how long all take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations, product

import numpy as np
import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.all_to_all_pairwise_hierarchical import PAIRWISE
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import LinearAlgorithm
from shardwright.collectives.algorithm_costs.ring import RING
from shardwright.collectives.groups.span_members_by_network_tier import span_of
from shardwright.hardware.cluster import Cluster, FabricTier
from shardwright.hardware.cluster_expression import parse_cluster

NODE, LEAF, ALL = 8, 32, 128
MESHES = [
    (128, 1),
    (64, 1),
    (16, 8),
    (8, 16),
    (4, 32),
    (2, 64),
    (32, 4),
    (16, 4),
    (64, 2),
    (16, 1),
    (4, 8),
]


def cluster(over: float) -> Cluster:
    fabric = (
        FabricTier(name="leaf", num_devices=LEAF),
        FabricTier(name="spine", num_devices=0, oversubscription=over),
    )
    return replace(parse_cluster(f"h100-sxm:{ALL}"), fabric=fabric)


def groups(degree: int, stride: int) -> Iterator[list[int]]:
    """All groups along one axis of a mesh over all devices."""
    for outer, inner in product(range(0, ALL, degree * stride), range(stride)):
        yield [outer + inner + i * stride for i in range(degree)]


def ring_flows(group: list[int]) -> Iterator[tuple[int, int, float]]:
    """(sender, receiver, bytes a byte of volume) of an all-gather: rings turned, so that each
    member of a node is the last in as many."""
    here = [
        [d for d in group if d // NODE == node] for node in dict.fromkeys(d // NODE for d in group)
    ]
    share = 1 / len(here[0])
    for turn in range(len(here[0])):
        order = [d for members in here for d in members[turn:] + members[:turn]]
        for sender, receiver in pairwise([*order, order[0]]):
            yield sender, receiver, share * (len(group) - 1) / len(group)


def pair_flows(group: list[int]) -> Iterator[tuple[int, int, float]]:
    for sender, receiver in permutations(group, 2):
        yield sender, receiver, 1 / len(group)


def fluid_seconds(flows: list[tuple[int, int, float]], over: float) -> float:
    """Seconds a byte until the fullest link is done: links of an island, cards, and what a leaf's
    devices have of the spine together."""
    tiers = cluster(over).tiers()
    island, card = tiers[0].bandwidth, tiers[1].bandwidth
    load: Counter[tuple[str, int]] = Counter()
    for sender, receiver, size in flows:
        if sender // NODE == receiver // NODE:
            load["island out", sender] += size / island
            load["island in", receiver] += size / island
            continue
        load["card out", sender] += size / card
        load["card in", receiver] += size / card
        if sender // LEAF != receiver // LEAF:
            load["leaf out", sender // LEAF] += size / (LEAF * card / over)
            load["leaf in", receiver // LEAF] += size / (LEAF * card / over)
    return max(load.values())


@pytest.mark.parametrize("over", [1.0, 2.0, 3.0, 5.0, 16.0])
@pytest.mark.parametrize(
    ("algorithm", "kind", "flows"),
    [(RING, Collective.ALL_GATHER, ring_flows), (PAIRWISE, Collective.ALL_TO_ALL, pair_flows)],
)
def test_prices_are_those_of_the_fullest_link(
    algorithm: LinearAlgorithm, kind: Collective, flows: object, over: float
) -> None:
    assert callable(flows)
    for degree, stride in MESHES:
        every = [flow for group in groups(degree, stride) for flow in flows(group)]
        span = span_of(cluster(over).tiers(), ((np.array([degree]), np.array([stride])),))
        small, large = (
            algorithm.seconds(kind, volume=np.array([volume]), span=span)[0]
            for volume in (0.0, 1e9)
        )
        assert (large - small) / 1e9 == pytest.approx(fluid_seconds(every, over), rel=1e-9), (
            degree,
            stride,
        )


def test_a_ring_crosses_a_thin_spine_unslowed_where_few_of_its_members_do() -> None:
    """A leaf of 4 nodes sends a quarter of its cards' rate over the spine: 3:1 leaves room for it,
    5:1 does not."""
    whole = [flow for group in groups(ALL, 1) for flow in ring_flows(group)]
    assert fluid_seconds(whole, 3.0) == fluid_seconds(whole, 1.0) < fluid_seconds(whole, 5.0)
