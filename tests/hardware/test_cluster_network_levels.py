"""Where devices lie: units of every level, for uniform and mixed clusters."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwright.hardware.catalog.default_nodes import smaller_node
from shardwright.hardware.cluster import Cluster, FabricTier, NodeKind, NodeTier
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.cluster_network_levels import (
    level_between,
    network_levels,
    network_units,
    node_group_numbers,
    with_working_devices,
)
from tests.tiers import examples

KINDS = (
    "h100-sxm:8",
    "h100-sxm:24",
    "a100-sxm-80gb:4",
    "t4:12",
    "gb200-nvl72:72",
    "gb200-nvl72:36",
    "v100-sxm-32gb:16",
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    words = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    zones = (
        [f"@{draw(st.sampled_from('ab'))}" for _ in words]
        if draw(st.booleans())
        else [""] * len(words)
    )
    link = ",a~b=10gbps/30ms" if len(set(zones)) > 1 else ""
    cluster = parse_cluster(
        "+".join(word + zone for word, zone in zip(words, zones, strict=True)) + link
    )
    size = draw(st.sampled_from((0, 4, 16, 64)))
    leaf = FabricTier(name="leaf", num_devices=size, oversubscription=3.0, latency_s=1e-6)
    fabric = (leaf, FabricTier(name="spine", num_devices=0, oversubscription=2.0)) if size else ()
    if draw(st.booleans()):
        cluster = with_divided_nodes(cluster)
    return replace(cluster, fabric=fabric)


def with_divided_nodes(cluster: Cluster) -> Cluster:
    return replace(
        cluster, groups=tuple(replace(group, kind=divided(group.kind)) for group in cluster.groups)
    )


def divided(kind: NodeKind) -> NodeKind:
    """Nodes of 8 as two processors of two pairs each, others as they are."""
    if (kind.num_devices, kind.island) != (8, 8):
        return kind
    link = replace(kind.scale_up, bandwidth=2e10, efficiency=0.5)
    tiers = (
        NodeTier(name="processor", num_devices=4, link=link),
        NodeTier(name="sockets", num_devices=8, link=link),
    )
    return replace(kind, island=2, node_tiers=tiers)


@examples(30, 2000)
@given(clusters())
def test_levels_nest_and_islands_are_those_of_the_nodes(cluster: Cluster) -> None:
    devices = np.arange(cluster.num_devices)
    units = network_units(cluster)
    assert all(
        len(network_levels(cluster, group)) == len(units) for group in range(len(cluster.groups))
    )
    for inner, outer in pairwise(units):
        assert all(
            len(set(outer.of(devices[inner.of(devices) == unit]).tolist())) == 1
            for unit in set(inner.of(devices).tolist())
        )
    assert set(units[-1].of(devices).tolist()) == {0}
    for level in units:
        lying = level.of(devices)
        assert (np.diff(lying) >= 0).all()
        assert (np.bincount(lying)[lying] <= level.sizes(devices)).all()
    island, group = units[0].of(devices), node_group_numbers(cluster, devices)
    # Nodes of one kind and zone that stand side by side fill the same islands, whether they were
    # written as one group or as two.
    like = [
        (cluster.groups[number].kind, cluster.groups[number].zone)
        for number in range(len(cluster.groups))
    ]
    assert all(
        len({like[number] for number in set(group[island == unit].tolist())}) == 1
        for unit in set(island.tolist())
    )


@examples(30, 2000)
@given(clusters(), st.sampled_from(KINDS))
def test_more_devices_behind_move_nobody(cluster: Cluster, more: str) -> None:
    """Two devices exchange as fast whatever lies behind them, but for what fills an island that
    they only begin."""
    assume(not cluster.expression.endswith("gb200-nvl72:36") or not more.startswith("gb200"))
    nodes, *links = cluster.expression.split(",")
    if cluster.zones != ("",):
        more, links = f"{more}@c", [*links, *(f"{zone}~c=5gbps/0ms" for zone in cluster.zones)]
    larger = replace(parse_cluster(",".join([f"{nodes}+{more}", *links])), fabric=cluster.fabric)
    larger = with_divided_nodes(larger) if with_divided_nodes(cluster) == cluster else larger
    one, other = np.divmod(
        np.arange(min(cluster.num_devices, 24) ** 2), min(cluster.num_devices, 24)
    )
    found = []
    for some in (cluster, larger):
        level = level_between(one, other, network_units(some))
        kinds = node_group_numbers(some, one)
        seen = [network_levels(some, group) for group in range(len(some.groups))]
        near = np.array([group.zone for group in some.groups])
        there = near[kinds] == near[node_group_numbers(some, other)]
        met = zip(kinds[there].tolist(), level[there].tolist(), strict=True)
        found.append([(seen[k][at].bandwidth, seen[k][at].latency_s) for k, at in met])
    assert found[0] == found[1]


@examples(30, 2000)
@given(clusters(), st.data())
def test_units_seen_from_a_place_are_those_of_the_cluster(
    cluster: Cluster, data: st.DataObject
) -> None:
    """Two devices lie in one unit, or not, however they are counted; and what lies alike is seen
    alike."""
    devices = st.integers(0, cluster.num_devices - 1)
    first, last = sorted((data.draw(devices), data.draw(devices)))
    for level in network_units(cluster)[:-1]:
        base, seen = level.seen_from(first, [last])
        assert level.at(base) == level.at(first)
        assert base == 0 or level.at(base - 1) < level.at(base)
        some = np.arange(base, last + 1)
        one, other = level.of(some), seen.of(some - base)
        assert ((one[:, None] == one) == (other[:, None] == other)).all()
        assert [level.at(device) for device in some.tolist()] == one.tolist()


def test_islands_behind_an_odd_group_begin_where_it_ends() -> None:
    cluster = parse_cluster("a100-sxm-80gb:4+h100-sxm:16")
    assert network_units(cluster)[0].of(np.array([0, 3, 4, 11, 12, 19])).tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_a_leaf_takes_whole_islands_only() -> None:
    """Leaves of 16 over islands of 4, 8 and 8: the third island has no room beside the first
    two."""
    cluster = replace(
        parse_cluster("a100-sxm-80gb:4+h100-sxm:16"),
        fabric=(FabricTier(name="leaf", num_devices=16),),
    )
    leaf = network_units(cluster)[1]
    assert leaf.of(np.arange(20)).tolist() == [0] * 12 + [1] * 8
    assert leaf.sizes(np.array([0, 19])).tolist() == [12, 8]


@pytest.mark.parametrize("text", ["h100-sxm:64", "gb200-nvl72:144", "a100-sxm-80gb:8"])
def test_a_uniform_cluster_has_its_tiers(text: str) -> None:
    cluster = parse_cluster(text)
    devices = np.arange(cluster.num_devices)
    for tier, level in zip(cluster.tiers(), network_units(cluster), strict=True):
        assert level.of(devices).tolist() == (devices // tier.num_devices).tolist()


def test_a_tier_inside_all_islands_narrows_those_above() -> None:
    """A leaf of 4 devices is no level where islands have 8 and more; what it narrows by and how
    long it takes hold above it, for uniform and mixed clusters alike."""
    fabric = (
        FabricTier(name="leaf", num_devices=4, oversubscription=3.0, latency_s=1e-6),
        FabricTier(name="spine", num_devices=0, oversubscription=2.0, latency_s=2e-6),
    )
    uniform = replace(parse_cluster("h100-sxm:32"), fabric=fabric)
    mixed = replace(parse_cluster("h100-sxm:16+h200-sxm:16"), fabric=fabric)
    alone, beside = network_levels(uniform, 0), network_levels(mixed, 0)
    assert [(tier.name, tier.bandwidth, tier.latency_s) for tier in beside] == [
        (tier.name, tier.bandwidth, tier.latency_s) for tier in alone
    ]
    card = uniform.node.network_per_device.achieved
    assert beside[1].bandwidth == pytest.approx(card / 6)
    assert beside[1].latency_s == pytest.approx(uniform.node.nic.latency_s + 3e-6)


def test_stages_in_whole_islands_are_seen_alike() -> None:
    """Of islands of 4 (three), then of 8: devices 4 to 7 and 8 to 11, and 12 to 19 and 20 to 27."""
    islands = network_units(parse_cluster("t4:12+h100-sxm:16"))[0]
    assert islands.seen_from(5, [7])[1] == islands.seen_from(9, [11])[1]
    assert islands.seen_from(12, [19])[1] == islands.seen_from(21, [27])[1]
    assert islands.seen_from(5, [7])[1] != islands.seen_from(12, [19])[1]
    assert islands.seen_from(9, [13])[1].of(np.array([0, 3, 4, 11])).tolist() == [0, 0, 1, 1]


def test_a_device_has_an_equal_part_of_what_its_unit_sends_into_a_tier_of_the_node() -> None:
    kind = divided(parse_cluster("h100-sxm:8").node)
    island, processor, sockets = kind.inner_levels
    assert (island.num_devices, processor.num_devices, sockets.num_devices) == (2, 4, 8)
    assert (processor.bandwidth, sockets.bandwidth) == (1e10 / 2, 1e10 / 4)
    cluster = replace(
        parse_cluster("h100-sxm:16"),
        groups=(replace(parse_cluster("h100-sxm:16").groups[0], kind=kind),),
    )
    assert [tier.name for tier in cluster.tiers()] == ["island", "processor", "sockets", "network"]
    assert cluster.tiers()[-1].bandwidth == kind.network_per_device.achieved
    # Three devices at work share the link of their processor by three.
    alone = with_working_devices(cluster, (0, 1, 2)).node.inner_levels
    assert alone[-1].bandwidth == pytest.approx(1e10 / 3)
    smaller = smaller_node(kind, num_devices=4)
    assert [level.num_devices for level in smaller.inner_levels] == [2, 4]
