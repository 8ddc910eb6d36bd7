"""Network levels of a cluster: the unit of each device, and the rate between any two devices.

One form serves uniform and mixed clusters. The levels are, innermost first: the scale-up islands,
the tiers that join islands of a node, the switch tiers, zones where there are several, and the
whole cluster. On each level every device lies in one unit; units of a level need not be equal
(islands of 8 beside islands of 72). Two devices exchange over the innermost level that has both in
one unit, at the rate of the slower device there, and between zones at the rate of their zones'
link. Devices that do not send do not change these rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, groupby, product

import numpy as np

from shardwright.arrays import FloatArray, IntArray, as_int_array
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.hardware.device_partition_by_network_level import Units, equal_units
from shardwright.hardware.link_and_network_tier import Tier


def levels_inside_nodes(cluster: Cluster) -> int:
    """Number of network levels inside nodes (island, node tiers), of the kind that has most."""
    return 1 + max(len(group.kind.node_tiers) for group in cluster.groups)


@lru_cache(maxsize=256)
def network_units(cluster: Cluster) -> tuple[Units, ...]:
    """Units of every network level of the cluster, innermost first.

    Units of a level are whole units of the level below.
    """
    if cluster.is_uniform:
        return equal_units(tuple(tier.num_devices for tier in cluster.tiers()))
    zones = _zone_starts(cluster)
    levels = [_units_inside_nodes(cluster, level) for level in range(levels_inside_nodes(cluster))]
    for index in _level_tiers(cluster)[:-1]:
        levels.append(
            _merged_units(
                levels[-1], cluster.network[index].num_devices, cluster.num_devices, zones
            )
        )
    if len(zones) > 1:
        levels.append(_merged_units(levels[-1], cluster.num_devices, cluster.num_devices, zones))
    return (*levels, *equal_units((cluster.num_devices,)))


@lru_cache(maxsize=256)
def network_levels(cluster: Cluster, group: int) -> tuple[Tier, ...]:
    """Network levels, innermost first, with bytes/s and latency of a device of one node group."""
    if cluster.is_uniform:
        return cluster.tiers()
    kind, units = cluster.groups[group].kind, network_units(cluster)
    found = [_inner_level(kind, level) for level in range(levels_inside_nodes(cluster))]
    rates = cluster.network_rates(kind)
    for level, index in enumerate(_level_tiers(cluster), start=len(found)):
        tier, bandwidth, latency_s = rates[index]
        joins = (
            level < len(units) - 1
            or (tier.num_devices or cluster.num_devices) >= cluster.num_devices
        )
        found.append(
            Tier(
                name=tier.name if joins else "core",
                num_devices=max(units[level].size),
                bandwidth=bandwidth,
                latency_s=latency_s,
            )
        )
    if len(units) > len(found):
        shares, seconds = (rates[group] for rates in zone_rates(cluster))
        found.append(
            Tier(
                name="zones",
                num_devices=cluster.num_devices,
                bandwidth=float(shares.min()),
                latency_s=float(seconds.max()),
            )
        )
    return tuple(found)


@lru_cache(maxsize=256)
def zone_rates(cluster: Cluster) -> tuple[FloatArray, FloatArray]:
    """Two (from group, to group) matrices, outermost level: achieved bytes/s a device, seconds.

    The bytes/s are achieved while all working devices of its node send, anywhere in the cluster.
    Between zones the link is a node's: its devices, and those of the receiving node, share it. No
    rate exceeds that of the networks inside both zones.
    """
    links = {(one.source, one.target): one.link for one in cluster.links}
    own = [cluster.network_rates(group.kind)[_level_tiers(cluster)[-1]] for group in cluster.groups]
    bandwidth, latency_s = (np.zeros((len(own), len(own))) for _ in range(2))
    for (one, source), (other, target) in product(enumerate(cluster.groups), repeat=2):
        shares, waits = [own[one][1], own[other][1]], max(own[one][2], own[other][2])
        if source.zone != target.zone:
            link = links[source.zone, target.zone]
            shares += [link.achieved / group.kind.sharing for group in (source, target)]
            waits += link.latency_s
        bandwidth[one, other], latency_s[one, other] = min(shares), waits
    return bandwidth, latency_s


def level_between(one: IntArray, other: IntArray, units: tuple[Units, ...]) -> IntArray:
    """Index of the innermost network level with a unit that holds both devices of each pair."""
    level = np.full(one.shape, len(units) - 1, dtype=np.int64)
    for index in range(len(units) - 2, -1, -1):
        level[units[index].of(one) == units[index].of(other)] = index
    return level


def node_group_numbers(cluster: Cluster, devices: IntArray) -> IntArray:
    """Index of the node group that each device is in."""
    return np.searchsorted(np.array(group_ends(cluster)), devices, side="right")


def counts_by_group(cluster: Cluster, devices: Sequence[int]) -> tuple[int, ...]:
    """Number of the given devices in each node group of the cluster."""
    if len(cluster.groups) == 1:
        return (len(devices),)
    return tuple(
        np.bincount(
            node_group_numbers(cluster, as_int_array(devices)), minlength=len(cluster.groups)
        ).tolist()
    )


def with_working_devices(cluster: Cluster, devices: Sequence[int]) -> Cluster:
    """Cluster with `at_work` of link-sharing node kinds set to the most of `devices` in one node.

    Idle devices of a plan do not send. Nodes of one kind share as the node with the most working
    devices does, so that islands and groups stay equal. The cluster itself is returned where all
    devices of some node work, or have a card each and no zone link to share.
    """
    kinds = tuple(
        dict.fromkeys(group.kind for group in cluster.groups if _shares_links(cluster, group.kind))
    )
    if not kinds:
        return cluster
    fullest = dict.fromkeys(kinds, 0)
    ends, some = group_ends(cluster), as_int_array(devices)
    for group, start, end in zip(cluster.groups, (0, *ends), ends, strict=False):
        inside = some[(some >= start) & (some < end)]
        if group.kind in fullest and len(inside):
            most = int(np.bincount((inside - start) // group.kind.num_devices).max())
            fullest[group.kind] = max(fullest[group.kind], most)
    if all(most in (0, kind.sharing) for kind, most in fullest.items()):
        return cluster
    return _with_sharing_counts(cluster, tuple(fullest.items()))


def _shares_links(cluster: Cluster, kind: NodeKind) -> bool:
    """True if several devices of such a node share a card, a node tier or a zone link."""
    return kind.num_devices > 1 and (
        kind.nics < kind.num_devices or len(cluster.zones) > 1 or bool(kind.node_tiers)
    )


@lru_cache(maxsize=1024)
def _with_sharing_counts(cluster: Cluster, fullest: tuple[tuple[NodeKind, int], ...]) -> Cluster:
    """Copy of the cluster with `at_work` of each listed node kind set (0 keeps it); cached.

    Equal arguments return the same object, so caches keyed by the cluster are reused.
    """
    kinds = {kind: replace(kind, at_work=most or kind.at_work) for kind, most in fullest}
    return replace(
        cluster,
        groups=tuple(
            replace(group, kind=kinds.get(group.kind, group.kind)) for group in cluster.groups
        ),
    )


@lru_cache(maxsize=256)
def group_ends(cluster: Cluster) -> tuple[int, ...]:
    """First device number after each node group."""
    return tuple(accumulate(group.count * group.kind.num_devices for group in cluster.groups))


def repetition_devices(units: tuple[Units, ...]) -> int:
    """Period of the units in devices: size of the last level but one; 1 = one level, 0 = none."""
    if max([len(level.first) for level in units]) > 1:
        return 0
    return units[-2].size[0] if len(units) > 1 else 1


def _inner_level(kind: NodeKind, level: int) -> Tier:
    """Network level number `level` inside nodes of a kind; its last level where it has fewer."""
    levels = kind.inner_levels
    return levels[min(level, len(levels) - 1)]


def _units_inside_nodes(cluster: Cluster, level: int) -> Units:
    """Units of a network level inside nodes, over all node groups of the cluster.

    Neighbouring groups of one kind and zone fill islands together.
    """
    first, size, number = list[int](), list[int](), list[int]()
    start = 0
    for (kind, _), groups in groupby(cluster.groups, key=lambda group: (group.kind, group.zone)):
        devices = sum(group.count for group in groups) * kind.num_devices
        number.append(number[-1] - (first[-1] - start) // size[-1] if first else 0)
        first.append(start)
        size.append(min(_inner_level(kind, level).num_devices, devices))
        start += devices
    return Units(first=tuple(first), size=tuple(size), number=tuple(number))


def _zone_starts(cluster: Cluster) -> tuple[int, ...]:
    """First device of each run of node groups that are in one zone."""
    ends = (0, *group_ends(cluster))
    return tuple(
        ends[n]
        for n, group in enumerate(cluster.groups)
        if n == 0 or group.zone != cluster.groups[n - 1].zone
    )


def _level_tiers(cluster: Cluster) -> tuple[int, ...]:
    """Indices of a mixed cluster's switch tiers that join some islands, and of one that joins all.

    These are the tiers that join some of its islands, then one tier that joins all (the last, if
    none reaches so far).
    """
    smallest, total = (
        min(group.kind.inner_levels[-1].num_devices for group in cluster.groups),
        cluster.num_devices,
    )
    reaches = [tier.num_devices or total for tier in cluster.network]
    joins_all = next(
        (index for index, reach in enumerate(reaches) if reach >= total), len(reaches) - 1
    )
    return (*(index for index, reach in enumerate(reaches) if smallest < reach < total), joins_all)


def _merged_units(below: Units, size: int, total: int, borders: tuple[int, ...]) -> Units:
    """Join units of the level below, in order, to at most `size` devices; none crosses a border.

    A larger unit stays alone, and no unit crosses a border.
    """
    starts = [
        device
        for first, each, end in zip(below.first, below.size, (*below.first[1:], total), strict=True)
        for device in range(first, end, each)
    ]
    edges = [0]
    for start, end in zip(starts, (*starts[1:], total), strict=True):
        if start in borders[1:] or (end - edges[-1] > size and start > edges[-1]):
            edges.append(start)
    lengths = [end - start for start, end in zip(edges, (*edges[1:], total), strict=True)]
    changes = [n for n, length in enumerate(lengths) if n == 0 or length != lengths[n - 1]]
    return Units(
        first=tuple(edges[n] for n in changes),
        size=tuple(lengths[n] for n in changes),
        number=tuple(changes),
    )
