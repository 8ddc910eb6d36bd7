"""Clusters: groups of nodes, and the tiers of network that join their devices.

Devices are numbered node by node, group by group, from 0. Tier 0 is the scale-up island (NVLink,
ICI, PCIe); the tiers above are the scale-out network from leaf to core. A tier's link is one
device's share of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, fields, replace
from typing import Any, Final

from shardwright.hardware.accelerator import Accelerator, Evidence, Origin
from shardwright.hardware.link import Link, Tier
from shardwright.hardware.network_zones import ZoneLink
from shardwright.lazy_dataclass import dataclass

IN_THE_FILE: Final = Origin(evidence=Evidence.ASSUMED, reference="given in the cluster file")
ONE_SWITCH: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="no switch tiers are given; a cluster file can (docs/clusters.md)",
)


def _printed(value: Any) -> str:
    """A dataclass as its own ``repr``, without the fields of `_AT_DEFAULT` that have their default:
    digests are made of what is printed.
    """
    shown = [
        one
        for one in fields(value)
        if one.repr and (one.name not in _AT_DEFAULT or getattr(value, one.name) != one.default)
    ]
    return (
        f"{type(value).__qualname__}"
        f"({', '.join(f'{one.name}={getattr(value, one.name)!r}' for one in shown)})"
    )


_AT_DEFAULT: Final = frozenset(["node_tiers", "reliability"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node's host side: memory and NVMe capacity in bytes, PCIe share of one device, NVMe bytes/s
    of the node.

    `memory_bytes` of 0: nobody says how much there is, so that no plan needs too much of it.
    `origin` says where the sizes come from; None = not said.
    """

    memory_bytes: int
    pcie: Link
    nvme_bytes: int = 0
    nvme_bandwidth: float = 0.0
    memory_bandwidth: float = 200e9
    origin: Origin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTier:
    """A path inside a node that joins its scale-up islands: a processor's PCIe, or the link between
    two processors.

    Args:
        name: ``processor``, ``sockets``.
        num_devices: devices below one unit of it; the last tier joins the node.
        link: what all devices of a unit of the level below send together into this tier, and
            seconds of a message over it.
    """

    name: str
    num_devices: int
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """A kind of node.

    Args:
        num_devices: accelerators in it.
        island: devices of one scale-up domain (may exceed num_devices: NVL72).
        scale_up: one device's link inside the island.
        nics: network cards of the node;
        nic: the link of one card.
        node_tiers: from the islands upward, what joins those of one node; empty = they reach each
            other over the cards.
        in_network_reduction: the scale-up switch can reduce (NVLink SHARP).
        at_work: devices of a node that share its cards; 0 = all of them. What a plan leaves idle
            sends nothing (`graph.at_work`).
    """

    name: str
    accelerator: Accelerator
    num_devices: int
    island: int
    scale_up: Link
    nics: int
    nic: Link
    host: Host
    in_network_reduction: bool = False
    at_work: int = 0
    node_tiers: tuple[NodeTier, ...] = ()

    def __repr__(self) -> str:
        return _printed(self)

    @property
    def sharing(self) -> int:
        """Devices that share the node's cards and links."""
        return self.at_work or self.num_devices

    @property
    def network_per_device(self) -> Link:
        """One device's share of the node's cards when all that share them send.

        Each has as many cards as there are for a device, or its part of those that it shares with
        others, one at most: of 8 devices with 4 cards each has half a card; with 3 of them at work
        it has a whole one, and so it has alone.
        """
        share = max(self.nics / self.num_devices, min(1.0, self.nics / self.sharing))
        return replace(
            self.nic,
            bandwidth=self.nic.bandwidth * share,
            reverse_bandwidth=self.nic.reverse_bandwidth * share,
        )

    @property
    def inner_levels(self) -> tuple[Tier, ...]:
        """Levels inside a node as a device sees them, innermost first: its scale-up island, then
        the tiers that join islands of the node.

        A device has an equal part of what its unit of the level below sends into a tier, at most
        what it has on that level.
        """
        up = self.scale_up
        levels = [
            Tier(
                name="island",
                num_devices=self.island,
                bandwidth=up.achieved,
                latency_s=up.latency_s,
            )
        ]
        for tier in self.node_tiers:
            below = levels[-1]
            share = tier.link.achieved / min(below.num_devices, self.sharing)
            bandwidth, latency_s = (
                min(share, below.bandwidth),
                max(tier.link.latency_s, below.latency_s),
            )
            levels.append(
                Tier(
                    name=tier.name,
                    num_devices=tier.num_devices,
                    bandwidth=bandwidth,
                    latency_s=latency_s,
                )
            )
        return tuple(levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` nodes of one kind in a row.

    Args:
        zone: that they are in; empty where the cluster has one.
        price: dollars of a device in an hour; 0 = not said.
        price_origin: where a price is from that the cluster does not say itself.
    """

    kind: NodeKind
    count: int
    zone: str = ""
    price: float = 0.0
    price_origin: Origin | None = field(default=None, compare=False, repr=False)


def by_zone(groups: Iterable[NodeGroup]) -> tuple[NodeGroup, ...]:
    """The groups with those of a zone side by side,
    zones in the order in which they first stand.
    """
    written = tuple(groups)
    zones = tuple(dict.fromkeys(group.zone for group in written))
    return tuple(sorted(written, key=lambda group: zones.index(group.zone)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricTier:
    """One switch tier of the scale-out network.

    Args:
        name: ``leaf``, ``spine``, ``core``.
        num_devices: devices below one unit of this tier; 0 = the whole cluster.
        oversubscription: what all devices below a unit of the tier below can send together over
            what that unit's links into this tier carry, >= 1: 3 on ``spine`` is a leaf whose
            uplinks are a third of its downlinks. What stays below a leaf is not slowed, nor are
            rings, of which few members' messages leave it. The first tier joins nodes at their
            cards' rate: it has none.
        latency_s: added to a message that crosses this tier.
        rails: devices of equal place in their nodes share a switch (rail-optimised).
    """

    name: str
    num_devices: int
    oversubscription: float = 1.0
    latency_s: float = 0.0
    rails: bool = False


_ONE_TIER: Final = (FabricTier(name="network", num_devices=0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Failures and storage of a cluster as its file states them, for goodput
    (`hardware.reliability`).

    Args:
        failures_per_device_hour: unexpected interruptions; None = as each accelerator has.
        storage_bandwidth: bytes/s that the whole cluster writes to its shared storage; 0 = not
            said.
        restart_s: seconds from an interruption to training again; None = not said.
    """

    failures_per_device_hour: float | None = None
    storage_bandwidth: float = 0.0
    restart_s: float | None = None
    origin: Origin = IN_THE_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes and the network between them. Mixed kinds are legal.

    Args:
        expression: what the user wrote, kept for plan files and messages.
        fabric: from the tier next to the nodes upward, in every zone; empty = one non-blocking
            switch.
        fabric_origin: where they come from.
        links: of each zone to each other, in the order of the zones; empty where there is one zone.
        reliability: of its devices and its storage.
        note: what its words count, where that is no count of devices.
    """

    expression: str
    groups: tuple[NodeGroup, ...]
    fabric: tuple[FabricTier, ...] = ()
    fabric_origin: Origin = ONE_SWITCH
    links: tuple[ZoneLink, ...] = ()
    reliability: Reliability = Reliability()
    note: str = field(default="", compare=False, repr=False)

    def __repr__(self) -> str:
        return _printed(self)

    def __hash__(self) -> int:
        # Cheap and lawful: equal clusters have equal words and numbers of nodes, and their rates
        # are many.
        return hash(
            (self.expression, tuple([(g.count, g.kind.name, g.kind.at_work) for g in self.groups]))
        )

    @property
    def num_devices(self) -> int:
        """Devices in all nodes."""
        return sum(g.count * g.kind.num_devices for g in self.groups)

    @property
    def is_uniform(self) -> bool:
        """All nodes are of one kind, in one zone."""
        first = self.groups[0]
        return all(g.zone == first.zone and g.kind == first.kind for g in self.groups[1:])

    @property
    def zones(self) -> tuple[str, ...]:
        """Names of the zones, in the order of the nodes."""
        return tuple(dict.fromkeys(group.zone for group in self.groups))

    @property
    def node(self) -> NodeKind:
        """The kind of the first group (the only one in a uniform cluster)."""
        return self.groups[0].kind

    @property
    def network(self) -> tuple[FabricTier, ...]:
        """The tiers above the nodes, from the one next to them upward; one switch if none are
        given.
        """
        return self.fabric or _ONE_TIER

    def network_rates(self, kind: NodeKind) -> tuple[tuple[FabricTier, float, float], ...]:
        """Each tier of the network with achieved bytes/s of a device's share and seconds of a
        message over it, from nodes of a kind.

        What narrows or delays a tier does so for all above it: with an oversubscription of 3 on the
        second of three tiers, the shares of a card of 50 GB/s for each device are 50, 16.7 and 16.7
        GB/s.
        """
        share, latency_s = kind.network_per_device.achieved, kind.nic.latency_s
        found = []
        for tier in self.network:
            share /= tier.oversubscription
            latency_s += tier.latency_s
            found.append((tier, share, latency_s))
        return tuple(found)

    def described(self) -> str:
        """Devices, nodes and scale-up domains in words, so that a count that was meant otherwise is
        seen.
        """
        parts = []
        for group in self.groups:
            kind, count = group.kind, group.count
            nodes = "a node" if count == 1 else f"{count:,} nodes"
            domain = (
                f", scale-up domains of {kind.island:,}" if kind.island != kind.num_devices else ""
            )
            zone = f" in {group.zone}" if group.zone else ""
            parts.append(
                f"{count * kind.num_devices:,} x {kind.accelerator.name}, {nodes} of"
                f" {kind.num_devices}{domain}{zone}"
            )
        return " + ".join(parts) + (f" ({self.note})" if self.note else "")

    def tiers(self) -> tuple[Tier, ...]:
        """Levels of a uniform cluster, innermost first: island, tiers inside a node, the network's.

        Bytes/s are achieved ones, of one device's share.
        """
        kind = self.node
        total = self.num_devices
        levels = [
            replace(level, num_devices=min(level.num_devices, total)) for level in kind.inner_levels
        ]
        below = levels[-1].num_devices
        share, latency_s = 0.0, 0.0
        for tier, share, latency_s in self.network_rates(kind):
            reach = min(tier.num_devices or total, total)
            if reach > below:
                levels.append(
                    Tier(name=tier.name, num_devices=reach, bandwidth=share, latency_s=latency_s)
                )
                below = reach
        if below < total:
            levels.append(
                Tier(name="core", num_devices=total, bandwidth=share, latency_s=latency_s)
            )
        return tuple(levels)
