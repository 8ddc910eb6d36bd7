"""Measured bus bandwidths as the efficiencies of a node's links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.inventories.merge_inventories import contradiction
from shardwright.hardware.inventories.node_facts import Assumed, BusRate, Found, What
from shardwright.hardware.link import Link
from shardwright.lazy_dataclass import dataclass
from shardwright.units import GIGA

_RING: Final = ("all_gather", "reduce_scatter")
"""Collectives whose bus bandwidth is what a device's link carries; all_reduce too, where no switch
reduces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """The changes of an entry of a cluster file by measured rates, and their source."""

    record: dict[str, Any]
    found: tuple[Found, ...]
    assumed: tuple[Assumed, ...]


def rated(kind: NodeKind, rates: Sequence[BusRate]) -> Rated:
    """Efficiencies of the scale-up link and of the cards, each from the largest group that was
    measured inside, and beyond, an island.

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
    found: list[Found] = []
    for key, link, some in (
        ("scale_up", kind.scale_up, inside),
        ("nic", kind.network_per_device, beyond),
    ):
        if some:
            best = max(some, key=lambda one: (one.num_devices, one.rate))
            fact = Found(
                What.BUS_RATE,
                best.rate,
                f"{best.where}, {best.collective} over {best.num_devices} devices",
            )
            record[key] = _efficiency(kind, key, link, fact)
            found.append(fact)
    unused = tuple(
        Assumed(
            What.BUS_RATE,
            "not used",
            f"{one.where}: {one.collective} over {one.num_devices} devices is not what one link"
            " carries",
        )
        for one in rates
        if one not in inside and one not in beyond
    )
    return Rated(record=record, found=tuple(found), assumed=unused)


def _efficiency(kind: NodeKind, key: str, link: Link, fact: Found) -> dict[str, Any]:
    """The share of a link's peak that a bus bandwidth is."""
    peak = min(link.bandwidth, link.reverse_bandwidth or link.bandwidth)
    share = round(float(str(fact.value)) / peak, 4)
    if not 0.0 < share <= 1.0:
        raise contradiction(
            replace(fact, value=peak, where=f"the peak of {key} of {kind.name}"), fact
        )
    origin = {
        "evidence": "measured",
        "reference": f"{fact.words} in {fact.where[:200]}, of {peak / GIGA:.4g} GB/s",
    }
    return {"efficiency": share, "origin": origin}
