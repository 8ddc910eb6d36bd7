"""States of one cluster: the same devices and links, some of them slower than usual.

A state only takes away, so no plan is faster in it than on the cluster as it is; devices keep their
numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.changed_cluster import scale_network
from shardwright.hardware.cluster import Cluster, NodeGroup, NodeKind
from shardwright.hardware.link import Link
from shardwright.hardware.network_zones import ZoneLink
from shardwright.lazy_dataclass import dataclass

MOST_STATES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node that is slower than usual.

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
    """A link from one zone to another that is narrower or later than usual: share of its bandwidth,
    seconds more of latency.
    """

    source: str
    target: str
    bandwidth: float = 1.0
    later_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One state of a cluster, and how often it is met.

    Args:
        weight: in proportion to the time that the cluster spends in it.
        devices, network: share of their usual speed that all devices have, and of its usual
            bandwidth that the network between nodes has.
    """

    name: str
    weight: float = 1.0
    devices: float = 1.0
    network: float = 1.0
    nodes: tuple[NodeState, ...] = ()
    links: tuple[LinkState, ...] = ()

    @property
    def alike(self) -> State:
        """The state without what is of single nodes: no plan is slower in it."""
        return replace(self, nodes=())


def shares_of(states: tuple[State, ...]) -> tuple[float, ...]:
    """Share of the time of each state: its weight over the weights of all."""
    total = sum(one.weight for one in states)
    return tuple(one.weight / total for one in states)


def in_state(cluster: Cluster, state: State) -> Cluster:
    """The cluster in a state: slower nodes are groups of their own, in their place, so that every
    device keeps its number.

    Raises:
        ClusterError: it has no such node, or no link between such zones; or one is named twice.
    """
    changed = scale_network(cluster, factor=state.network) if state.network != 1.0 else cluster
    if state.devices != 1.0:
        changed = replace(
            changed,
            groups=tuple(
                replace(g, kind=_slower(g.kind, devices=state.devices)) for g in changed.groups
            ),
        )
    if state.nodes:
        changed = replace(changed, groups=_with_slow_nodes(changed, state))
    return replace(changed, links=_with_slow_links(changed, state)) if state.links else changed


def _with_slow_nodes(cluster: Cluster, state: State) -> tuple[NodeGroup, ...]:
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
                    group, kind=_slower(group.kind, devices=one.devices, cards=one.cards), count=1
                )
            )
            at = number + 1
        if group.count > at:
            groups.append(replace(group, count=group.count - at))
        first += group.count
    return tuple(groups)


def _with_slow_links(cluster: Cluster, state: State) -> tuple[ZoneLink, ...]:
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

    def changed(one: ZoneLink) -> ZoneLink:
        state = slow.get((one.source, one.target))
        if state is None:
            return one
        link = _narrower(one.link, state.bandwidth)
        return replace(one, link=replace(link, latency_s=link.latency_s + state.later_s))

    return tuple(changed(one) for one in cluster.links)


def _slower(kind: NodeKind, *, devices: float = 1.0, cards: float = 1.0) -> NodeKind:
    return replace(
        kind,
        accelerator=slower_device(kind.accelerator, 1.0 / devices),
        nic=_narrower(kind.nic, cards),
    )


def slower_device(device: Accelerator, times: float) -> Accelerator:
    """A device on which every kernel takes so many times as long: its peaks, its memory's bandwidth
    and its launches alike.
    """
    return replace(
        device,
        memory_bandwidth=device.memory_bandwidth / times,
        peak_flops=tuple((dtype, peak / times) for dtype, peak in device.peak_flops),
        gemm=tuple(replace(rates, overhead_s=rates.overhead_s * times) for rates in device.gemm),
        launch_s=device.launch_s * times,
    )


def _narrower(link: Link, share: float) -> Link:
    return replace(
        link, bandwidth=link.bandwidth * share, reverse_bandwidth=link.reverse_bandwidth * share
    )
