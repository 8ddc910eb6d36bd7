"""Text and source of a cluster's nodes, switches, links, prices and host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.cluster import Cluster, FabricTier, NodeGroup, NodeKind
from shardwright.hardware.zone_link_record_and_price_checks import ZoneLink
from shardwright.simulator.prediction import Source
from shardwright.units import BITS_PER_BYTE, GIGA, format_bytes, format_seconds


def cluster_sources(cluster: Cluster) -> tuple[Source, ...]:
    """Sources of the nodes, the switches, the links between zones, and the listed prices.

    Switches count only between several nodes, prices only if the cluster file does not state them.
    """
    return (*_network_sources(cluster), *_price_sources(cluster))


def _price_sources(cluster: Cluster) -> tuple[Source, ...]:
    """Sources of the prices that were taken from a price list, once for each kind of node."""
    source_of_kind = {
        group.kind.name: Source(
            quantity=f"price of {group.kind.accelerator.name}",
            value=f"{group.price:.4g} $ a device and hour",
            origin=group.price_origin,
        )
        for group in cluster.groups
        if group.price_origin is not None
    }
    return tuple(source_of_kind.values())


def _network_sources(cluster: Cluster) -> tuple[Source, ...]:
    """Sources of the nodes and, with several nodes, of the switches and zone links."""
    nodes = Source(
        quantity="nodes",
        value=" + ".join(_node_group_text(group) for group in cluster.groups),
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
    links = "; ".join(dict.fromkeys(_zone_link_text(link) for link in cluster.links))
    return (
        nodes,
        switches,
        Source(quantity="links between zones", value=links, origin=cluster.links[0].link.origin),
    )


UNSTATED_HOST_MEMORY: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="nobody says how much there is, so none is too much; a cluster file can",
)


def host_sources(cluster: Cluster, used: Sequence[int]) -> tuple[Source, ...]:
    """Sources of host memory and host link of the node groups with numbers `used`, for offloading.

    Args:
        used: numbers of the node groups that the plan uses.
    """
    distinct_sources = dict.fromkeys(
        source
        for group in used
        for source in _host_sources_of_node(cluster.groups[group].kind, cluster=cluster)
    )
    return tuple(distinct_sources)


def _host_sources_of_node(kind: NodeKind, *, cluster: Cluster) -> Iterator[Source]:
    """Yield the sources of a node's host memory and of its link to the host."""
    host, name = kind.host, "" if cluster.is_uniform else f"{kind.name} "
    origin = host.origin or Origin(
        evidence=Evidence.PUBLISHED, reference="the cluster's description"
    )
    memory, value = (
        ("host memory", f"{format_bytes(host.memory_bytes)} a node")
        if host.memory_bytes
        else ("unlimited host memory", "unlimited")
    )
    yield Source(
        quantity=f"{name}{memory}",
        value=value,
        origin=origin if host.memory_bytes else UNSTATED_HOST_MEMORY,
    )
    yield Source(
        quantity=f"{name}link to the host",
        value=f"{host.pcie.achieved / GIGA:.4g} GB/s a device",
        origin=host.pcie.origin,
    )


def _zone_link_text(zone_link: ZoneLink) -> str:
    """Text of a link between zones, such as ``east to west 25 Gb/s a node, 60 ms``."""
    delay = (
        format_seconds(zone_link.link.latency_s)
        if zone_link.link.latency_s
        else "no latency was given, so none is counted"
    )
    return (
        f"{zone_link.source} to {zone_link.target}"
        f" {zone_link.link.achieved * BITS_PER_BYTE / GIGA:.4g} Gb/s a node, {delay}"
    )


def _node_group_text(group: NodeGroup) -> str:
    """Text of a node group: its nodes, accelerators, scale-up domain and network cards.

    For example ``2 nodes of 8 h100-sxm (scale-up domain of 8), 8 NICs of 400 Gb/s each``.
    """
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
    """Text of the switch tiers from the nodes upward."""
    if not cluster.fabric:
        if len(cluster.zones) > 1:
            return "a single non-blocking switch in each zone"
        return f"a single non-blocking switch for all {cluster.num_devices:,} devices"
    return ", ".join(_tier_text(tier) for tier in cluster.fabric)


def _tier_text(tier: FabricTier) -> str:
    """Text of one switch tier: its devices, rail optimisation and oversubscription."""
    below = f"of {tier.num_devices:,} devices" if tier.num_devices else "over all devices"
    rails = ", rail-optimised" if tier.rails else ""
    ratio = f", oversubscribed {tier.oversubscription:.4g}:1" if tier.oversubscription > 1 else ""
    marks = f" ({(rails + ratio).removeprefix(', ')})" if rails or ratio else ""
    return f"{tier.name} {below}{marks}"
