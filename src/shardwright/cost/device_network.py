"""The machine and the network as the devices of a general plan see them: kinds may be mixed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardwright.arrays import IntArray
from shardwright.collectives.members import span_of_devices
from shardwright.collectives.span import Span
from shardwright.cost.communication import Network, network_of
from shardwright.hardware.cluster import Cluster, NodeGroup, Tier
from shardwright.program.problem import Problem
from shardwright.program.same import Same


def kind_of(cluster: Cluster, device: int) -> int:
    """Index of the node group that `device` is in."""
    first = 0
    for index, group in enumerate(cluster.groups):
        first += group.count * group.kind.num_devices
        if device < first:
            return index
    raise IndexError(device)


@lru_cache(maxsize=256)
def of_kind(cluster: Cluster, index: int) -> Cluster:
    """A uniform cluster of as many nodes, all of one kind of `cluster`."""
    if cluster.is_uniform:
        return cluster
    kind = cluster.groups[index].kind
    count = -(-cluster.num_devices // kind.num_devices)
    return Cluster(expression=cluster.expression, groups=(NodeGroup(kind=kind, count=count),), fabric=cluster.fabric)


def kind_problem(problem: Problem, device: int) -> Problem:
    """The problem as if all nodes were of the kind that `device` is in."""
    if problem.cluster.is_uniform:
        return problem
    return _of_kind(Same(problem), kind_of(problem.cluster, device))


@lru_cache(maxsize=256)
def _of_kind(problem: Same[Problem], kind: int) -> Problem:
    return replace(problem.value, cluster=of_kind(problem.value.cluster, kind))


@lru_cache(maxsize=4096)
def network_among(cluster: Cluster, kinds: tuple[int, ...], library: str) -> Network:
    """The network that devices of these kinds share: on every tier the slowest of them, and an island of the smallest.

    Left out: nodes of unequal size one behind the other, whose borders are not at multiples of the smallest island.
    """
    networks = [network_of(of_kind(cluster, kind), library=library) for kind in kinds]
    if len(networks) == 1:
        return networks[0]
    levels = max(len(n.tiers) for n in networks)
    tiers = []
    for level in range(levels):
        here = [n.tiers[min(level, len(n.tiers) - 1)] for n in networks]
        tiers.append(
            Tier(
                name=here[0].name,
                num_devices=min(t.num_devices for t in here),
                bandwidth=min(t.bandwidth for t in here),
                latency_s=max(t.latency_s for t in here),
            )
        )
    reduces = all(n.in_network_reduction for n in networks)
    return Network(tiers=tuple(tiers), in_network_reduction=reduces, library=library, domain=min(n.domain for n in networks))


def network_of_devices(problem: Problem, devices: tuple[int, ...]) -> Network:
    """The network that connects `devices`."""
    cluster = problem.cluster
    return _network(Same(problem), (0,) if cluster.is_uniform else tuple(sorted({kind_of(cluster, d) for d in devices})))


@lru_cache(maxsize=256)
def _network(problem: Same[Problem], kinds: tuple[int, ...]) -> Network:
    return network_among(problem.value.cluster, kinds, problem.value.runtime.collective_library)


@lru_cache(maxsize=65536)
def _span(devices: tuple[int, ...], tiers: tuple[Tier, ...], reduces: bool) -> Span:
    return span_of_devices(devices, tiers, in_network_reduction=reduces)


def group_span(devices: tuple[int, ...], network: Network) -> Span:
    """The span of one group."""
    return _span(devices, network.tiers, network.in_network_reduction)


def tiers_between(one: IntArray, other: IntArray, tiers: tuple[Tier, ...]) -> IntArray:
    """The innermost tier that has both devices of each pair below one unit."""
    tier = np.full(one.shape, len(tiers) - 1, dtype=np.int64)
    for index in range(len(tiers) - 2, -1, -1):
        size = tiers[index].num_devices
        tier[one // size == other // size] = index
    return tier


def plan_tiers(problem: Problem) -> tuple[Tier, ...]:
    """The tiers of the network that all devices share."""
    return _network(Same(problem), (0,) if problem.cluster.is_uniform else tuple(range(len(problem.cluster.groups)))).tiers
