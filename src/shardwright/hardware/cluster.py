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
from shardwright.hardware.link_and_network_tier import Link, Tier
from shardwright.hardware.zone_link_record_and_price_checks import ZoneLink
from shardwright.lazily_compiled_dataclass import dataclass

IN_THE_FILE: Final = Origin(evidence=Evidence.ASSUMED, reference="given in the cluster file")
ONE_SWITCH: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="no switch tiers are given; a cluster file can (docs/clusters.md)",
)


def _repr_without_defaults(value: Any) -> str:
    """Return a dataclass's ``repr`` without the fields of `_AT_DEFAULT` that have their default.

    Digests of problems are made of this text.
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
    """A node's host: memory and NVMe capacity in bytes, one device's PCIe link, NVMe bytes/s.

    `memory_bytes` of 0: the capacity is not known, so that no plan needs too much of it. `origin`
    is the source of the sizes; None = not known.
    """

    memory_bytes: int
    pcie: Link
    nvme_bytes: int = 0
    nvme_bandwidth: float = 0.0
    memory_bandwidth: float = 200e9
    origin: Origin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTier:
    """A path inside a node that joins its scale-up islands, such as PCIe through a processor.

    Args:
        name: ``processor``, or ``sockets`` for the link between two processors.
        num_devices: devices below one unit of the tier; the last tier joins the node.
        link: bytes/s that all devices of a unit of the level below send together into this tier,
            and seconds of a message over the tier.
    """

    name: str
    num_devices: int
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """A kind of node: accelerators, scale-up link, network cards and host.

    Args:
        num_devices: accelerators of the node.
        island: devices of one scale-up domain (may exceed num_devices: NVL72).
        scale_up: one device's link inside the island.
        nics: network cards of the node;
        nic: the link of one card.
        node_tiers: from the islands upward, the tiers that join the islands of one node; empty =
            the islands reach each other over the cards.
        in_network_reduction: the scale-up switch can reduce (NVLink SHARP).
        at_work: devices of a node that share its cards; 0 = all of them. Devices that a plan leaves
            idle send nothing (`cluster_network_levels.with_working_devices`).
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
        return _repr_without_defaults(self)

    @property
    def sharing(self) -> int:
        """Number of devices that share the node's cards and links: `at_work` if set, else all."""
        return self.at_work or self.num_devices

    @property
    def network_per_device(self) -> Link:
        """Link of one device: its equal share of the node's cards while all `sharing` devices send.

        Where there are fewer cards than devices, a device has at most one card. Each of 8 devices
        with 4 cards has half a card; with 3 of them at work each has a whole card.
        """
        share = max(self.nics / self.num_devices, min(1.0, self.nics / self.sharing))
        return replace(
            self.nic,
            bandwidth=self.nic.bandwidth * share,
            reverse_bandwidth=self.nic.reverse_bandwidth * share,
        )

    @property
    def inner_levels(self) -> tuple[Tier, ...]:
        """Network levels inside a node as one device sees them, innermost first.

        The first level is the scale-up island; then come the tiers that join the node's islands. A
        device has an equal part of the bandwidth that its unit of the level below has into a tier,
        at most its own bandwidth on the level below.
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
    """`count` nodes of one kind in a row, with their zone and price.

    Args:
        zone: of the nodes; empty where the cluster has one zone.
        price: dollars of a device in an hour; 0 = not known.
        price_origin: source of a price that the cluster itself does not state.
    """

    kind: NodeKind
    count: int
    zone: str = ""
    price: float = 0.0
    price_origin: Origin | None = field(default=None, compare=False, repr=False)


def sorted_by_zone(groups: Iterable[NodeGroup]) -> tuple[NodeGroup, ...]:
    """Sort node groups so that groups of one zone are neighbours, zones in order of appearance."""
    written = tuple(groups)
    zones = tuple(dict.fromkeys(group.zone for group in written))
    return tuple(sorted(written, key=lambda group: zones.index(group.zone)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricTier:
    """One switch tier of the scale-out network: reach, oversubscription and latency.

    Args:
        name: ``leaf``, ``spine``, ``core``.
        num_devices: devices below one unit of this tier; 0 = the whole cluster.
        oversubscription: ratio, >= 1, of the rate at which all devices below a unit of the tier
            below send together to the rate of that unit's links into this tier: 3 on ``spine`` is
            a leaf whose uplinks are a third of its downlinks. Traffic inside a leaf is not slowed,
            nor are rings, of which few messages leave a leaf. The first tier joins nodes at their
            cards' rate: it has no oversubscription.
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
    """Failure rate, storage bandwidth and restart time that a cluster file states, for goodput.

    See `hardware.failure_rate_storage_restart`.

    Args:
        failures_per_device_hour: unexpected interruptions; None = as each accelerator has.
        storage_bandwidth: bytes/s that the whole cluster writes to its shared storage; 0 = not
            known.
        restart_s: seconds from an interruption to training again; None = not known.
    """

    failures_per_device_hour: float | None = None
    storage_bandwidth: float = 0.0
    restart_s: float | None = None
    origin: Origin = IN_THE_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes and the network between them; kinds of nodes may be mixed.

    Args:
        expression: text of the user, kept for plan files and messages.
        fabric: switch tiers from the nodes upward, in every zone; empty = one non-blocking switch.
        fabric_origin: source of the tiers.
        links: from each zone to each other, in the order of the zones; empty where there is one
            zone.
        reliability: of the devices and the storage.
        note: unit of the count in the expression, where the count is not of devices.
    """

    expression: str
    groups: tuple[NodeGroup, ...]
    fabric: tuple[FabricTier, ...] = ()
    fabric_origin: Origin = ONE_SWITCH
    links: tuple[ZoneLink, ...] = ()
    reliability: Reliability = Reliability()
    note: str = field(default="", compare=False, repr=False)

    def __repr__(self) -> str:
        return _repr_without_defaults(self)

    def __hash__(self) -> int:
        # Cheap and lawful: equal clusters have equal words and numbers of nodes, and their rates
        # are many.
        return hash(
            (self.expression, tuple([(g.count, g.kind.name, g.kind.at_work) for g in self.groups]))
        )

    @property
    def num_devices(self) -> int:
        """Number of devices in all nodes."""
        return sum(g.count * g.kind.num_devices for g in self.groups)

    @property
    def is_uniform(self) -> bool:
        """True if all nodes are of one kind and in one zone."""
        first = self.groups[0]
        return all(g.zone == first.zone and g.kind == first.kind for g in self.groups[1:])

    @property
    def zones(self) -> tuple[str, ...]:
        """Distinct names of the zones, in order of first appearance among the node groups."""
        return tuple(dict.fromkeys(group.zone for group in self.groups))

    @property
    def node(self) -> NodeKind:
        """Node kind of the first group (the only kind of a uniform cluster)."""
        return self.groups[0].kind

    @property
    def network(self) -> tuple[FabricTier, ...]:
        """Switch tiers above the nodes, the nearest first; one full-rate switch if none stated."""
        return self.fabric or _ONE_TIER

    def network_rates(self, kind: NodeKind) -> tuple[tuple[FabricTier, float, float], ...]:
        """(tier, achieved bytes/s of a `kind` device, summed latency in s) of each switch tier.

        The rates are those of a device in nodes of `kind`. Oversubscription and latency of a tier
        apply to all tiers above it: with an oversubscription of 3 on the second of three tiers, the
        shares of a card of 50 GB/s for each device are 50, 16.7 and 16.7 GB/s.
        """
        share, latency_s = kind.network_per_device.achieved, kind.nic.latency_s
        found = []
        for tier in self.network:
            share /= tier.oversubscription
            latency_s += tier.latency_s
            found.append((tier, share, latency_s))
        return tuple(found)

    def described(self) -> str:
        """Message text: each group's sizes and zone, joined by ``+``; then the cluster's note."""
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
        """Uniform cluster's levels, innermost first: island, node tiers, switches to all devices.

        Bytes/s are achieved rates of one device's share.
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
