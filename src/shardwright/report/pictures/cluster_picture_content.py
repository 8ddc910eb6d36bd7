"""A cluster as a tree: network tiers, nodes, scale-up islands and links.

Equal neighbours are one branch.

Units that are alike and side by side are one branch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from shardwright.hardware.cluster import Cluster, Host, NodeGroup, NodeKind, NodeTier
from shardwright.hardware.cluster_network_levels import (
    group_ends,
    levels_inside_nodes,
    network_levels,
    network_units,
)
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.hardware.link_and_network_tier import Tier
from shardwright.hardware.zone_link_record_and_price_checks import ZoneLink
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import (
    BITS_PER_BYTE,
    GIB,
    GIGA,
    MILLI,
    format_bytes,
    format_percent,
    format_seconds,
)

MOST_BRANCHES: Final = 64
"""Most branches drawn for one unit; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Neighbouring equal units of a cluster tree, drawn once with their count.

    Args:
         title: title of one unit.
        count: number of equal units.
        lines: further text of one unit.
        inside: branches of one unit, in the order of devices.
        level: level of the network tree; 0 = nodes.
    """

    title: str
    count: int
    level: int
    lines: tuple[str, ...] = ()
    inside: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPicture:
    """A cluster, its tree of network units, and the text of the links between its zones."""

    cluster: Cluster
    tree: Branch
    links: tuple[str, ...]


def cluster_picture(cluster: Cluster) -> ClusterPicture:
    """Content of a cluster's picture: its tree of network units and nodes, and its zone links.

    `hardware.device_partition_by_network_level` divides the cluster.
    """
    units = network_units(cluster)
    tree = _unit(cluster, units, len(units) - 1, 0, cluster.num_devices)
    return ClusterPicture(cluster=cluster, tree=tree, links=tuple(map(_zone_link, cluster.links)))


def _unit(cluster: Cluster, units: tuple[Units, ...], level: int, start: int, end: int) -> Branch:
    """Branch of the unit at `level` with devices `start` to `end` - 1, and its branches below."""
    groups, inner = _groups_in_range(cluster, start, end), levels_inside_nodes(cluster)
    inside = (
        _inner_branches(cluster, units, level - 1, start, end)
        if level > inner
        else [branch for _, group, most in groups for branch in _node_branches(group, most)]
    )
    if len(inside) > MOST_BRANCHES:
        inside[MOST_BRANCHES:] = [
            Branch(title=f".. {len(inside) - MOST_BRANCHES} more, which differ", count=1, level=0)
        ]
    zones = tuple(dict.fromkeys(group.zone for _, group, _ in groups if group.zone))
    where = f" in {zones[0]}" if len(zones) == 1 else ""
    tiers = (
        [network_levels(cluster, number)[level] for number, _, _ in groups]
        if level >= inner
        else []
    )
    name = tiers[0].name if tiers else "cluster"
    return Branch(
        title=f"{name} of {end - start:,} devices{where}",
        count=1,
        level=level,
        lines=_tier_lines(cluster, tiers),
        inside=tuple(inside),
    )


def _tier_lines(cluster: Cluster, tiers: Sequence[Tier]) -> tuple[str, ...]:
    """A line: GB/s a device (slowest to fastest), largest latency, rails; () without tiers."""
    if not tiers:
        return ()
    rates = sorted(tier.bandwidth / GIGA for tier in tiers)
    rate = " to ".join(dict.fromkeys(f"{rate:.4g}" for rate in (rates[0], rates[-1])))
    fabric = next((tier for tier in cluster.fabric if tier.name == tiers[0].name), None)
    rails = ", rail-optimised" if fabric is not None and fabric.rails else ""
    ratio = (
        f", oversubscribed {fabric.oversubscription:.4g}:1"
        if fabric is not None and fabric.oversubscription > 1
        else ""
    )
    return (
        (
            f"{rate} GB/s a device, {format_seconds(max(tier.latency_s for tier in tiers))} a"
            f" message{rails}{ratio}"
        ),
    )


def _inner_branches(
    cluster: Cluster, units: tuple[Units, ...], level: int, start: int, end: int
) -> list[Branch]:
    """Branches at `level` for devices `start` to `end` - 1; equal neighbours are one, counted."""
    branches: list[Branch] = []
    at, below = start, units[level]
    while at < end:
        run = bisect_right(below.first, at) - 1
        border = min([end, *below.first[run + 1 : run + 2]])
        size = min(below.size[run], border - at)
        # Units that lie in one group of nodes are made once for all of them.
        alike = max(
            (min(border, next(last for last in group_ends(cluster) if last > at)) - at) // size, 1
        )
        branch = _unit(cluster, units, level, at, at + size)
        at += alike * size
        if branches and replace(branches[-1], count=1) == branch:
            alike += branches.pop().count
        branches.append(replace(branch, count=alike))
    return branches


def _groups_in_range(cluster: Cluster, start: int, end: int) -> list[tuple[int, NodeGroup, int]]:
    """(group index, node group, number of devices) of each group with devices in [start, end)."""
    firsts = (0, *group_ends(cluster))
    counts = [min(end, last) - max(start, first) for first, last in pairwise(firsts)]
    return [
        (number, cluster.groups[number], count) for number, count in enumerate(counts) if count > 0
    ]


def _host_memory(host: Host) -> str:
    """Text of a host's memory: ``of 512 GiB``, or ``of unknown memory``."""
    return f"of {format_bytes(host.memory_bytes)}" if host.memory_bytes else "of unknown memory"


def _node_branches(group: NodeGroup, devices: int) -> list[Branch]:
    """Branches: a group's equal nodes with link texts, or scale-up domains larger than a node.

    Where an island is larger than a node, the nodes are inside their islands.
    """
    kind = group.kind
    size, nic = min(kind.island, devices), kind.nic
    cards = "1 NIC" if kind.nics == 1 else f"{kind.nics} NICs"
    lines = (
        (
            f"{cards} of {nic.bandwidth * BITS_PER_BYTE / GIGA:.4g} Gb/s,"
            f" {_efficiency_text(nic.efficiency)}, {format_seconds(nic.latency_s)}"
        ),
        f"host {_host_memory(kind.host)}, {kind.host.pcie.bandwidth / GIGA:.4g} GB/s a device",
        *((f"{group.price:.4g} $ a device and hour",) if group.price else ()),
    )
    node = Branch(
        title=f"node of {kind.num_devices} {kind.accelerator.name}",
        count=max(devices // kind.num_devices, 1),
        level=0,
        lines=lines,
    )
    if size <= kind.num_devices:
        return [
            replace(node, lines=(_island(kind, size), *map(_node_tier, kind.node_tiers), *lines))
        ]
    parts = [(size, devices // size), (devices % size, 1)]
    return [
        Branch(
            title=f"scale-up domain of {part:,} devices",
            count=count,
            level=0,
            lines=(_island(kind, part),),
            inside=(replace(node, count=max(part // kind.num_devices, 1)),),
        )
        for part, count in parts
        if part
    ]


def _island(kind: NodeKind, size: int) -> str:
    """Text of a device's scale-up link (bandwidth, latency) in an island of `size` devices."""
    up = kind.scale_up
    reduces = ", its switch reduces" if kind.in_network_reduction else ""
    link_text = (
        f"{up.bandwidth / GIGA:.4g} GB/s a device, {_efficiency_text(up.efficiency)},"
        f" {format_seconds(up.latency_s)}{reduces}"
    )
    return f"island of {size} devices: {link_text}" if size > 1 else "every device alone"


def _node_tier(tier: NodeTier) -> str:
    """Text of a tier inside a node: devices, GB/s of each unit below it, efficiency, latency."""
    link = tier.link
    link_text = (
        f"{link.bandwidth / GIGA:.4g} GB/s a unit below it, {_efficiency_text(link.efficiency)},"
        f" {format_seconds(link.latency_s)}"
    )
    return f"{tier.name} of {tier.num_devices} devices: {link_text}"


def _efficiency_text(efficiency: float) -> str:
    """Text of the fraction of a link's bandwidth that transfers reach, in percent."""
    return f"{format_percent(efficiency, digits=0)} reached"


def _zone_link(link: ZoneLink) -> str:
    """Text of a link between zones: achieved Gb/s a node, latency, dollars per gigabyte sent."""
    price = f", {link.egress:.4g} $ a gigabyte that leaves" if link.egress else ""
    rate = link.link.achieved * BITS_PER_BYTE / GIGA
    return (
        f"{link.source} to {link.target}: {rate:.4g} Gb/s a node,"
        f" {format_seconds(link.link.latency_s)}{price}"
    )


def cluster_document(picture: ClusterPicture) -> dict[str, Any]:
    """JSON document of a cluster: its nodes, tiers and links with their numbers, and its tree."""
    cluster = picture.cluster
    return {
        "name": cluster.expression,
        "devices": cluster.num_devices,
        "nodes": [_group_document(group) for group in cluster.groups],
        "tiers": [
            {
                "name": tier.name,
                "devices": tier.num_devices or cluster.num_devices,
                "oversubscription": tier.oversubscription,
                "rails": tier.rails,
            }
            for tier in cluster.network
        ],
        "links": [
            {
                "source": one.source,
                "target": one.target,
                "gbit_per_s_a_node": one.link.achieved * BITS_PER_BYTE / GIGA,
                "latency_ms": one.link.latency_s / MILLI,
                "egress_dollars_per_gigabyte": one.egress,
            }
            for one in cluster.links
        ],
        "tree": _branch_document(picture.tree),
    }


def _group_document(group: NodeGroup) -> dict[str, Any]:
    """JSON object of a node group: count, zone, accelerator, islands, links, NICs, host memory."""
    kind = group.kind
    return {
        "name": kind.name,
        "accelerator": kind.accelerator.name,
        "count": group.count,
        "zone": group.zone,
        "devices_per_node": kind.num_devices,
        "island_devices": kind.island,
        "scale_up_gigabytes_per_s": kind.scale_up.bandwidth / GIGA,
        "scale_up_efficiency": kind.scale_up.efficiency,
        "node_tiers": [
            {
                "name": tier.name,
                "devices": tier.num_devices,
                "gigabytes_per_s": tier.link.bandwidth / GIGA,
                "efficiency": tier.link.efficiency,
                "latency_us": tier.link.latency_s * 1e6,
            }
            for tier in kind.node_tiers
        ],
        "nics": kind.nics,
        "nic_gbit_per_s": kind.nic.bandwidth * BITS_PER_BYTE / GIGA,
        "nic_efficiency": kind.nic.efficiency,
        "host_memory_gib": kind.host.memory_bytes / GIB,
        "pcie_gigabytes_per_s": kind.host.pcie.bandwidth / GIGA,
    }


def _branch_document(branch: Branch) -> dict[str, Any]:
    """JSON object of a branch and the branches inside it."""
    return {
        "title": branch.title,
        "count": branch.count,
        "lines": list(branch.lines),
        "inside": [_branch_document(one) for one in branch.inside],
    }
