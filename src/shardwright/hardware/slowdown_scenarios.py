"""Conditions of a cluster: the same devices and links, some slower than usual.

A state only makes devices and links slower, so no plan is faster in a state than on the usual
cluster. Devices keep their numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.cluster import Cluster, NodeGroup, NodeKind
from shardwright.hardware.link_and_network_tier import Link
from shardwright.hardware.scale_network_limit_devices_reserve_memory import scale_network
from shardwright.hardware.zone_link_record_and_price_checks import ZoneLink
from shardwright.lazily_compiled_dataclass import dataclass

MOST_STATES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """Slowdown of one node: shares of its devices' speed and of its cards' bandwidth.

    Args:
        node: its number in the cluster, from 0.
        devices: share of their usual speed that its devices have.
        cards: share of the usual bandwidth that its network cards have, both ways.
    """

    node: int
    devices: float = 1.0
    cards: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """Slowdown of the link between two zones: share of its bandwidth, seconds of added latency."""

    source: str
    target: str
    bandwidth: float = 1.0
    later_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One condition of a cluster, with its weight: slower devices, network, nodes or links.

    Args:
        weight: proportional to the time that the cluster spends in the state.
        devices, network: share of the usual speed of all devices, and of the usual bandwidth
            between nodes.
        nodes, links: slower nodes, and slower links between zones.
    """

    name: str
    weight: float = 1.0
    devices: float = 1.0
    network: float = 1.0
    nodes: tuple[NodeState, ...] = ()
    links: tuple[LinkState, ...] = ()

    @property
    def alike(self) -> State:
        """Copy of the state without the slowdowns of single nodes; all other slowdowns stay."""
        return replace(self, nodes=())


def time_shares(states: tuple[State, ...]) -> tuple[float, ...]:
    """Share of the time that each state takes: its weight over the sum of all weights."""
    total = sum(one.weight for one in states)
    return tuple(one.weight / total for one in states)


def cluster_in_state(cluster: Cluster, state: State) -> Cluster:
    """Apply a state to a cluster: slower network, devices, single nodes and zone links.

    Slower nodes become groups of their own, in their place, so that every device keeps its number.

    Raises:
        ClusterError: the cluster has no such node, or no link between such zones; or the state
            names a node or link twice.
    """
    changed = scale_network(cluster, factor=state.network) if state.network != 1.0 else cluster
    if state.devices != 1.0:
        changed = replace(
            changed,
            groups=tuple(
                replace(g, kind=_slower_node(g.kind, devices=state.devices)) for g in changed.groups
            ),
        )
    if state.nodes:
        changed = replace(changed, groups=_with_slow_nodes(changed, state))
    return replace(changed, links=_with_slow_links(changed, state)) if state.links else changed


def _with_slow_nodes(cluster: Cluster, state: State) -> tuple[NodeGroup, ...]:
    """Node groups of the cluster with each slow node of the state as a group of its own."""
    slow = {one.node: one for one in state.nodes}
    if len(slow) < len(state.nodes):
        raise ClusterError(
            f"scenario {state.name[:40]!r} has a node twice", hint="say all of a node in one entry"
        )
    total = sum(group.count for group in cluster.groups)
    if missing := [number for number in slow if number >= total]:
        raise ClusterError(
            f"scenario {state.name[:40]!r}: the cluster has no node {missing[0]}",
            hint=f"nodes are 0 to {total - 1}",
        )
    groups: list[NodeGroup] = []
    first = 0
    for group in cluster.groups:
        at = 0
        for number in sorted(n - first for n in slow if first <= n < first + group.count):
            if number > at:
                groups.append(replace(group, count=number - at))
            one = slow[first + number]
            groups.append(
                replace(
                    group,
                    kind=_slower_node(group.kind, devices=one.devices, cards=one.cards),
                    count=1,
                )
            )
            at = number + 1
        if group.count > at:
            groups.append(replace(group, count=group.count - at))
        first += group.count
    return tuple(groups)


def _with_slow_links(cluster: Cluster, state: State) -> tuple[ZoneLink, ...]:
    """Zone links of the cluster, slowed as the state says; ClusterError if one is unknown."""
    slow = {(one.source, one.target): one for one in state.links}
    if len(slow) < len(state.links):
        raise ClusterError(
            f"scenario {state.name[:40]!r} has a link twice",
            hint="one entry for each direction, or one between two zones",
        )
    known = {(one.source, one.target) for one in cluster.links}
    for source, target in slow:
        if (source, target) not in known:
            zones = ", ".join(zone[:40] for zone in cluster.zones[:8] if zone)
            raise ClusterError(
                f"scenario {state.name[:40]!r}: the cluster has no link from {source[:40]!r} to"
                f" {target[:40]!r}",
                hint=f"its zones are {zones}" if zones else "it has no zones",
            )

    def slowed(one: ZoneLink) -> ZoneLink:
        """Zone link with its share of bandwidth and added latency in the state, if any."""
        state = slow.get((one.source, one.target))
        if state is None:
            return one
        link = _narrower_link(one.link, state.bandwidth)
        return replace(one, link=replace(link, latency_s=link.latency_s + state.later_s))

    return tuple(slowed(one) for one in cluster.links)


def _slower_node(kind: NodeKind, *, devices: float = 1.0, cards: float = 1.0) -> NodeKind:
    """Copy of a node kind with `devices` x the speed of devices, `cards` x the cards' bandwidth."""
    return replace(
        kind,
        accelerator=slower_device(kind.accelerator, 1.0 / devices),
        nic=_narrower_link(kind.nic, cards),
    )


def slower_device(device: Accelerator, times: float) -> Accelerator:
    """Copy of a device on which every kernel takes `times` times as long.

    Peaks, memory bandwidth and launch times all scale.
    """
    return replace(
        device,
        memory_bandwidth=device.memory_bandwidth / times,
        peak_flops=tuple((dtype, peak / times) for dtype, peak in device.peak_flops),
        gemm=tuple(replace(rates, overhead_s=rates.overhead_s * times) for rates in device.gemm),
        launch_s=device.launch_s * times,
    )


def _narrower_link(link: Link, share: float) -> Link:
    """Copy of a link with the fraction `share` of its bandwidth, both ways."""
    return replace(
        link, bandwidth=link.bandwidth * share, reverse_bandwidth=link.reverse_bandwidth * share
    )
