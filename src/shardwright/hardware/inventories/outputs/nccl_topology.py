"""Reader of NCCL's topology XML (``NCCL_TOPO_DUMP_FILE``, ``NCCL_TOPO_FILE``).

The reader relies on: ``system`` > ``cpu`` > ``pci`` (nested: switches and functions) > ``gpu`` or
``nic`` > ``net``; on a ``gpu`` its compute capability (``sm``) and ``nvlink target= count=
tclass=``, or ``xgmi`` in the dumps of RCCL; on a ``net`` its ``speed`` in Mb/s; on a ``pci`` its
``class``, ``vendor``, ``device``, ``link_speed`` and ``link_width``. Files that clouds ship for
NCCL_TOPO_FILE have the ``pci`` alone: functions of the classes 0x03 and 0x02 are devices and cards
there. An element inside a ``gpu`` or ``pci`` that is not known may be a link: it is refused; what
else is not known is listed. Source: NVIDIA/nccl and ROCm/rccl, src/graph/xml.cc and topo.cc.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.catalog.default_nodes import PCIE_GB_PER_S
from shardwright.hardware.inventories.connected_device_groups import (
    connected_parts,
    island_sizes,
    require_all_links,
)
from shardwright.hardware.inventories.documents.size_limited_text import MAX_WORD, whole_number
from shardwright.hardware.inventories.documents.xml_tree import Element, parse_xml
from shardwright.hardware.inventories.node_facts import (
    DeviceLinks,
    FactKind,
    FoundFact,
    Inventory,
    PciePaths,
    SeenNode,
)
from shardwright.hardware.inventories.outputs.find_unknown_nccl_topology_elements import (
    unknown_elements,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import BITS_PER_BYTE, GIGA, MEGA

MAX_FUNCTIONS: Final = 1024
MAX_LINKS: Final = 1024
MAX_MEGABITS: Final = 10_000_000
_SWITCH: Final = "0x0680"
"""Class of NVSwitches: bridges of another kind."""
_DEVICES: Final = ("0x0302", "0x0300", "0x1200")
_CARDS: Final = ("0x0200", "0x0207")
_LINKS: Final = {"nvlink": FactKind.LINKS, "xgmi": FactKind.XGMI}
"""Elements that are links of a device -> kind of fact."""
_GENERATIONS: Final = {"8": 3, "16": 4, "32": 5, "64": 6}
"""GT/s of a lane -> generation of PCIe; ports of virtual machines state a lower speed."""
_SPEED: Final = re.compile(r"([0-9]{1,3})(?:\.[0-9]+)? ?GT/s.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    """A PCI function of a device or card, with the switches, processor and host above it.

    Args:
        element: the device's or card's element.
        pci: the PCI element that holds it.
        above: PCIe switches, and the switches that these have a link to (``pcilink``).
        cpu, host: the processor, and the host's hash.
    """

    element: Element
    pci: Element | None
    above: tuple[str, ...]
    cpu: Element
    host: str


def is_nccl_xml(text: str) -> bool:
    """True if the text begins with ``<``, as an NCCL topology dump in XML does."""
    return text.lstrip().startswith("<")


def read_nccl_xml(text: str, *, name: str) -> Inventory:
    """Read the node of an NCCL topology dump; of hosts with equally many devices, the first.

    Raises:
        ClusterError: the text is no topology of NCCL, a number is wrong, or its hosts differ.
    """
    root = parse_xml(text, name=name)
    if root.name != "system":
        hint = "NCCL_TOPO_DUMP_FILE writes one that begins with <system version=..>"
        raise ClusterError(f"{name}: <{root.name[:40]}> is no topology of NCCL", hint=hint)
    notes = unknown_elements(root, name=name)
    functions = [function for cpu in root.inside for function in _functions(cpu, None, (), cpu)]
    gpus = _distinct_elements(functions, "gpu") or _functions_of_class(functions, _DEVICES)
    nets = _distinct_elements(functions, "net") or _functions_of_class(functions, _CARDS)
    if max(len(gpus), len(nets)) > MAX_FUNCTIONS:
        raise ClusterError(
            f"{name}: {len(gpus)} devices and {len(nets)} cards",
            hint=f"at most {MAX_FUNCTIONS} of each",
        )
    counts = Counter(gpu.host for gpu in gpus)
    hosts = list(counts) or [""]
    other = next((host for host in hosts if counts[host] != counts[hosts[0]]), None)
    if other is not None:
        raise ClusterError(
            f"{name}: {counts[hosts[0]]} devices on host {hosts[0][:40]}, and {counts[other]} on"
            f" host {other[:40]}",
            hint="dump the topology of a job that has all devices of each of its nodes",
        )
    first, cards = (
        [gpu for gpu in gpus if gpu.host == hosts[0]],
        [net for net in nets if len(hosts) == 1 or net.host == hosts[0]],
    )
    where = f"{name}:{first[0].element.line}" if first else f"{name}:{root.line}"
    islands = _island_facts(first, len(hosts), name)
    facts = [
        *_device_facts(first, name),
        *islands,
        *_path_facts(first, islands, name),
        *_card_facts(first, cards, name),
    ]
    guesses = () if gpus or nets else _unclassified_cards(functions)
    if len(hosts) > 1:
        guesses = (*guesses, (FactKind.NODES, len(hosts), f"hosts in {name}"))
    node = SeenNode(name="", where=where, facts=tuple(facts), guesses=guesses)
    return Inventory(file=name, samples=(node,), notes=notes)


def _functions(
    element: Element, pci: Element | None, above: tuple[str, ...], cpu: Element
) -> Iterator[_Function]:
    """Yield an element and all inside it, each with PCI function, switches above and processor."""
    yield _Function(element=element, pci=pci, above=above, cpu=cpu, host=cpu.get("host_hash"))
    for inner in element.inside:
        down = above
        if inner.name == "pci" and any(one.name == "pci" for one in inner.inside):
            down = (
                *above,
                inner.get("busid"),
                *(one.get("target") for one in inner.inside if one.name == "pcilink"),
            )
        yield from _functions(inner, inner if inner.name == "pci" else pci, down, cpu)


def _distinct_elements(functions: list[_Function], kind: str) -> list[_Function]:
    """Elements of a kind without repeats: one for each card name or PCI bus id of a host.

    A card may be listed under both processors, a device once for each of its partitions.
    """
    found: dict[tuple[str, str], _Function] = {}
    for number, one in enumerate(functions):
        if one.element.name == kind:
            key = (
                one.element.get("name")
                if kind == "net"
                else one.pci.get("busid")
                if one.pci
                else ""
            )
            found.setdefault((one.host, key or f"number {number}"), one)
    return list(found.values())


def _functions_of_class(functions: list[_Function], classes: tuple[str, ...]) -> list[_Function]:
    """PCI functions whose class begins with one of `classes`."""
    return [
        one
        for one in functions
        if one.element.name == "pci" and one.element.get("class").startswith(classes)
    ]


def _unclassified_cards(functions: list[_Function]) -> tuple[tuple[FactKind, int, str], ...]:
    """Guess (kind of fact, number of cards, reason) from PCI functions without class; else empty.

    NCCL finds devices by itself, so the functions of such a file are cards.
    """
    leaves = [one for one in functions if one.element.name == "pci" and not one.element.inside]
    if not leaves or any(one.element.get("class") for one in leaves):
        return ()
    return (
        (
            FactKind.NICS,
            len(leaves),
            "PCI functions without a class in a file that names no device are taken as cards",
        ),
    )


def _device_facts(gpus: list[_Function], name: str) -> list[FoundFact]:
    """Facts of a node's devices: number, model, compute capability, PCIe rate; [] if none."""
    if not gpus:
        return []
    element = gpus[0].element
    where = f"{name}:{element.line} <{element.name}>"
    found = [FoundFact(FactKind.DEVICES, len(gpus), where)]
    models = {_pci_numbers(gpu) for gpu in gpus} - {""}
    if len(models) > 1:
        raise ClusterError(
            f"{name}: devices of {len(models)} models in a node: {', '.join(sorted(models))[:80]}",
            hint="one model a node",
        )
    found += [FoundFact(FactKind.PRODUCT, f"pci {models.pop()}", where)] if models else []
    if element.get("sm"):
        found.append(
            FoundFact(
                FactKind.COMPUTE,
                whole_number(element.get("sm"), what="sm", where=where, most=1000),
                where,
            )
        )
    rates = [rate for gpu in gpus if gpu.pci is not None and (rate := _slot_rate(gpu.pci))]
    return found + ([FoundFact(FactKind.PCIE, min(rates), where)] if rates else [])


def _pci_numbers(gpu: _Function) -> str:
    """PCI vendor and device numbers, ``10de:2330``; empty where the file does not state them."""
    pci = gpu.pci or gpu.element
    vendor, device = (pci.get(key).lower().removeprefix("0x")[:8] for key in ("vendor", "device"))
    return f"{vendor}:{device}" if vendor and device else ""


def _slot_rate(pci: Element) -> float:
    """Bytes/s of a function's PCIe slot in one direction; 0.0 where the file states none.

    A missing width is 16 lanes.
    """
    speed = _SPEED.fullmatch(pci.get("link_speed"))
    generation = _GENERATIONS.get(speed[1]) if speed else None
    width = {"1": 1, "2": 2, "4": 4, "8": 8, "16": 16, "": 16, "0": 16}.get(pci.get("link_width"))
    return PCIE_GB_PER_S[generation] * GIGA * width / 16 if generation and width else 0.0


def _island_facts(gpus: list[_Function], hosts: int, name: str) -> list[FoundFact]:
    """Facts of a node's scale-up islands and of a device's NVLinks or XGMI links.

    A switch joins all devices that have a link to it, on all hosts of the dump.
    """
    if not any(gpu.element.name == "gpu" for gpu in gpus):
        return []
    places = {
        gpu.pci.get("busid").lower(): number
        for number, gpu in enumerate(gpus)
        if gpu.pci is not None
    }
    pairs, switched, sums, counts = set[tuple[int, int]](), list[int](), list[int](), set[int]()
    where, what = f"{name}:{gpus[0].element.line} <gpu>", FactKind.LINKS
    for number, gpu in enumerate(gpus):
        total = 0
        for link in (one for one in gpu.element.inside if one.name in _LINKS):
            at = f"{name}:{link.line} <{link.name}>"
            count = whole_number(link.get("count"), what="count", where=at, most=MAX_LINKS)
            peer = places.get(link.get("target").lower())
            is_switch = link.get("tclass").startswith(_SWITCH) and link.get("tclass") != "0x068001"
            if peer is None and not is_switch:
                # A processor, or a device outside the job, which `unknown_elements` lists.
                continue
            total, where, what = total + count, at, _LINKS[link.name]
            counts.add(count if peer is not None else 0)
            pairs |= {(number, peer)} if peer is not None else set()
            switched += [number] if is_switch and peer is None else []
        sums.append(total)
    if switched:
        require_all_links(
            sums, [_device_name(gpu, number) for number, gpu in enumerate(gpus)], where=where
        )
    found = [
        FoundFact(FactKind.ISLANDS, island_sizes(len(gpus), (*pairs, *pairwise(switched))), where)
    ]
    if any(sums):
        total = min(some for some in sums if some)
        peer = total if switched else counts.pop() if len(counts) == 1 else 0
        found.append(FoundFact(what, DeviceLinks(peer, total), where))
    if switched and hosts > 1:
        found.append(FoundFact(FactKind.DOMAIN_NODES, hosts, where))
    return found


def _device_name(gpu: _Function, number: int) -> str:
    """Name such as ``GPU3``, by the device's own number in the file."""
    dev = gpu.element.get("dev")
    return f"GPU{dev if dev.isdigit() and len(dev) <= 4 else number}"


def _path_facts(gpus: list[_Function], islands: list[FoundFact], name: str) -> list[FoundFact]:
    """Facts of device counts below each PCIe switch and processor, unless links join them all."""
    if not islands or islands[0].value == (len(gpus),):
        return []
    joined = [
        (i, j)
        for (i, one), (j, other) in combinations(enumerate(gpus), 2)
        if set(one.above) & set(other.above)
    ]
    together = [
        (i, j) for (i, one), (j, other) in combinations(enumerate(gpus), 2) if one.cpu is other.cpu
    ]
    sizes = [
        tuple(map(len, connected_parts(len(gpus), pairs)))
        for pairs in (joined, (*joined, *together))
    ]
    cpu = gpus[0].cpu
    found = [FoundFact(FactKind.PATHS, PciePaths(*sizes), f"{name}:{cpu.line} <{cpu.name}>")]
    model = " ".join(
        cpu.get(key)[:MAX_WORD] for key in ("arch", "vendor", "familyid", "modelid")
    ).strip()
    return (
        [*found, FoundFact(FactKind.PROCESSOR, model, f"{name}:{cpu.line} <{cpu.name}>")]
        if cpu.get("vendor") and cpu.get("modelid")
        else found
    )


def _card_facts(gpus: list[_Function], nets: list[_Function], name: str) -> list[FoundFact]:
    """Facts on network cards: number, mean rate in bytes/s, and the devices beside each card.

    Where some cards are below a PCIe switch of a device, the others serve storage and hosts.
    """
    beside = {
        id(net): [n for n, gpu in enumerate(gpus) if set(gpu.above) & set(net.above)]
        for net in nets
    }
    counted = [net for net in nets if beside[id(net)]] or nets
    if not counted:
        return []
    where = f"{name}:{counted[0].element.line} <{counted[0].element.name}>"
    found = [FoundFact(FactKind.NICS, len(counted), where)]
    speeds = [
        whole_number(
            net.element.get("speed"),
            what="speed",
            where=f"{name}:{net.element.line} <net>",
            most=MAX_MEGABITS,
        )
        for net in counted
        if net.element.get("speed")
    ]
    if len(speeds) == len(counted):
        found.append(
            FoundFact(FactKind.NIC_RATE, sum(speeds) / len(speeds) * MEGA / BITS_PER_BYTE, where)
        )
    words = [
        f"{_card_name(net)} {'+'.join(f'GPU{n}' for n in beside[id(net)])}"
        for net in counted
        if beside[id(net)]
    ]
    far = [_card_name(net) for net in nets if not beside[id(net)]]
    if words:
        found.append(
            FoundFact(
                FactKind.NEAR,
                ", ".join(words) + (f"; beside none, not counted: {', '.join(far)}" if far else ""),
                where,
            )
        )
    return found


def _card_name(net: _Function) -> str:
    """Name of a card, or its bus id."""
    return (net.element.get("name") or net.element.get("busid"))[:MAX_WORD]
