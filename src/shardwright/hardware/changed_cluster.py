"""The same cluster with one thing changed: what sensitivity analysis, ``--max-devices`` and
``--memory-reserve`` plan against.
"""

from __future__ import annotations

import math
from dataclasses import replace

from shardwright.errors import ClusterError
from shardwright.hardware.catalog.default_nodes import smaller_node
from shardwright.hardware.cluster import Cluster, NodeGroup, NodeKind


def scale_network(cluster: Cluster, *, factor: float) -> Cluster:
    """`cluster` with `factor` times the bandwidth between nodes, both ways: cards, and with them
    every switch tier. Latency stays.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ClusterError(
            f"network factor {factor} is not a positive number",
            hint="0.9 is ten percent less bandwidth",
        )

    def scaled(kind: NodeKind) -> NodeKind:
        nic = replace(
            kind.nic,
            bandwidth=kind.nic.bandwidth * factor,
            reverse_bandwidth=kind.nic.reverse_bandwidth * factor,
        )
        return replace(kind, nic=nic)

    return replace(cluster, groups=tuple(replace(g, kind=scaled(g.kind)) for g in cluster.groups))


def limit_devices(cluster: Cluster, *, num_devices: int) -> Cluster:
    """The first whole nodes of `cluster` with at most `num_devices` devices in all; a smaller node
    where not even one fits.
    """
    if num_devices < 1:
        raise ClusterError(f"a cluster of {num_devices} devices", hint="at least 1")
    left = num_devices
    groups: list[NodeGroup] = []
    for group in cluster.groups:
        count = min(group.count, left // group.kind.num_devices)
        if count:
            groups.append(replace(group, count=count))
            left -= count * group.kind.num_devices
        if count < group.count:
            break
    if not groups:
        first = cluster.groups[0].kind
        groups.append(
            replace(cluster.groups[0], kind=smaller_node(first, num_devices=num_devices), count=1)
        )
    zones = {group.zone for group in groups}
    return replace(
        cluster,
        groups=tuple(groups),
        links=tuple(one for one in cluster.links if {one.source, one.target} <= zones),
    )


def reserve_memory(cluster: Cluster, *, reserve_bytes: int) -> Cluster:
    """`cluster` with `reserve_bytes` less to allocate on every device; an error where nothing would
    be left.
    """
    if reserve_bytes < 0:
        raise ClusterError(f"memory reserve of {reserve_bytes} bytes", hint="0 or more")

    def reserved(kind: NodeKind) -> NodeKind:
        left = kind.accelerator.memory_bytes - reserve_bytes
        if left <= 0:
            hint = f"less than {kind.accelerator.memory_bytes} bytes"
            raise ClusterError(
                f"memory reserve of {reserve_bytes} bytes leaves nothing on"
                f" {kind.accelerator.name}",
                hint=hint,
            )
        return replace(kind, accelerator=replace(kind.accelerator, memory_bytes=left))

    return replace(cluster, groups=tuple(replace(g, kind=reserved(g.kind)) for g in cluster.groups))


def keep_free(cluster: Cluster, *, share: float) -> Cluster:
    """`cluster` with `share` less to allocate on every device, of each what it has."""

    def less(kind: NodeKind) -> NodeKind:
        return replace(
            kind,
            accelerator=replace(
                kind.accelerator, memory_bytes=int(kind.accelerator.memory_bytes * (1 - share))
            ),
        )

    return replace(cluster, groups=tuple(replace(g, kind=less(g.kind)) for g in cluster.groups))


def effective_memory(cluster: Cluster) -> int:
    """Bytes that a program may allocate on every device of `cluster`: the smallest of its kinds,
    reserves already taken off.
    """
    return min(g.kind.accelerator.memory_bytes for g in cluster.groups)
