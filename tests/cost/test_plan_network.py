"""The network as devices of mixed kinds see it: the slowest of them on every tier."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.communication import network_of
from shardwright.cost.device_network import kind_of, kind_problem, network_among, network_of_devices, of_kind, tiers_between
from shardwright.hardware.expression import parse_cluster
from tests.simulator.general import problem_for
from tests.strategy.zoo_models import dense

MIXED = "a100-sxm-80gb:8+h100-sxm:16"
LIBRARY = problem_for(dense(), batch=8).runtime.collective_library


def test_devices_are_of_the_kind_of_their_node() -> None:
    cluster = parse_cluster(MIXED)
    assert [kind_of(cluster, d) for d in (0, 7, 8, 23)] == [0, 0, 1, 1]
    with pytest.raises(IndexError):
        kind_of(cluster, 24)
    problem = problem_for(dense(), batch=8, cluster=MIXED)
    names = [kind_problem(problem, d).cluster.node.accelerator.name for d in (7, 8)]
    assert names == [g.kind.accelerator.name for g in cluster.groups]


def test_each_tier_is_the_slowest_kinds() -> None:
    cluster = parse_cluster(MIXED)
    alone = [network_of(of_kind(cluster, kind), library=LIBRARY) for kind in (0, 1)]
    both = network_among(cluster, (0, 1), LIBRARY)
    assert alone[0].tiers[0].bandwidth < alone[1].tiers[0].bandwidth
    for tier, one, other in zip(both.tiers, alone[0].tiers, alone[1].tiers, strict=True):
        assert tier.bandwidth == min(one.bandwidth, other.bandwidth)
        assert tier.latency_s == max(one.latency_s, other.latency_s)
        assert tier.num_devices == min(one.num_devices, other.num_devices)


def test_a_group_of_one_kind_has_that_kinds_network() -> None:
    problem = problem_for(dense(), batch=8, cluster=MIXED)
    fast = network_of(of_kind(problem.cluster, 1), library=LIBRARY)
    assert network_of_devices(problem, (8, 9, 23)).tiers == fast.tiers
    assert network_of_devices(problem, (7, 8)).tiers[0].bandwidth < fast.tiers[0].bandwidth


def test_tier_of_pairs() -> None:
    tiers = network_among(parse_cluster("h100-sxm:16"), (0,), LIBRARY).tiers
    found = tiers_between(np.array([0, 0, 7, 8]), np.array([7, 8, 8, 15]), tiers)
    assert found.tolist() == [0, len(tiers) - 1, len(tiers) - 1, 0]
