"""Facts of files about nodes and switches, each with its place, and the assumptions beside them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from shardwright.lazy_dataclass import dataclass
from shardwright.units import BITS_PER_BYTE, GIGA, format_bytes


class What(StrEnum):
    """The subject of a fact; the words that it is shown with."""

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


class Links(NamedTuple):
    """NVLinks, or XGMI links, of a device: to each peer (0 = not the same to all), and of all peers
    together.
    """

    peer: int
    total: int


class Paths(NamedTuple):
    """The PCIe topology of a node: devices below each PCIe switch and of each processor, the most
    first.
    """

    switches: tuple[int, ...]
    processors: tuple[int, ...]


Value = str | int | float | Links | Paths | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A fact: of what, in SI units where it is a quantity (bytes, bytes/s), and where it stands
    (file and line, or element).
    """

    what: What
    value: Value
    where: str

    @property
    def words(self) -> str:
        """The value for a person."""
        return in_words(self.what, self.value)


@dataclass(frozen=True, slots=True)
class Assumed:
    """An assumption where no file states a fact: its subject, value in words, and reason."""

    what: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """A node as a file describes it.

    Args:
        name: empty = any node of its kind, as a file that was written on one node says.
        facts: at most one of each `What`.
        guesses: what the file makes likely and does not say: (value, why), by what they are of.
            They hold where nothing else is found.
        above: names of the switches over it, the nearest first.
        where: it stands.
        away: why no job can be placed on it (down, drained, cordoned, not ready); empty = nothing
            says so.
        remark: what else is said of its state.
    """

    name: str
    where: str
    facts: tuple[Found, ...]
    guesses: tuple[tuple[What, int, str], ...] = ()
    above: tuple[str, ...] = ()
    away: str = ""
    remark: str = ""

    def fact(self, what: What) -> Found | None:
        """The fact of that kind; None = the file does not say."""
        return next((one for one in self.facts if one.what is what), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch of a list of switches: names of the nodes, or of the switches, below it. is_block:
    what Slurm calls a block.
    """

    name: str
    where: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    is_block: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BusRate:
    """Bus bandwidth, bytes/s, that the largest messages of a collective reached over so many
    devices.
    """

    collective: str
    num_devices: int
    rate: float
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The facts of one file.

    Args:
        file: its name.
        samples: nodes without a name.
        nodes: nodes by name, all those with accelerators.
        switches: that join nodes.
        rates: that were measured.
        notes: facts of the whole.
    """

    file: str
    samples: tuple[SeenNode, ...] = ()
    nodes: tuple[SeenNode, ...] = ()
    switches: tuple[Switch, ...] = ()
    rates: tuple[BusRate, ...] = ()
    notes: tuple[Found, ...] = ()


def in_words(what: What, value: Value) -> str:
    """A value of a fact for a person."""
    if isinstance(value, Links):
        return f"{value.total} links"
    if isinstance(value, Paths):
        return (
            f"PCIe switches with {_sizes(value.switches)}, processors with"
            f" {_sizes(value.processors)}"
        )
    if isinstance(value, tuple):
        return (
            f"{len(value)} of {value[0]} devices"
            if len(set(value)) == 1
            else f"of {', '.join(map(str, value))} devices"
        )
    if what in (What.DEVICE_MEMORY, What.HOST_MEMORY) and not isinstance(value, str):
        return format_bytes(value)
    if what is What.NIC_RATE and not isinstance(value, str):
        return f"{value * BITS_PER_BYTE / GIGA:.4g} Gb/s"
    if what in (What.PCIE, What.BUS_RATE) and not isinstance(value, str):
        return f"{value / GIGA:.4g} GB/s"
    return str(value)


def _sizes(sizes: tuple[int, ...]) -> str:
    """``4 devices each``, or ``5 and 3 devices``."""
    if len(set(sizes)) == 1:
        return f"{sizes[0]} device{'' if sizes[0] == 1 else 's'} each"
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]} devices"
