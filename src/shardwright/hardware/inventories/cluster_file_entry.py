"""Nodes of one kind as an entry of a cluster file: what was found is written, what was not stays as
the catalog's usual node has it.
"""

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
from shardwright.hardware.inventories.accelerator_names import links_found, nvlink_of
from shardwright.hardware.inventories.matching_node import choose, links_of
from shardwright.hardware.inventories.merge_inventories import NodeSet
from shardwright.hardware.inventories.node_facts import Assumed, Found, Links, Paths, What, in_words
from shardwright.hardware.inventories.pcie_islands import path_record
from shardwright.hardware.link import Link
from shardwright.lazy_dataclass import dataclass
from shardwright.units import BITS_PER_BYTE, GIB, GIGA


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Nodes of one kind.

    Args:
        record: the entry of a cluster file, without its count.
        devices, island: of a node, and of a scale-up domain.
        found, assumed: where the entry is from.
        places: of the nodes among all.
    """

    record: Mapping[str, Any]
    base: NodeKind
    devices: int
    island: int
    found: tuple[Found, ...]
    assumed: tuple[Assumed, ...]
    places: tuple[int, ...]


def described(nodes: NodeSet, *, given: Mapping[str, str]) -> Described:
    """Nodes of one kind as an entry of a cluster file.

    Args:
        given: accelerators or instances by a product's word, or by "" for nodes whose files do not
            say: see `--accelerator`.

    Raises:
        ClusterError: nobody says what the accelerator is, the catalog has none of its name, or
        facts contradict each other.
    """
    facts = dict(nodes.facts)
    chosen = choose(facts, given=given)
    base, record, assumed = (
        chosen.base,
        dict[str, Any]({chosen.key: chosen.name}),
        list(chosen.assumed),
    )
    if chosen.product is not None:
        facts[What.PRODUCT] = chosen.product
    found = [fact for fact in facts.values() if fact.what is not What.DOMAIN_NODES]
    devices = _number(facts, What.DEVICES) or base.num_devices
    if devices != base.num_devices:
        record["devices_per_node"] = devices
    for part in (
        _scale_up(facts, base, devices),
        _network(facts, nodes.guesses, base, devices),
        _host(facts, base),
    ):
        record |= part[0]
        assumed += part[1]
    island = record.get("island_devices") or (
        devices if base.island == base.num_devices else base.island
    )
    if What.DOMAIN_NODES in facts and record.get("island_devices", 0) > devices:
        found.append(facts[What.DOMAIN_NODES])
    if What.DEVICES not in facts:
        assumed.append(Assumed(What.DEVICES, str(devices), f"as {base.name} in the catalog"))
    return Described(
        record=record,
        base=base,
        devices=devices,
        island=island,
        found=tuple(found),
        assumed=tuple(assumed),
        places=nodes.places,
    )


def _number(facts: Mapping[What, Found], what: What) -> int:
    """A fact that is a whole number; 0 = not found."""
    fact = facts.get(what)
    return fact.value if fact is not None and isinstance(fact.value, int) else 0


Part = tuple[dict[str, Any], list[Assumed]]


def _scale_up(facts: Mapping[What, Found], base: NodeKind, devices: int) -> Part:
    """Islands, and the link of a device in them."""
    sizes, links, nodes = (
        facts.get(What.ISLANDS),
        links_found(facts),
        _number(facts, What.DOMAIN_NODES),
    )
    of_racks = base.island > base.num_devices
    island = _island(sizes, devices)
    record: dict[str, Any] = {}
    assumed: list[Assumed] = []
    if of_racks and nodes and island != 1:
        record["island_devices"] = devices * nodes
    elif of_racks and island == devices:
        assumed.append(
            Assumed(
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
            Assumed(
                "scale-up domain",
                "of one node",
                f"a domain of {nodes} nodes is taken as a place in the network: {words}",
            )
        )
    paths = path_record(facts, base=base, devices=devices, island=island)
    assumed += paths.assumed
    if links is not None and isinstance(links.value, Links) and island > 1:
        return record | _nvlink(links, base) | paths.record, assumed
    if paths.record:
        return record | paths.record, assumed
    if island == 1 and devices > 1 and not is_over_pcie(base):
        slot = facts.get(What.PCIE)
        link = pcie_scale_up(
            gb_per_s=(float(str(slot.value)) if slot else base.host.pcie.bandwidth) / GIGA
        )
        record |= {"scale_up": _link(link, sizes), "in_network_reduction": False}
    elif sizes is None or (island == 1 and devices > 1):
        assumed.append(
            Assumed(
                "scale-up link",
                f"{base.scale_up.bandwidth / GIGA:.4g} GB/s",
                _as(base, base.scale_up.origin),
            )
        )
        if sizes is None and "island_devices" not in record:
            size = devices if base.island == base.num_devices else base.island
            assumed.append(
                Assumed("scale-up islands", f"of {size} devices", f"as {base.name} in the catalog")
            )
    return record, assumed


def _island(sizes: Found | None, devices: int) -> int:
    """Devices of each island of a node; 0 = not found."""
    if sizes is None or not isinstance(sizes.value, tuple) or isinstance(sizes.value, Paths):
        return 0
    found = tuple(int(size) for size in sizes.value)
    if len(set(found)) > 1:
        words = ", ".join(map(str, found[:8]))
        raise ClusterError(
            f"{sizes.where}: scale-up islands of {words} devices in a node",
            hint="islands of a node have one size: is a link down?",
        )
    return found[0] if sum(found) == devices else 0


def _nvlink(links: Found, base: NodeKind) -> dict[str, Any]:
    """A device's NVLinks, where they are not the catalog's; a mesh without a switch does not
    reduce.
    """
    assert isinstance(links.value, Links)
    most = nvlink_of(base.accelerator)
    if most is None:
        return {}
    count = links_of(base.accelerator, links.value)
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
            "scale_up": _link(nvlink_bridge(gb_per_s=rate / GIGA, latency_s=1.7e-6), links)
        }
    return mesh | {"scale_up": _link(replace(base.scale_up, bandwidth=rate), links)}


def _link(link: Link, fact: Found | None) -> dict[str, Any]:
    """A link in full: its bandwidth from a fact, its efficiency and latency from elsewhere."""
    return {
        "bandwidth_gigabytes_per_s": link.bandwidth / GIGA,
        "efficiency": link.efficiency,
        "latency_us": round(link.latency_s * 1e6, 6),
        "origin": _origin(link.origin, fact),
    }


def _as(base: NodeKind, origin: Origin | None) -> str:
    """Why a number of the catalog was taken."""
    return f"as {base.name} in the catalog" + (
        f": {origin.reference.removeprefix('assumed: ')}" if origin is not None else ""
    )


def _origin(origin: Origin, fact: Found | None) -> dict[str, str]:
    where = (
        f"bandwidth from {fact.where[:200]}; efficiency and latency: " if fact is not None else ""
    )
    return {
        "evidence": "assumed",
        "reference": f"{where}{origin.reference.removeprefix('assumed: ')[:1000]}",
    }


def _network(
    facts: Mapping[What, Found],
    guesses: tuple[tuple[What, int, str], ...],
    base: NodeKind,
    devices: int,
) -> Part:
    """Cards, and the rate of one: where the cards are found and their rate is not, no more than the
    usual node has in all.
    """
    record: dict[str, Any] = {}
    assumed: list[Assumed] = []
    count, rate = _number(facts, What.NICS), facts.get(What.NIC_RATE)
    guess = next(((number, why) for what, number, why in guesses if what is What.NICS), None)
    usual = max(1, -(-base.nics * devices // base.num_devices))
    if not count and guess is not None:
        count = guess[0]
        assumed.append(Assumed(What.NICS, str(count), guess[1]))
    if not count:
        assumed.append(Assumed(What.NICS, str(usual), f"as {base.name} in the catalog"))
    elif count != usual:
        record["nics"] = count
    bandwidth = base.nic.bandwidth
    if rate is not None:
        bandwidth = float(str(rate.value))
    else:
        bandwidth = min(bandwidth, bandwidth * usual / count) if count else bandwidth
        share = "; no more in all than a node of it has" if bandwidth != base.nic.bandwidth else ""
        assumed.append(
            Assumed(
                What.NIC_RATE,
                in_words(What.NIC_RATE, bandwidth),
                _as(base, base.nic.origin) + share,
            )
        )
    if bandwidth != base.nic.bandwidth:
        record["nic"] = {
            "bandwidth_gbps": round(bandwidth * BITS_PER_BYTE / GIGA, 6),
            "origin": _origin(base.nic.origin, rate),
        }
    return record, assumed


def _host(facts: Mapping[What, Found], base: NodeKind) -> Part:
    """The host's memory, and the slots of devices."""
    record: dict[str, Any] = {}
    assumed: list[Assumed] = []
    memory, slot = facts.get(What.HOST_MEMORY), facts.get(What.PCIE)
    if memory is not None:
        record["memory_gib"] = round(float(str(memory.value)) / GIB, 3)
        record["origin"] = {
            "evidence": "measured",
            "reference": f"memory from {memory.where[:200]}; the rest assumed",
        }
    else:
        usual = (
            in_words(What.HOST_MEMORY, base.host.memory_bytes)
            if base.host.memory_bytes
            else "unlimited"
        )
        assumed.append(Assumed(What.HOST_MEMORY, usual, _as(base, base.host.origin)))
    if slot is not None and not is_beside_host(base) and slot.value != base.host.pcie.bandwidth:
        record["pcie"] = {
            "bandwidth_gigabytes_per_s": float(str(slot.value)) / GIGA,
            "origin": _origin(base.host.pcie.origin, slot),
        }
    elif slot is None or is_beside_host(base):
        what = "link to the host" if is_beside_host(base) else What.PCIE
        assumed.append(
            Assumed(
                what,
                in_words(What.PCIE, base.host.pcie.bandwidth),
                _as(base, base.host.pcie.origin),
            )
        )
    return ({"host": record} if record else {}), assumed
