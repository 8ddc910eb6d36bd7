"""The network as devices of mixed kinds see it: the slowest of them on every tier."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.network.grid_groups_and_collective_seconds import network_of
from shardwright.cost.network.networks_of_plan_devices import (
    kind_problem,
    network_among,
    network_of_devices,
    node_group_of,
    rates_between,
    uniform_cluster,
)
from shardwright.cost.network.stage_transfers import crossing_seconds
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.cluster_network_levels import network_levels
from shardwright.program.stages.stage_messages import Messages
from tests.simulator.general import problem_for
from tests.strategy.zoo_models import dense

MIXED = "a100-sxm-80gb:8+h100-sxm:16"
LIBRARY = problem_for(dense(), batch=8).runtime.collective_library


def test_devices_are_of_the_kind_of_their_node() -> None:
    cluster = parse_cluster(MIXED)
    assert [node_group_of(cluster, d) for d in (0, 7, 8, 23)] == [0, 0, 1, 1]
    with pytest.raises(IndexError):
        node_group_of(cluster, 24)
    problem = problem_for(dense(), batch=8, cluster=MIXED)
    names = [kind_problem(problem, d).cluster.node.accelerator.name for d in (7, 8)]
    assert names == [g.kind.accelerator.name for g in cluster.groups]


def test_each_tier_is_the_slowest_kinds() -> None:
    cluster = parse_cluster(MIXED)
    alone = [network_of(uniform_cluster(cluster, kind), library=LIBRARY) for kind in (0, 1)]
    both = network_among(cluster, (0, 1), LIBRARY)
    assert alone[0].tiers[0].bandwidth < alone[1].tiers[0].bandwidth
    for tier, one, other in zip(both.tiers, alone[0].tiers, alone[1].tiers, strict=True):
        assert tier.bandwidth == min(one.bandwidth, other.bandwidth)
        assert tier.latency_s == max(one.latency_s, other.latency_s)


def test_a_group_of_one_kind_has_that_kinds_network() -> None:
    problem = problem_for(dense(), batch=8, cluster=MIXED)
    fast = network_of(uniform_cluster(problem.cluster, 1), library=LIBRARY)
    rates = [
        [(t.bandwidth, t.latency_s) for t in tiers]
        for tiers in (network_of_devices(problem, (8, 9, 23)).tiers, fast.tiers)
    ]
    assert rates[0] == rates[1]
    assert network_of_devices(problem, (7, 8)).tiers[0].bandwidth < fast.tiers[0].bandwidth


def test_a_send_is_as_fast_as_the_slower_of_its_ends() -> None:
    problem = problem_for(dense(), batch=8, cluster=MIXED)
    slow, fast = (network_levels(problem.cluster, kind)[0] for kind in (0, 1))
    found = rates_between(problem, np.array([0, 8, 0]), np.array([1, 9, 8]), 0)
    assert found.bandwidth.tolist() == [slow.bandwidth, fast.bandwidth, slow.bandwidth]
    assert found.latency_s.tolist() == [
        slow.latency_s,
        fast.latency_s,
        max(slow.latency_s, fast.latency_s),
    ]


def test_messages_of_unlike_ends_add_up_at_the_device_that_gets_both() -> None:
    """Device 8 gets 3 MB from an A100 and 1 MB from an H100 of another node: each at its own rate,
    one after the other."""
    problem = problem_for(dense(), batch=8, cluster=MIXED)
    slow, fast = (network_levels(problem.cluster, kind)[1] for kind in (0, 1))
    messages = Messages(
        base=0, sends=np.array([[0, 8, 3_000_000], [16, 8, 1_000_000]]), collectives=()
    )
    found = crossing_seconds(problem, messages, scale=1.0)
    assert slow.bandwidth < fast.bandwidth
    assert found == pytest.approx(
        max(slow.latency_s, fast.latency_s) + 3e6 / slow.bandwidth + 1e6 / fast.bandwidth, rel=1e-9
    )
