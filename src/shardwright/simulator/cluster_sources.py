"""The cluster as a prediction understood it, in words: its nodes and its switches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.hardware.cluster import Cluster, FabricTier, NodeGroup, NodeKind
from shardwright.hardware.device import Evidence, Origin
from shardwright.hardware.zones import ZoneLink
from shardwright.simulator.prediction import Source
from shardwright.units import BITS_PER_BYTE, GIGA, format_bytes, format_seconds


def cluster_sources(cluster: Cluster) -> tuple[Source, ...]:
    """The nodes, the switches that join them where there are several, and prices that the cluster
    does not say itself.
    """
    return (*_network_sources(cluster), *_price_sources(cluster))


def _price_sources(cluster: Cluster) -> tuple[Source, ...]:
    """Each price that was taken from a list, of an accelerator once."""
    found = {
        group.kind.name: Source(
            quantity=f"price of {group.kind.accelerator.name}",
            value=f"{group.price:.4g} $ a device and hour",
            origin=group.price_origin,
        )
        for group in cluster.groups
        if group.price_origin is not None
    }
    return tuple(found.values())


def _network_sources(cluster: Cluster) -> tuple[Source, ...]:
    nodes = Source(
        quantity="nodes",
        value=" + ".join(_nodes(group) for group in cluster.groups),
        origin=Origin(
            evidence=cluster.node.nic.origin.evidence,
            reference=" + ".join(group.kind.name for group in cluster.groups),
        ),
    )
    if sum(group.count for group in cluster.groups) == 1:
        return (nodes,)
    switches = Source(quantity="switches", value=fabric_text(cluster), origin=cluster.fabric_origin)
    if not cluster.links:
        return (nodes, switches)
    said = "; ".join(dict.fromkeys(_link(one) for one in cluster.links))
    return (
        nodes,
        switches,
        Source(quantity="links between zones", value=said, origin=cluster.links[0].link.origin),
    )


NO_HOST: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="nobody says how much there is, so none is too much; a cluster file can",
)


def host_sources(cluster: Cluster, used: Sequence[int]) -> tuple[Source, ...]:
    """Host memory and its bandwidth on each kind of node among some node groups: what offloaded
    bytes are held against.

    Args:
        used: numbers of node groups.
    """
    found = dict.fromkeys(
        source for group in used for source in _of_host(cluster.groups[group].kind, cluster=cluster)
    )
    return tuple(found)


def _of_host(kind: NodeKind, *, cluster: Cluster) -> Iterator[Source]:
    host, name = kind.host, "" if cluster.is_uniform else f"{kind.name} "
    known = host.origin or Origin(
        evidence=Evidence.PUBLISHED, reference="the cluster's description"
    )
    memory, value = (
        ("host memory", f"{format_bytes(host.memory_bytes)} a node")
        if host.memory_bytes
        else ("unlimited host memory", "unlimited")
    )
    yield Source(
        quantity=f"{name}{memory}", value=value, origin=known if host.memory_bytes else NO_HOST
    )
    yield Source(
        quantity=f"{name}link to the host",
        value=f"{host.pcie.achieved / GIGA:.4g} GB/s a device",
        origin=host.pcie.origin,
    )


def _link(one: ZoneLink) -> str:
    """``east to west 25 Gb/s a node, 60 ms``."""
    delay = (
        format_seconds(one.link.latency_s)
        if one.link.latency_s
        else "no latency was given, so none is counted"
    )
    return (
        f"{one.source} to {one.target} {one.link.achieved * BITS_PER_BYTE / GIGA:.4g} Gb/s a node,"
        f" {delay}"
    )


def _nodes(group: NodeGroup) -> str:
    """``2 nodes of 8 h100-sxm (scale-up domain of 8), 8 NICs of 400 Gb/s each``."""
    kind = group.kind
    rate = kind.nic.bandwidth * BITS_PER_BYTE / GIGA
    nodes = "1 node" if group.count == 1 else f"{group.count:,} nodes"
    cards = (
        f"{kind.nics} NIC{'' if kind.nics == 1 else 's'} of {rate:.4g}"
        f" Gb/s{'' if group.count == 1 else ' each'}"
    )
    return (
        f"{nodes} of {kind.num_devices} {kind.accelerator.name} (scale-up domain of {kind.island}),"
        f" {cards}"
    )


def fabric_text(cluster: Cluster) -> str:
    """The switch tiers from the nodes upward."""
    if not cluster.fabric:
        if len(cluster.zones) > 1:
            return "a single non-blocking switch in each zone"
        return f"a single non-blocking switch for all {cluster.num_devices:,} devices"
    return ", ".join(_tier(tier) for tier in cluster.fabric)


def _tier(tier: FabricTier) -> str:
    below = f"of {tier.num_devices:,} devices" if tier.num_devices else "over all devices"
    rails = ", rail-optimised" if tier.rails else ""
    ratio = f", oversubscribed {tier.oversubscription:.4g}:1" if tier.oversubscription > 1 else ""
    marks = f" ({(rails + ratio).removeprefix(', ')})" if rails or ratio else ""
    return f"{tier.name} {below}{marks}"
