"""The PCIe topology of a node as islands and tiers of a cluster file: one switch, one processor, or
the link between two.

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
from shardwright.hardware.inventories.node_facts import Assumed, Found, Paths, What
from shardwright.lazy_dataclass import dataclass
from shardwright.units import GIGA

PEER_EFFICIENCY: Final = 0.625
PEER_REFERENCE: Final = (
    "peer to peer below a PCIe switch: L40S, 2 devices, 20 of 32 GB/s (NCCL table of"
    " aiconfigurator-core 0.12.0)"
)
LATENCY_US: Final = 1.9
"""Of a message between devices over PCIe, as RTX PRO 6000 measures over 8 devices (the catalog's
PCIe nodes)."""
_TOPO: Final = "NVIDIA/nccl, src/graph/topo.h"
_SLOWEST: Final = {3: 6.0, 4: 10.0, 5: 16.0, 6: 16.0}
"""GB/s between the processors of the slowest kind that a generation of PCIe came with: Broadwell,
Skylake and Ice Lake, AMD EPYC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRecord:
    """Keys of a node in a cluster file, and what of them is assumed."""

    record: dict[str, Any]
    assumed: tuple[Assumed, ...] = ()


@dataclass(frozen=True, slots=True)
class _Level:
    """Devices below one unit of a path, in units of equal size."""

    name: str
    devices: int


def path_record(
    facts: Mapping[What, Found], *, base: NodeKind, devices: int, island: int
) -> PathRecord:
    """Islands, and tiers between them, of a node whose devices not all reach each other in the same
    way; empty where they do.

    Args:
        island: devices that NVLinks or XGMI join; 1 = none do, 0 = not found.
    """
    paths = facts.get(What.PATHS)
    if paths is None or not isinstance(paths.value, Paths) or not 0 < island < devices:
        return PathRecord(record={})
    levels, assumed = _levels(paths.value, devices, island)
    if island == 1 and len(levels) == 1 and levels[0].name != "switch":
        return PathRecord(record={}, assumed=assumed)
    slot = _slot(facts, base)
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
    tiers = [_tier(level, facts, base, slot, paths) for level in levels]
    said = "which processor a card hangs from is not part of a cluster file"
    capped = Assumed("groups across processors and nodes", "the slower of card and path", said)
    rates = ", ".join(
        f"{tier['name']} {tier['bandwidth_gigabytes_per_s'] * tier['efficiency']:.3g} GB/s"
        for tier in tiers
    )
    why = f"{tiers[-1]['origin']['reference'][:300]}; of all devices of a unit below together"
    return PathRecord(
        record=record | {"node_tiers": tiers},
        assumed=(*assumed, Assumed("paths inside a node", rates, why), capped),
    )


def _levels(paths: Paths, devices: int, island: int) -> tuple[list[_Level], tuple[Assumed, ...]]:
    """The paths from the fastest to that which joins all. Units that are not equal are taken as
    joined by the next, slower path.
    """
    levels: list[_Level] = []
    assumed: list[Assumed] = []
    below = island
    for name, sizes in (("switch", paths.switches), ("processor", paths.processors)):
        if len(set(sizes)) > 1 or sizes[0] % below:
            words = ", ".join(map(str, sizes[:8]))
            why = (
                f"units of {words} devices are not equal, as those of a cluster file are: all take"
                " the slower path"
            )
            assumed.append(Assumed(f"devices of a {name}", "not told apart", why))
        elif sizes[0] > below:
            levels.append(_Level(name, sizes[0]))
            below = sizes[0]
    if below < devices:
        levels.append(_Level("sockets", devices))
    return levels, tuple(assumed)


def _slot(facts: Mapping[What, Found], base: NodeKind) -> float:
    """Bytes/s of a device's slot, one way."""
    found = facts.get(What.PCIE)
    if found is not None:
        return float(str(found.value))
    return base.scale_up.bandwidth if is_over_pcie(base) else base.host.pcie.bandwidth


def _island_link(level: _Level, slot: float, paths: Found) -> dict[str, Any]:
    """The link of a device to the others below its switch, or of its processor."""
    if level.name == "switch":
        return _link(
            slot, PEER_EFFICIENCY, LATENCY_US, f"{PEER_REFERENCE}; switches in {paths.where[:200]}"
        )
    link = pcie_scale_up(gb_per_s=slot / GIGA)
    return _link(
        slot,
        link.efficiency,
        link.latency_s * 1e6,
        f"{link.origin.reference.removeprefix('assumed: ')}; {paths.where[:200]}",
    )


def _tier(
    level: _Level, facts: Mapping[What, Found], base: NodeKind, slot: float, paths: Found
) -> dict[str, Any]:
    """The tier that all devices of a unit below share."""
    if level.name == "switch":
        link = _link(slot, PEER_EFFICIENCY, LATENCY_US, PEER_REFERENCE)
    elif level.name == "processor":
        up = pcie_scale_up(gb_per_s=slot / GIGA)
        link = _link(
            slot,
            up.efficiency,
            LATENCY_US,
            f"one slot of {slot / GIGA:.4g} GB/s into the processor; {up.origin.reference}",
        )
    elif is_over_pcie(base) and base.scale_up.origin.evidence is Evidence.MEASURED:
        reference = f"as measured over all devices of the node: {base.scale_up.origin.reference}"
        link = _link(base.scale_up.achieved, 1.0, LATENCY_US, reference)
    else:
        rate, why = _between_processors(facts, slot)
        link = _link(rate * GIGA, 1.0, LATENCY_US, why)
    link["origin"]["reference"] += f"; paths in {paths.where[:200]}"
    return {"name": level.name, "devices": level.devices, **link}


def _between_processors(facts: Mapping[What, Found], slot: float) -> tuple[float, str]:
    """GB/s between two processors one way, and why."""
    found = facts.get(What.PROCESSOR)
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


def _link(rate: float, efficiency: float, latency_us: float, reference: str) -> dict[str, Any]:
    return {
        "bandwidth_gigabytes_per_s": rate / GIGA,
        "efficiency": efficiency,
        "latency_us": round(latency_us, 6),
        "origin": {"evidence": "assumed", "reference": reference[:1500]},
    }
