"""Overrides, events in time and measured profiles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import ClusterError, DataError
from shardwright.hardware.change import BandwidthChange, DevicesAdded, DevicesLost, Timeline, apply_change, cluster_at
from shardwright.hardware.expression import parse_cluster
from shardwright.hardware.overrides import effective_memory, limit_devices, reserve_memory, scale_network
from shardwright.hardware.profile import profiled_names, shipped_profile


def test_scale_network_scales_every_tier_but_the_island() -> None:
    cluster = parse_cluster("meta-24k-roce")
    scaled = scale_network(cluster, factor=0.9)
    island, *network = zip(cluster.tiers(), scaled.tiers(), strict=True)
    assert island[0] == island[1]
    assert all(new.bandwidth == pytest.approx(0.9 * old.bandwidth) for old, new in network)
    assert all(new.latency_s == old.latency_s for old, new in network)
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ClusterError):
            scale_network(cluster, factor=factor)


@pytest.mark.parametrize(("limit", "kept"), [(1000, 96), (96, 96), (70, 64), (72, 72), (8, 8), (7, 7), (1, 1)])
def test_limit_devices_keeps_whole_nodes(limit: int, kept: int) -> None:
    assert limit_devices(parse_cluster("a100:64+v100:32"), num_devices=limit).num_devices == kept


def test_reserve_memory() -> None:
    cluster = parse_cluster("a100:64+v100:32")
    v100 = cluster.groups[1].kind.accelerator.memory_bytes
    assert effective_memory(cluster) == v100
    assert effective_memory(reserve_memory(cluster, reserve_bytes=10)) == v100 - 10
    with pytest.raises(ClusterError, match="leaves nothing on v100"):
        reserve_memory(cluster, reserve_bytes=v100)


@settings(max_examples=200, deadline=None)
@given(first=st.integers(0, 95), count=st.integers(1, 96))
def test_losing_devices_loses_exactly_those(first: int, count: int) -> None:
    cluster = parse_cluster("a100:64+v100:32")
    if first + count > 96 or count == 96:
        with pytest.raises(ClusterError):
            apply_change(cluster, change=DevicesLost(time_s=0.0, first=first, count=count))
        return
    after = apply_change(cluster, change=DevicesLost(time_s=0.0, first=first, count=count))
    kinds = {
        name: sum(g.count * g.kind.num_devices for g in after.groups if g.kind.accelerator.name == name)
        for name in ("a100-sxm-80gb", "v100-sxm-32gb")
    }
    lost_a100 = max(0, min(64, first + count) - first)
    assert kinds == {"a100-sxm-80gb": 64 - lost_a100, "v100-sxm-32gb": 32 - (count - lost_a100)}
    assert all(g.count >= 1 and g.kind.nics >= 1 for g in after.groups)


def test_bandwidth_changes_each_way() -> None:
    cluster = parse_cluster("h100:16")
    after = apply_change(cluster, change=BandwidthChange(time_s=0.0, group=0, factor=1.0, reverse_factor=0.5))
    assert (after.node.nic.bandwidth, after.node.nic.reverse_bandwidth) == (50e9, 25e9)
    assert after.node.nic.achieved == pytest.approx(20e9)
    slower = apply_change(cluster, change=BandwidthChange(time_s=0.0, group=0, factor=0.5, scale_up=True))
    assert slower.node.scale_up.achieved == pytest.approx(cluster.node.scale_up.achieved / 2)
    assert slower.node.nic == cluster.node.nic
    for change in (BandwidthChange(time_s=0.0, group=1, factor=1.0), BandwidthChange(time_s=0.0, group=0, factor=0.0)):
        with pytest.raises(ClusterError):
            apply_change(cluster, change=change)


def test_a_timeline_is_read_up_to_a_time() -> None:
    cluster = parse_cluster("h100:16")
    more = parse_cluster("a100:8").groups[0]
    timeline = Timeline(changes=(DevicesLost(time_s=10.0, first=0, count=8), DevicesAdded(time_s=20.0, group=more)))
    sizes = [cluster_at(cluster, timeline=timeline, time_s=t).num_devices for t in (0.0, 10.0, 19.0, 20.0)]
    assert sizes == [16, 8, 8, 16]
    with pytest.raises(ClusterError, match="order"):
        Timeline(changes=timeline.changes[::-1])
    with pytest.raises(ClusterError, match="before the start"):
        Timeline(changes=(DevicesLost(time_s=float("nan"), first=0, count=1),))


def test_shipped_profiles() -> None:
    assert "h100-sxm" in profiled_names()
    profile = shipped_profile("h100-sxm")
    fit = profile.collective("all_reduce", num_devices=8)
    assert fit is not None
    assert 15e-6 < fit.latency_s < 20e-6
    assert fit.seconds(512 * 2**20) == pytest.approx(2112e-6, rel=0.25)
    assert fit.seconds(2**30) - fit.latency_s == pytest.approx(2 * (fit.seconds(2**29) - fit.latency_s))
    assert profile.collective("all_reduce", num_devices=3) is None
    with pytest.raises(DataError, match="no measured profile"):
        shipped_profile("mi300x")


def test_scale_up_links_agree_with_the_measured_collectives() -> None:
    for name in ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm"):
        achieved = parse_cluster(f"{name}:8").node.scale_up.achieved
        for kind in ("all_gather", "reduce_scatter"):
            fit = shipped_profile(name).collective(kind, num_devices=8)
            assert fit is not None
            assert achieved == pytest.approx(fit.large_bandwidth, rel=0.06)
