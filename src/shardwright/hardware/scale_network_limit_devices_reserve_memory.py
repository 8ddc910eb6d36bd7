"""Copies of a cluster with one change: network bandwidth, number of devices, or memory.

Sensitivity analysis, ``--max-devices`` and ``--memory-reserve`` plan on these copies.
"""

from __future__ import annotations

import math
from dataclasses import replace

from shardwright.errors import ClusterError
from shardwright.hardware.catalog.default_nodes import smaller_node
from shardwright.hardware.cluster import Cluster, NodeGroup, NodeKind


def scale_network(cluster: Cluster, *, factor: float) -> Cluster:
    """Multiply the bandwidth of all network cards of the cluster by `factor`, both ways.

    Every switch tier scales with the cards. Latency stays.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ClusterError(
            f"network factor {factor} is not a positive number",
            hint="0.9 is ten percent less bandwidth",
        )

    def scaled(kind: NodeKind) -> NodeKind:
        """Node kind with its card's bandwidth times `factor`, both ways."""
        nic = replace(
            kind.nic,
            bandwidth=kind.nic.bandwidth * factor,
            reverse_bandwidth=kind.nic.reverse_bandwidth * factor,
        )
        return replace(kind, nic=nic)

    return replace(cluster, groups=tuple(replace(g, kind=scaled(g.kind)) for g in cluster.groups))


def limit_devices(cluster: Cluster, *, num_devices: int) -> Cluster:
    """Keep the first whole nodes with at most `num_devices` devices, or one smaller node."""
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
    """Subtract `reserve_bytes` from the memory of every device; ClusterError if none is left."""
    if reserve_bytes < 0:
        raise ClusterError(f"memory reserve of {reserve_bytes} bytes", hint="0 or more")

    def reserved(kind: NodeKind) -> NodeKind:
        """Node kind with `reserve_bytes` less memory a device; ClusterError if none is left."""
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


def reserve_memory_share(cluster: Cluster, *, share: float) -> Cluster:
    """Subtract the fraction `share` of its memory from every device of the cluster."""

    def reserved(kind: NodeKind) -> NodeKind:
        """Node kind whose devices have `share` less memory."""
        return replace(
            kind,
            accelerator=replace(
                kind.accelerator, memory_bytes=int(kind.accelerator.memory_bytes * (1 - share))
            ),
        )

    return replace(cluster, groups=tuple(replace(g, kind=reserved(g.kind)) for g in cluster.groups))


def smallest_memory_bytes(cluster: Cluster) -> int:
    """Bytes of memory of the cluster's smallest device; reserves are subtracted already."""
    return min(g.kind.accelerator.memory_bytes for g in cluster.groups)
