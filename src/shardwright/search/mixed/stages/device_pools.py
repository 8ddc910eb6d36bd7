"""Pools: the devices of a cluster that nothing tells apart but their node."""

from __future__ import annotations

from dataclasses import replace

from shardwright.hardware.cluster import Cluster
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The devices of one node group.

    Args:
        name: of the accelerator.
        group: place of the node group in the cluster.
        first: its first device.
        devices: how many.
        node: devices of a node.
    """

    name: str
    group: int
    first: int
    devices: int
    node: int

    @property
    def nodes(self) -> int:
        """Nodes of the pool."""
        return self.devices // self.node


def pools_of(cluster: Cluster) -> tuple[Pool, ...]:
    """The pools of a cluster, in the order of its devices."""
    found: list[Pool] = []
    first = 0
    for number, group in enumerate(cluster.groups):
        kind = group.kind
        devices = group.count * kind.num_devices
        found.append(
            Pool(
                name=kind.accelerator.name,
                group=number,
                first=first,
                devices=devices,
                node=kind.num_devices,
            )
        )
        first += devices
    return tuple(found)


def in_one_zone(cluster: Cluster) -> Cluster:
    """The cluster as if its zones were one: no group of it is slower there, as no link of zones is
    faster than the network of each.
    """
    if len(cluster.zones) <= 1:
        return cluster
    return replace(
        cluster, groups=tuple(replace(group, zone="") for group in cluster.groups), links=()
    )


def alone(cluster: Cluster, pool: Pool) -> Cluster:
    """The cluster of one pool's nodes."""
    group = cluster.groups[pool.group]
    return Cluster(
        expression=f"{pool.name}:{pool.devices}",
        groups=(group,),
        fabric=cluster.fabric,
        fabric_origin=cluster.fabric_origin,
    )
