"""Accelerators and networks as the devices of a general plan see them, with mixed node kinds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import permutations

import numpy as np

from shardwright.arrays import FloatArray, IntArray, as_int_array, distinct
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.collectives.groups.span_of_device_list import (
    PairRates,
    side_of_span,
    span_of_devices,
)
from shardwright.cost.network.grid_groups_and_collective_seconds import Network, network_of
from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.cluster_network_levels import (
    group_ends,
    network_levels,
    network_units,
    node_group_numbers,
    with_working_devices,
    zone_rates,
)
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.hardware.link_and_network_tier import Tier
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem


def node_group_of(cluster: Cluster, device: int) -> int:
    """Index of the node group that has device number `device`; IndexError beyond the last."""
    ends = group_ends(cluster)
    if device >= ends[-1]:
        raise IndexError(device)
    return bisect_right(ends, device)


@lru_cache(maxsize=256)
def uniform_cluster(cluster: Cluster, index: int) -> Cluster:
    """Cluster of only node group `index`'s nodes, with at least as many devices as `cluster`."""
    if cluster.is_uniform:
        return cluster
    kind = cluster.groups[index].kind
    count = -(-cluster.num_devices // kind.num_devices)
    return Cluster(
        expression=cluster.expression,
        groups=(NodeGroup(kind=kind, count=count),),
        fabric=cluster.fabric,
    )


def kind_problem(problem: Problem, device: int) -> Problem:
    """The problem as if all nodes were of the kind that `device` belongs to."""
    return (
        problem
        if problem.cluster.is_uniform
        else group_problem(problem, node_group_of(problem.cluster, device))
    )


def group_problem(problem: Problem, group: int) -> Problem:
    """The problem as if all nodes were of the kind of node group number `group`."""
    return problem if problem.cluster.is_uniform else _of_kind(Same(problem), group)


def working_problem(problem: Problem, devices: Sequence[int]) -> Problem:
    """Problem on a cluster where only these devices share their nodes' NICs and zone links."""
    cluster = with_working_devices(problem.cluster, devices)
    return problem if cluster is problem.cluster else _on_cluster(Same(problem), Same(cluster))


@lru_cache(maxsize=1024)
def _on_cluster(problem: Same[Problem], cluster: Same[Cluster]) -> Problem:
    """`problem` with another cluster (cached by identity)."""
    return replace(problem.value, cluster=cluster.value)


@lru_cache(maxsize=256)
def _of_kind(problem: Same[Problem], kind: int) -> Problem:
    """`problem` on the uniform cluster of one node kind (cached by identity)."""
    return replace(problem.value, cluster=uniform_cluster(problem.value.cluster, kind))


@lru_cache(maxsize=4096)
def network_among(cluster: Cluster, kinds: tuple[int, ...], library: str) -> Network:
    """Network that devices of several node kinds share: on every level the slowest kind's rates.

    On every level the slowest of them.
    """
    networks = [network_of(uniform_cluster(cluster, kind), library=library) for kind in kinds]
    tiers = [
        _slowest(level)
        for level in zip(*(network_levels(cluster, kind) for kind in kinds), strict=True)
    ]
    spans_zones = len({cluster.groups[kind].zone for kind in kinds}) > 1
    if spans_zones:
        tiers[-1] = _between_zones(cluster, kinds, tiers[-1])
    return replace(
        networks[0],
        tiers=tuple(tiers),
        units=network_units(cluster),
        in_network_reduction=all(n.in_network_reduction for n in networks),
        curves=networks[0].curves if len(networks) == 1 else (),
        domain=min(n.domain for n in networks),
        between=_between_each(cluster, kinds) if spans_zones else None,
    )


def _slowest(level: tuple[Tier, ...]) -> Tier:
    """Tier with the smallest unit and bandwidth and the largest latency of several tiers."""
    return Tier(
        name=level[0].name,
        num_devices=min(t.num_devices for t in level),
        bandwidth=min(t.bandwidth for t in level),
        latency_s=max(t.latency_s for t in level),
    )


def _between_zones(cluster: Cluster, kinds: tuple[int, ...], tier: Tier) -> Tier:
    """`tier` with the latency and bandwidth of the slowest link between two zones of node groups.

    Other zones do not matter to them.
    """
    bandwidth, latency_s = (rates[np.ix_(kinds, kinds)] for rates in zone_rates(cluster))
    return replace(tier, bandwidth=float(bandwidth.min()), latency_s=float(latency_s.max()))


def _between_each(cluster: Cluster, kinds: tuple[int, ...]) -> tuple[PairRates, PairRates]:
    """By (sender, receiver) zone: bytes/s and message seconds of the slowest kinds; 0 if none.

    0 for zones without any of them.
    """
    zones, size = (
        [[k for k in kinds if cluster.groups[k].zone == zone] for zone in cluster.zones],
        len(cluster.zones),
    )
    bandwidth, latency_s = zone_rates(cluster)
    rates_and_seconds = np.zeros((2, size, size))
    for sender, receiver in permutations(range(size), 2):
        if zones[sender] and zones[receiver]:
            pairs = np.ix_(zones[sender], zones[receiver])
            rates_and_seconds[:, sender, receiver] = bandwidth[pairs].min(), latency_s[pairs].max()
    rates, seconds = (tuple(map(tuple, table)) for table in rates_and_seconds.tolist())
    return rates, seconds


def network_of_devices(problem: Problem, devices: Sequence[int]) -> Network:
    """Network that connects `devices`, at the rates of the slowest kind among them."""
    cluster = problem.cluster
    if cluster.is_uniform:
        return _network(Same(problem), (0,))
    groups = node_group_numbers(cluster, as_int_array(devices))
    return _network(Same(problem), tuple(distinct(groups).tolist()))


@lru_cache(maxsize=256)
def _network(problem: Same[Problem], kinds: tuple[int, ...]) -> Network:
    """Network that node groups share under the problem's collective library (cached)."""
    return network_among(problem.value.cluster, kinds, problem.value.runtime.collective_library)


@lru_cache(maxsize=65536)
def group_span(devices: tuple[int, ...] | DeviceList, network: Network) -> Span:
    """Network span of one group of devices (cached)."""
    return span_of_devices(
        devices,
        network.tiers,
        units=network.units,
        in_network_reduction=network.in_network_reduction,
        between=network.between,
    )


def own_span(problem: Problem, members: DeviceList, device: int) -> Span:
    """Span of a group with as many members in each unit as `device`'s own, at its kind's rates."""
    network = network_of_devices(problem, (device,))
    return side_of_span(
        members,
        device,
        network.tiers,
        units=network.units,
        in_network_reduction=network.in_network_reduction,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds of a message and bytes/s between pairs of devices.

    Arrays over pairs of devices; of length one where all pairs are the same.
    """

    latency_s: FloatArray
    bandwidth: FloatArray


def plan_units(problem: Problem) -> tuple[Units, ...]:
    """Units (such as nodes and islands) of every network level of the problem's cluster."""
    return _units(Same(problem))


@lru_cache(maxsize=256)
def _units(problem: Same[Problem]) -> tuple[Units, ...]:
    """Units of every network level of the problem's cluster (cached by identity)."""
    return network_units(problem.value.cluster)


def rate_of_level(problem: Problem, level: int) -> tuple[float, float] | None:
    """Seconds of a message and bytes/s over a network level; None if they depend on the devices."""
    latency_s, bandwidth = _level_rates(Same(problem), level)
    return (float(latency_s[0, 0]), float(bandwidth[0, 0])) if latency_s.size == 1 else None


def rates_between(problem: Problem, sources: IntArray, targets: IntArray, level: int) -> Rates:
    """Latency and bytes/s of device pairs over a level: the slower end's, or a zone link's."""
    latency_s, bandwidth = _level_rates(Same(problem), level)
    if len(latency_s) == 1:
        return Rates(latency_s=latency_s[0], bandwidth=bandwidth[0])
    ends = tuple(node_group_numbers(problem.cluster, devices) for devices in (sources, targets))
    return Rates(latency_s=latency_s[ends], bandwidth=bandwidth[ends])


@lru_cache(maxsize=1024)
def _level_rates(problem: Same[Problem], level: int) -> tuple[FloatArray, FloatArray]:
    """(groups, groups) seconds of a message and bytes/s between node groups over a level.

    Of shape (1, 1) where all are of a kind.
    """
    cluster = problem.value.cluster
    if len(cluster.zones) > 1 and level == len(network_units(cluster)) - 1:
        bandwidth, latency_s = zone_rates(cluster)
        return latency_s, bandwidth
    tiers = [
        network_levels(cluster, group)[level]
        for group in range(1 if cluster.is_uniform else len(cluster.groups))
    ]
    return (
        np.maximum.outer(*2 * [np.array([t.latency_s for t in tiers])]),
        np.minimum.outer(*2 * [np.array([t.bandwidth for t in tiers])]),
    )
