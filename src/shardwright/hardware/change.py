"""Events in time that change a cluster, and the cluster after them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shardwright.errors import ClusterError
from shardwright.hardware.cluster import Cluster, NodeGroup, NodeKind
from shardwright.hardware.nodes import smaller_node


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthChange:
    """From `time_s` on, links carry `factor` times what the cluster says (outward) and `reverse_factor` (inward; None = the same).

    Args:
        group: index of the node group. scale_up: the island's links; else the group's cards.
    """

    time_s: float
    group: int
    factor: float
    reverse_factor: float | None = None
    scale_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLost:
    """At `time_s` the devices [first, first + count) are gone. A node that loses a device keeps the rest as a smaller node."""

    time_s: float
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesAdded:
    """At `time_s` a group of nodes joins, numbered behind all others."""

    time_s: float
    group: NodeGroup


Change = BandwidthChange | DevicesLost | DevicesAdded


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Changes in the order of their times (seconds from the start of the run)."""

    changes: tuple[Change, ...]

    def __post_init__(self) -> None:
        times = [c.time_s for c in self.changes]
        if any(not math.isfinite(t) or t < 0 for t in times):
            raise ClusterError("a change before the start of the run", hint="times are seconds from the start, 0 or later")
        if times != sorted(times):
            raise ClusterError("changes are not in the order of their times", hint="sort them by time_s")


def apply_change(cluster: Cluster, *, change: Change) -> Cluster:
    """`cluster` after `change`. Devices behind a lost one are numbered anew; other groups stay as they are."""
    if isinstance(change, BandwidthChange):
        return _bandwidth(cluster, change)
    if isinstance(change, DevicesAdded):
        return replace(cluster, groups=(*cluster.groups, change.group))
    return _lost(cluster, change)


def cluster_at(cluster: Cluster, *, timeline: Timeline, time_s: float) -> Cluster:
    """`cluster` after every change of `timeline` up to and including `time_s`."""
    for change in timeline.changes:
        if change.time_s <= time_s:
            cluster = apply_change(cluster, change=change)
    return cluster


def _bandwidth(cluster: Cluster, change: BandwidthChange) -> Cluster:
    if not 0 <= change.group < len(cluster.groups):
        raise ClusterError(f"no node group {change.group}", hint=f"0 to {len(cluster.groups) - 1}")
    back = change.factor if change.reverse_factor is None else change.reverse_factor
    if not all(math.isfinite(f) and f > 0 for f in (change.factor, back)):
        raise ClusterError("a link's bandwidth factor must be a positive number", hint="a link that is gone is a lost device")
    group = cluster.groups[change.group]
    link = group.kind.scale_up if change.scale_up else group.kind.nic
    inward = (link.reverse_bandwidth or link.bandwidth) * back
    outward = link.bandwidth * change.factor
    link = replace(link, bandwidth=outward, reverse_bandwidth=0.0 if inward == outward else inward)
    kind = replace(group.kind, scale_up=link) if change.scale_up else replace(group.kind, nic=link)
    groups = list(cluster.groups)
    groups[change.group] = replace(group, kind=kind)
    return replace(cluster, groups=tuple(groups))


def _lost(cluster: Cluster, change: DevicesLost) -> Cluster:
    last = change.first + change.count
    if change.first < 0 or change.count < 1 or last > cluster.num_devices:
        raise ClusterError(f"no devices {change.first} to {last - 1}", hint=f"0 to {cluster.num_devices - 1}")
    groups: list[NodeGroup] = []
    start = 0
    for group in cluster.groups:
        groups.extend(_survivors(group, first=change.first - start, last=last - start))
        start += group.count * group.kind.num_devices
    if not groups:
        raise ClusterError("all devices are lost", hint="at least one must stay")
    return replace(cluster, groups=tuple(groups))


def _survivors(group: NodeGroup, *, first: int, last: int) -> list[NodeGroup]:
    """What is left of `group` without its devices [first, last), as runs of equal nodes."""
    per_node = group.kind.num_devices
    total = group.count * per_node
    low, high = max(first, 0), min(last, total)
    if low >= high:
        return [group]
    whole_before, head = divmod(low, per_node)
    tail = -high % per_node
    whole_after = (total - high) // per_node
    if low // per_node == (high - 1) // per_node:
        parts = [(group.kind, whole_before), _part(group.kind, head + tail), (group.kind, whole_after)]
    else:
        parts = [(group.kind, whole_before), _part(group.kind, head), _part(group.kind, tail), (group.kind, whole_after)]
    return [NodeGroup(kind=kind, count=count) for kind, count in parts if count]


def _part(kind: NodeKind, num_devices: int) -> tuple[NodeKind, int]:
    if num_devices == 0:
        return kind, 0
    return smaller_node(kind, num_devices=num_devices), 1
