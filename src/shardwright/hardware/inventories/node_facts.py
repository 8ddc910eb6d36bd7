"""Facts that files state about nodes and switches, with file and line, and assumptions."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import BITS_PER_BYTE, GIGA, format_bytes


class FactKind(StrEnum):
    """Property of a node or network that a fact is about; the value is its display text."""

    PRODUCT = "accelerator"
    INSTANCE = "instance type"
    NODES = "nodes"
    DEVICES = "devices of a node"
    DEVICE_MEMORY = "memory of a device"
    COMPUTE = "compute capability"
    ISLANDS = "scale-up islands of a node"
    LINKS = "NVLinks of a device"
    XGMI = "XGMI links of a device"
    PATHS = "PCIe paths of a node"
    PROCESSOR = "processors of a node"
    ORDER = "order of devices"
    DOMAIN = "scale-up domain of a node"
    DOMAIN_NODES = "nodes of a scale-up domain"
    NICS = "network cards of a node"
    NIC_RATE = "rate of a network card"
    NEAR = "cards beside devices"
    PCIE = "PCIe of a device"
    HOST_MEMORY = "memory of a node"
    ZONE = "zone"
    TIER = "switch tier"
    BUS_RATE = "measured bus bandwidth"
    UNREAD = "not read"


class DeviceLinks(NamedTuple):
    """NVLinks, or XGMI links, of a device: to each peer (0 = they differ), and in total."""

    peer: int
    total: int


class PciePaths(NamedTuple):
    """PCIe topology of a node: devices below each PCIe switch and processor, largest first."""

    switches: tuple[int, ...]
    processors: tuple[int, ...]


Value = str | int | float | DeviceLinks | PciePaths | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundFact:
    """A fact: its kind, its value in SI units, and its place (file and line, or element)."""

    what: FactKind
    value: Value
    where: str

    @property
    def words(self) -> str:
        """Value of the fact as text for a person, with its unit."""
        return fact_text(self.what, self.value)


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption where no file states a fact: its subject, value as text, and reason."""

    what: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """A node as a file describes it.

    Args:
        name: empty = any node of its kind, in a file that was written on one node.
        where: place in the file.
        facts: at most one of each `FactKind`.
        guesses: likely values that the file does not state: (kind, value, reason). They hold where
            no fact is found.
        above: names of the switches over the node, the nearest first.
        away: reason why no job can be placed on the node (down, drained, cordoned, not ready);
            empty = the file states none.
        remark: other statements on the node's state.
    """

    name: str
    where: str
    facts: tuple[FoundFact, ...]
    guesses: tuple[tuple[FactKind, int, str], ...] = ()
    above: tuple[str, ...] = ()
    away: str = ""
    remark: str = ""

    def fact(self, what: FactKind) -> FoundFact | None:
        """Fact of this kind about the node; None = the file does not state it."""
        return next((one for one in self.facts if one.what is what), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch of a switch list, with the names of the nodes or switches below it.

    `is_block`: Slurm calls the switch a block.
    """

    name: str
    where: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    is_block: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BusRate:
    """Bus bandwidth, bytes/s, of a collective's largest messages over `num_devices` devices."""

    collective: str
    num_devices: int
    rate: float
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Facts of one file: nodes, switches and measured bandwidths.

    Args:
        file: its name.
        samples: nodes without a name.
        nodes: nodes by name, all those with accelerators.
        switches: switches that join nodes.
        rates: measured bus bandwidths.
        notes: facts of the whole file.
    """

    file: str
    samples: tuple[SeenNode, ...] = ()
    nodes: tuple[SeenNode, ...] = ()
    switches: tuple[Switch, ...] = ()
    rates: tuple[BusRate, ...] = ()
    notes: tuple[FoundFact, ...] = ()


def fact_text(what: FactKind, value: Value) -> str:
    """Display text of a fact's value, with its unit."""
    if isinstance(value, DeviceLinks):
        return f"{value.total} links"
    if isinstance(value, PciePaths):
        return (
            f"PCIe switches with {_sizes_text(value.switches)}, processors with"
            f" {_sizes_text(value.processors)}"
        )
    if isinstance(value, tuple):
        return (
            f"{len(value)} of {value[0]} devices"
            if len(set(value)) == 1
            else f"of {', '.join(map(str, value))} devices"
        )
    if what in (FactKind.DEVICE_MEMORY, FactKind.HOST_MEMORY) and not isinstance(value, str):
        return format_bytes(value)
    if what is FactKind.NIC_RATE and not isinstance(value, str):
        return f"{value * BITS_PER_BYTE / GIGA:.4g} Gb/s"
    if what in (FactKind.PCIE, FactKind.BUS_RATE) and not isinstance(value, str):
        return f"{value / GIGA:.4g} GB/s"
    return str(value)


def _sizes_text(sizes: tuple[int, ...]) -> str:
    """Text such as ``4 devices each``, or ``5 and 3 devices``."""
    if len(set(sizes)) == 1:
        return f"{sizes[0]} device{'' if sizes[0] == 1 else 's'} each"
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]} devices"
