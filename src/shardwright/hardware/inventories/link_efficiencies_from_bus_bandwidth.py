"""Link efficiencies of a node from measured bus bandwidths of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.inventories.merge_inventories import contradiction_error
from shardwright.hardware.inventories.node_facts import Assumption, BusRate, FactKind, FoundFact
from shardwright.hardware.link_and_network_tier import Link
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import GIGA

_RING: Final = ("all_gather", "reduce_scatter")
"""Collectives whose bus bandwidth equals the bandwidth of a device's link; all_reduce too, where no
switch reduces.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEfficiencies:
    """Changes of a cluster file's entry by measured bandwidths, with their sources."""

    record: dict[str, Any]
    found: tuple[FoundFact, ...]
    assumed: tuple[Assumption, ...]


def measured_efficiencies(kind: NodeKind, rates: Sequence[BusRate]) -> MeasuredEfficiencies:
    """Efficiencies by bus rate: scale-up link from the largest group in an island, cards beyond.

    Each is that of the largest group that was measured inside an island, and beyond one.

    Raises:
        ClusterError: a rate is above the link's peak.
    """
    useful = [
        one
        for one in rates
        if one.collective in _RING
        or (one.collective == "all_reduce" and not kind.in_network_reduction)
    ]
    inside = [one for one in useful if one.num_devices <= kind.island]
    beyond = [one for one in useful if one.num_devices > max(kind.island, kind.num_devices)]
    record: dict[str, Any] = {}
    found: list[FoundFact] = []
    for key, link, some in (
        ("scale_up", kind.scale_up, inside),
        ("nic", kind.network_per_device, beyond),
    ):
        if some:
            best = max(some, key=lambda one: (one.num_devices, one.rate))
            fact = FoundFact(
                FactKind.BUS_RATE,
                best.rate,
                f"{best.where}, {best.collective} over {best.num_devices} devices",
            )
            record[key] = _efficiency_record(kind, key, link, fact)
            found.append(fact)
    unused = tuple(
        Assumption(
            FactKind.BUS_RATE,
            "not used",
            f"{one.where}: {one.collective} over {one.num_devices} devices is not what one link"
            " carries",
        )
        for one in rates
        if one not in inside and one not in beyond
    )
    return MeasuredEfficiencies(record=record, found=tuple(found), assumed=unused)


def _efficiency_record(kind: NodeKind, key: str, link: Link, fact: FoundFact) -> dict[str, Any]:
    """Efficiency and origin keys for a bus bandwidth; ClusterError if it is above the peak."""
    peak = min(link.bandwidth, link.reverse_bandwidth or link.bandwidth)
    share = round(float(str(fact.value)) / peak, 4)
    if not 0.0 < share <= 1.0:
        raise contradiction_error(
            replace(fact, value=peak, where=f"the peak of {key} of {kind.name}"), fact
        )
    origin = {
        "evidence": "measured",
        "reference": f"{fact.words} in {fact.where[:200]}, of {peak / GIGA:.4g} GB/s",
    }
    return {"efficiency": share, "origin": origin}
