"""Entry of a cluster file for nodes of one kind, made from found facts and catalog defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Origin
from shardwright.hardware.catalog.default_nodes import (
    is_beside_host,
    is_over_pcie,
    nvlink_bridge,
    pcie_scale_up,
)
from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.inventories.accelerator_names import nvlink_fact, nvlink_of
from shardwright.hardware.inventories.catalog_node_match import (
    choose_catalog_node,
    device_link_count,
)
from shardwright.hardware.inventories.merge_inventories import NodeSet
from shardwright.hardware.inventories.node_facts import (
    Assumption,
    DeviceLinks,
    FactKind,
    FoundFact,
    PciePaths,
    fact_text,
)
from shardwright.hardware.inventories.pcie_islands import path_record
from shardwright.hardware.link_and_network_tier import Link
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import BITS_PER_BYTE, GIB, GIGA


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """Entry of a cluster file for nodes of one kind, with its found facts and assumptions.

    Args:
        record: the entry of a cluster file, without its count.
        base: the catalog's node that the entry starts from.
        devices, island: of a node, and of a scale-up domain.
        found, assumed: facts and assumptions behind the entry.
        places: positions of the nodes among all nodes.
    """

    record: Mapping[str, Any]
    base: NodeKind
    devices: int
    island: int
    found: tuple[FoundFact, ...]
    assumed: tuple[Assumption, ...]
    places: tuple[int, ...]


def node_entry(nodes: NodeSet, *, given: Mapping[str, str]) -> NodeEntry:
    """Entry of a cluster file for nodes of one kind: found facts, else the catalog node's values.

    Facts that were found are written; missing ones stay as in the catalog's default node.

    Args:
        given: accelerators or instances by a product's word, or by "" for nodes whose files do not
            state one: see `--accelerator`.

    Raises:
        ClusterError: the accelerator is not stated, the catalog has none of its name, or facts
            contradict each other.
    """
    facts = dict(nodes.facts)
    chosen = choose_catalog_node(facts, given=given)
    base, record, assumed = (
        chosen.base,
        dict[str, Any]({chosen.key: chosen.name}),
        list(chosen.assumed),
    )
    if chosen.product is not None:
        facts[FactKind.PRODUCT] = chosen.product
    found = [fact for fact in facts.values() if fact.what is not FactKind.DOMAIN_NODES]
    devices = _whole_number_fact(facts, FactKind.DEVICES) or base.num_devices
    if devices != base.num_devices:
        record["devices_per_node"] = devices
    for part in (
        _scale_up_part(facts, base, devices),
        _cards_part(facts, nodes.guesses, base, devices),
        _host_part(facts, base),
    ):
        record |= part[0]
        assumed += part[1]
    island = record.get("island_devices") or (
        devices if base.island == base.num_devices else base.island
    )
    if FactKind.DOMAIN_NODES in facts and record.get("island_devices", 0) > devices:
        found.append(facts[FactKind.DOMAIN_NODES])
    if FactKind.DEVICES not in facts:
        assumed.append(Assumption(FactKind.DEVICES, str(devices), f"as {base.name} in the catalog"))
    return NodeEntry(
        record=record,
        base=base,
        devices=devices,
        island=island,
        found=tuple(found),
        assumed=tuple(assumed),
        places=nodes.places,
    )


def _whole_number_fact(facts: Mapping[FactKind, FoundFact], what: FactKind) -> int:
    """Value of a fact that is a whole number; 0 = not found."""
    fact = facts.get(what)
    return fact.value if fact is not None and isinstance(fact.value, int) else 0


RecordPart = tuple[dict[str, Any], list[Assumption]]


def _scale_up_part(facts: Mapping[FactKind, FoundFact], base: NodeKind, devices: int) -> RecordPart:
    """(keys, assumptions) on island size and scale-up link, where not as in the catalog."""
    sizes, links, nodes = (
        facts.get(FactKind.ISLANDS),
        nvlink_fact(facts),
        _whole_number_fact(facts, FactKind.DOMAIN_NODES),
    )
    of_racks = base.island > base.num_devices
    island = _island_devices(sizes, devices)
    record: dict[str, Any] = {}
    assumed: list[Assumption] = []
    if of_racks and nodes and island != 1:
        record["island_devices"] = devices * nodes
    elif of_racks and island == devices:
        assumed.append(
            Assumption(
                "scale-up domain",
                f"{base.island} devices",
                f"as {base.name} in the catalog; one node does not show it",
            )
        )
    elif island > 1 or (island == 1 and devices > 1) or (not of_racks and base.island > devices):
        record["island_devices"] = island if island > 1 else devices
    if nodes > 1 and not of_racks:
        words = f"{base.accelerator.name} has NVLink inside a node alone in the catalog"
        assumed.append(
            Assumption(
                "scale-up domain",
                "of one node",
                f"a domain of {nodes} nodes is taken as a place in the network: {words}",
            )
        )
    paths = path_record(facts, base=base, devices=devices, island=island)
    assumed += paths.assumed
    if links is not None and isinstance(links.value, DeviceLinks) and island > 1:
        return record | _nvlink_record(links, base) | paths.record, assumed
    if paths.record:
        return record | paths.record, assumed
    if island == 1 and devices > 1 and not is_over_pcie(base):
        slot = facts.get(FactKind.PCIE)
        link = pcie_scale_up(
            gb_per_s=(float(str(slot.value)) if slot else base.host.pcie.bandwidth) / GIGA
        )
        record |= {"scale_up": _link_record(link, sizes), "in_network_reduction": False}
    elif sizes is None or (island == 1 and devices > 1):
        assumed.append(
            Assumption(
                "scale-up link",
                f"{base.scale_up.bandwidth / GIGA:.4g} GB/s",
                _catalog_reason(base, base.scale_up.origin),
            )
        )
        if sizes is None and "island_devices" not in record:
            size = devices if base.island == base.num_devices else base.island
            assumed.append(
                Assumption(
                    "scale-up islands", f"of {size} devices", f"as {base.name} in the catalog"
                )
            )
    return record, assumed


def _island_devices(sizes: FoundFact | None, devices: int) -> int:
    """Devices of each scale-up island of a node; 0 = not found; ClusterError if sizes differ."""
    if sizes is None or not isinstance(sizes.value, tuple) or isinstance(sizes.value, PciePaths):
        return 0
    found = tuple(int(size) for size in sizes.value)
    if len(set(found)) > 1:
        words = ", ".join(map(str, found[:8]))
        raise ClusterError(
            f"{sizes.where}: scale-up islands of {words} devices in a node",
            hint="islands of a node have one size: is a link down?",
        )
    return found[0] if sum(found) == devices else 0


def _nvlink_record(links: FoundFact, base: NodeKind) -> dict[str, Any]:
    """Keys for a device's NVLinks where they differ from the catalog's; empty where they do not.

    A mesh without a switch does not reduce.
    """
    assert isinstance(links.value, DeviceLinks)
    most = nvlink_of(base.accelerator)
    if most is None:
        return {}
    count = device_link_count(base.accelerator, links.value)
    rate = count * most.rate
    mesh: dict[str, Any] = (
        {"in_network_reduction": False}
        if base.in_network_reduction and count != links.value.peer
        else {}
    )
    if rate == base.scale_up.bandwidth:
        return mesh
    if is_over_pcie(base):
        return mesh | {
            "scale_up": _link_record(nvlink_bridge(gb_per_s=rate / GIGA, latency_s=1.7e-6), links)
        }
    return mesh | {"scale_up": _link_record(replace(base.scale_up, bandwidth=rate), links)}


def _link_record(link: Link, fact: FoundFact | None) -> dict[str, Any]:
    """A link as keys of a cluster file; the origin names `fact`, the bandwidth's source."""
    return {
        "bandwidth_gigabytes_per_s": link.bandwidth / GIGA,
        "efficiency": link.efficiency,
        "latency_us": round(link.latency_s * 1e6, 6),
        "origin": _origin_record(link.origin, fact),
    }


def _catalog_reason(base: NodeKind, origin: Origin | None) -> str:
    """Reason text of an assumption: as the named node in the catalog, with the number's source."""
    return f"as {base.name} in the catalog" + (
        f": {origin.reference.removeprefix('assumed: ')}" if origin is not None else ""
    )


def _origin_record(origin: Origin, fact: FoundFact | None) -> dict[str, str]:
    """Origin keys of a link, always as assumed, with the place of the bandwidth's fact if any."""
    where = (
        f"bandwidth from {fact.where[:200]}; efficiency and latency: " if fact is not None else ""
    )
    return {
        "evidence": "assumed",
        "reference": f"{where}{origin.reference.removeprefix('assumed: ')[:1000]}",
    }


def _cards_part(
    facts: Mapping[FactKind, FoundFact],
    guesses: tuple[tuple[FactKind, int, str], ...],
    base: NodeKind,
    devices: int,
) -> RecordPart:
    """(keys, assumptions) on the number of network cards of a node and the rate of a card.

    Where the cards are found and their rate is not, they have no more than the default node has in
    all.
    """
    record: dict[str, Any] = {}
    assumed: list[Assumption] = []
    count, rate = _whole_number_fact(facts, FactKind.NICS), facts.get(FactKind.NIC_RATE)
    guess = next(((number, why) for what, number, why in guesses if what is FactKind.NICS), None)
    usual = max(1, -(-base.nics * devices // base.num_devices))
    if not count and guess is not None:
        count = guess[0]
        assumed.append(Assumption(FactKind.NICS, str(count), guess[1]))
    if not count:
        assumed.append(Assumption(FactKind.NICS, str(usual), f"as {base.name} in the catalog"))
    elif count != usual:
        record["nics"] = count
    bandwidth = base.nic.bandwidth
    if rate is not None:
        bandwidth = float(str(rate.value))
    else:
        bandwidth = min(bandwidth, bandwidth * usual / count) if count else bandwidth
        share = "; no more in all than a node of it has" if bandwidth != base.nic.bandwidth else ""
        assumed.append(
            Assumption(
                FactKind.NIC_RATE,
                fact_text(FactKind.NIC_RATE, bandwidth),
                _catalog_reason(base, base.nic.origin) + share,
            )
        )
    if bandwidth != base.nic.bandwidth:
        record["nic"] = {
            "bandwidth_gbps": round(bandwidth * BITS_PER_BYTE / GIGA, 6),
            "origin": _origin_record(base.nic.origin, rate),
        }
    return record, assumed


def _host_part(facts: Mapping[FactKind, FoundFact], base: NodeKind) -> RecordPart:
    """(keys, assumptions) on the host's memory and the PCIe slot of a device."""
    record: dict[str, Any] = {}
    assumed: list[Assumption] = []
    memory, slot = facts.get(FactKind.HOST_MEMORY), facts.get(FactKind.PCIE)
    if memory is not None:
        record["memory_gib"] = round(float(str(memory.value)) / GIB, 3)
        record["origin"] = {
            "evidence": "measured",
            "reference": f"memory from {memory.where[:200]}; the rest assumed",
        }
    else:
        usual = (
            fact_text(FactKind.HOST_MEMORY, base.host.memory_bytes)
            if base.host.memory_bytes
            else "unlimited"
        )
        assumed.append(
            Assumption(FactKind.HOST_MEMORY, usual, _catalog_reason(base, base.host.origin))
        )
    if slot is not None and not is_beside_host(base) and slot.value != base.host.pcie.bandwidth:
        record["pcie"] = {
            "bandwidth_gigabytes_per_s": float(str(slot.value)) / GIGA,
            "origin": _origin_record(base.host.pcie.origin, slot),
        }
    elif slot is None or is_beside_host(base):
        what = "link to the host" if is_beside_host(base) else FactKind.PCIE
        assumed.append(
            Assumption(
                what,
                fact_text(FactKind.PCIE, base.host.pcie.bandwidth),
                _catalog_reason(base, base.host.pcie.origin),
            )
        )
    return ({"host": record} if record else {}), assumed
