"""Islands and tiers of a cluster file from a node's PCIe topology, with the rate of each path.

- PIX, PXB: carried by a PCIe switch; rate: 0.62 of a device's slot: L40S, 2 devices, 20 of 32 GB/s
  (NCCL table of aiconfigurator-core 0.12.0).
- PHB, NODE: carried by a processor's root ports; rate: 0.3 of a slot for all devices below a port,
  as the catalog assumes of PCIe nodes.
- SYS: carried by the link between processors; rate: measured over the whole node where the catalog
  has that, else NCCL's own figure by processor.

Source of NCCL's figures, GB/s one way: NVIDIA/nccl, src/graph/topo.h (BDW_QPI_BW, SKL_QPI_BW,
SRP_QPI_BW, ERP_QPI_BW, AMD_BW, ARM_BW and P9_BW) and the processors that topo.cc takes them for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.catalog.default_nodes import PCIE_GB_PER_S, is_over_pcie, pcie_scale_up
from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.inventories.node_facts import Assumption, FactKind, FoundFact, PciePaths
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import GIGA

PEER_EFFICIENCY: Final = 0.625
PEER_REFERENCE: Final = (
    "peer to peer below a PCIe switch: L40S, 2 devices, 20 of 32 GB/s (NCCL table of"
    " aiconfigurator-core 0.12.0)"
)
LATENCY_US: Final = 1.9
"""Microseconds of a message between devices over PCIe, as RTX PRO 6000 measures over 8 devices (the
catalog's PCIe nodes).
"""
_TOPO: Final = "NVIDIA/nccl, src/graph/topo.h"
_SLOWEST: Final = {3: 6.0, 4: 10.0, 5: 16.0, 6: 16.0}
"""GB/s between the processors of the slowest kind that a generation of PCIe came with: Broadwell,
Skylake and Ice Lake, AMD EPYC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRecord:
    """Keys of a node in a cluster file, and the assumptions behind them."""

    record: dict[str, Any]
    assumed: tuple[Assumption, ...] = ()


@dataclass(frozen=True, slots=True)
class _Level:
    """Devices below one unit of a path (switch, processor or sockets)."""

    name: str
    devices: int


def path_record(
    facts: Mapping[FactKind, FoundFact], *, base: NodeKind, devices: int, island: int
) -> PathRecord:
    """Keys of islands and tiers where PCIe paths differ; NVLinks join `island` devices (1 = none).

    Empty where all devices reach each other in the same way.

    Args:
        island: devices that NVLinks or XGMI join; 1 = none do, 0 = not found.
    """
    paths = facts.get(FactKind.PATHS)
    if paths is None or not isinstance(paths.value, PciePaths) or not 0 < island < devices:
        return PathRecord(record={})
    levels, assumed = _path_levels(paths.value, devices, island)
    if island == 1 and len(levels) == 1 and levels[0].name != "switch":
        return PathRecord(record={}, assumed=assumed)
    slot = _slot_rate(facts, base)
    record: dict[str, Any] = {}
    if island == 1:
        inner = levels.pop(0)
        record = {
            "island_devices": inner.devices,
            "scale_up": _island_link(inner, slot, paths),
            "in_network_reduction": False,
        }
    if not levels:
        return PathRecord(record=record, assumed=assumed)
    tiers = [_tier_record(level, facts, base, slot, paths) for level in levels]
    said = "which processor a card hangs from is not part of a cluster file"
    capped = Assumption("groups across processors and nodes", "the slower of card and path", said)
    rates = ", ".join(
        f"{tier['name']} {tier['bandwidth_gigabytes_per_s'] * tier['efficiency']:.3g} GB/s"
        for tier in tiers
    )
    why = f"{tiers[-1]['origin']['reference'][:300]}; of all devices of a unit below together"
    return PathRecord(
        record=record | {"node_tiers": tiers},
        assumed=(*assumed, Assumption("paths inside a node", rates, why), capped),
    )


def _path_levels(
    paths: PciePaths, devices: int, island: int
) -> tuple[list[_Level], tuple[Assumption, ...]]:
    """(levels of PCIe paths: switch, processor, sockets, fastest first; assumptions).

    Unequal units are taken as joined by the next, slower path.
    """
    levels: list[_Level] = []
    assumed: list[Assumption] = []
    below = island
    for name, sizes in (("switch", paths.switches), ("processor", paths.processors)):
        if len(set(sizes)) > 1 or sizes[0] % below:
            words = ", ".join(map(str, sizes[:8]))
            why = (
                f"units of {words} devices are not equal, as those of a cluster file are: all take"
                " the slower path"
            )
            assumed.append(Assumption(f"devices of a {name}", "not told apart", why))
        elif sizes[0] > below:
            levels.append(_Level(name, sizes[0]))
            below = sizes[0]
    if below < devices:
        levels.append(_Level("sockets", devices))
    return levels, tuple(assumed)


def _slot_rate(facts: Mapping[FactKind, FoundFact], base: NodeKind) -> float:
    """Bytes/s one way of a device's PCIe slot: the found fact, else the catalog node's rate."""
    found = facts.get(FactKind.PCIE)
    if found is not None:
        return float(str(found.value))
    return base.scale_up.bandwidth if is_over_pcie(base) else base.host.pcie.bandwidth


def _island_link(level: _Level, slot: float, paths: FoundFact) -> dict[str, Any]:
    """Link keys of a device in an island: its slot's rate, at peer efficiency below a switch."""
    if level.name == "switch":
        return _link_record(
            slot, PEER_EFFICIENCY, LATENCY_US, f"{PEER_REFERENCE}; switches in {paths.where[:200]}"
        )
    link = pcie_scale_up(gb_per_s=slot / GIGA)
    return _link_record(
        slot,
        link.efficiency,
        link.latency_s * 1e6,
        f"{link.origin.reference.removeprefix('assumed: ')}; {paths.where[:200]}",
    )


def _tier_record(
    level: _Level,
    facts: Mapping[FactKind, FoundFact],
    base: NodeKind,
    slot: float,
    paths: FoundFact,
) -> dict[str, Any]:
    """Tier record of a path level: the link that all devices of a unit below it share."""
    if level.name == "switch":
        link = _link_record(slot, PEER_EFFICIENCY, LATENCY_US, PEER_REFERENCE)
    elif level.name == "processor":
        up = pcie_scale_up(gb_per_s=slot / GIGA)
        link = _link_record(
            slot,
            up.efficiency,
            LATENCY_US,
            f"one slot of {slot / GIGA:.4g} GB/s into the processor; {up.origin.reference}",
        )
    elif is_over_pcie(base) and base.scale_up.origin.evidence is Evidence.MEASURED:
        reference = f"as measured over all devices of the node: {base.scale_up.origin.reference}"
        link = _link_record(base.scale_up.achieved, 1.0, LATENCY_US, reference)
    else:
        rate, why = _processor_link_rate(facts, slot)
        link = _link_record(rate * GIGA, 1.0, LATENCY_US, why)
    link["origin"]["reference"] += f"; paths in {paths.where[:200]}"
    return {"name": level.name, "devices": level.devices, **link}


def _processor_link_rate(facts: Mapping[FactKind, FoundFact], slot: float) -> tuple[float, str]:
    """(GB/s between processors one way, source) by model in NCCL's table; unknown: the slowest."""
    found = facts.get(FactKind.PROCESSOR)
    arch, vendor, family, model = (*(str(found.value).split() if found else ()), "", "", "", "")[:4]
    number = int(model) if model.isdigit() and len(model) <= 4 else -1
    if vendor == "AuthenticAMD":
        return 16.0, f"{_TOPO}: AMD_BW"
    if vendor == "GenuineIntel" and family == "6" and number >= 0:
        # Emerald Rapids, Sapphire Rapids, Skylake and later, Broadwell and earlier, in the order of
        # topo.cc.
        if number >= 0xCF:
            return 40.0, f"{_TOPO}: ERP_QPI_BW"
        if number >= 0x8F:
            return 22.0, f"{_TOPO}: SRP_QPI_BW"
        return (10.0, f"{_TOPO}: SKL_QPI_BW") if number >= 0x55 else (6.0, f"{_TOPO}: BDW_QPI_BW")
    if arch in ("arm64", "ppc64"):
        return (6.0, f"{_TOPO}: ARM_BW") if arch == "arm64" else (32.0, f"{_TOPO}: P9_BW")
    generation = max(
        (gen for gen, rate in PCIE_GB_PER_S.items() if rate * GIGA <= slot),
        default=min(PCIE_GB_PER_S),
    )
    return (
        _SLOWEST[generation],
        (
            f"{_TOPO}: the slowest of the processors with PCIe {generation}, as no file says which"
            " they are"
        ),
    )


def _link_record(
    rate: float, efficiency: float, latency_us: float, reference: str
) -> dict[str, Any]:
    """Link as keys of a cluster file: `rate` bytes/s, efficiency, latency and assumed origin."""
    return {
        "bandwidth_gigabytes_per_s": rate / GIGA,
        "efficiency": efficiency,
        "latency_us": round(latency_us, 6),
        "origin": {"evidence": "assumed", "reference": reference[:1500]},
    }
