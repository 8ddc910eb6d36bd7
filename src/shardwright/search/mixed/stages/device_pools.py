"""Device pools: the devices of each node group of a cluster."""

from __future__ import annotations

from dataclasses import replace

from shardwright.hardware.cluster import Cluster
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePool:
    """The devices of one node group of a cluster.

    Args:
        name: name of the accelerator.
        group: index of the node group in the cluster.
        first: number of its first device.
        devices: number of devices.
        node: devices of a node.
    """

    name: str
    group: int
    first: int
    devices: int
    node: int

    @property
    def nodes(self) -> int:
        """Number of nodes of the pool."""
        return self.devices // self.node


def pools_of(cluster: Cluster) -> tuple[DevicePool, ...]:
    """The device pools of a cluster, one a node group, in device order."""
    pools: list[DevicePool] = []
    first = 0
    for number, group in enumerate(cluster.groups):
        kind = group.kind
        devices = group.count * kind.num_devices
        pools.append(
            DevicePool(
                name=kind.accelerator.name,
                group=number,
                first=first,
                devices=devices,
                node=kind.num_devices,
            )
        )
        first += devices
    return tuple(pools)


def merge_zones(cluster: Cluster) -> Cluster:
    """The cluster with all its zones joined into one.

    No process group is slower there, as no link of zones is faster than the network of each zone.
    """
    if len(cluster.zones) <= 1:
        return cluster
    return replace(
        cluster, groups=tuple(replace(group, zone="") for group in cluster.groups), links=()
    )


def cluster_of_pool(cluster: Cluster, pool: DevicePool) -> Cluster:
    """The cluster of one pool's nodes alone."""
    group = cluster.groups[pool.group]
    return Cluster(
        expression=f"{pool.name}:{pool.devices}",
        groups=(group,),
        fabric=cluster.fabric,
        fabric_origin=cluster.fabric_origin,
    )
