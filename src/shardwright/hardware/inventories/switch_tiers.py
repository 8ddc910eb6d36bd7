"""Switch tiers of a cluster file from the switches above nodes, and the matching node order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from math import lcm
from typing import Any, Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.node_facts import Assumption, FactKind, FoundFact, SeenNode
from shardwright.lazily_compiled_dataclass import dataclass

MAX_TIERS: Final = 15
_NAMES: Final = ("leaf", "spine", "core")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """Position of a node: devices, kind, zone, scale-up domain, and the switches above it."""

    devices: int
    kind: int
    zone: str
    domain: str
    above: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricTierRecords:
    """Switch tiers as entries of a cluster file, from the nodes upward, and their sources."""

    records: tuple[dict[str, Any], ...] = ()
    found: tuple[FoundFact, ...] = ()
    assumed: tuple[Assumption, ...] = ()


def switch_paths(nodes: Sequence[SeenNode]) -> list[tuple[str, ...]]:
    """Switch names above each node, nearest first; shorter paths repeat the nearest switch.

    Where a node has fewer switches, its nearest stands for the missing ones.

    Raises:
        ClusterError: some nodes have none and others do, or there are more than 15 tiers.
    """
    depth = max((len(node.above) for node in nodes), default=0)
    alone, placed = (
        next((node for node in nodes if bool(node.above) is has), None) for has in (False, True)
    )
    if alone is not None and placed is not None:
        raise ClusterError(
            f"no switch is above node {alone.name[:60]!r} ({alone.where}), and"
            f" {placed.above[0][:60]!r} is above {placed.name[:60]!r}",
            hint="all nodes, or none",
        )
    if depth > MAX_TIERS:
        raise ClusterError(f"{depth} tiers of switches", hint=f"at most {MAX_TIERS}")
    return [node.above[:1] * (depth - len(node.above)) + node.above for node in nodes]


def network_order(nodes: Sequence[PlacedNode]) -> list[int]:
    """Positions in `nodes` so ordered that each zone, switch, domain and kind is together.

    The larger unit comes first: a domain of a rack below a leaf of ten racks is sorted inside the
    leaf, and a leaf inside a domain that spans several. Units stand in the order of the files.
    """
    depth = max((len(node.above) for node in nodes), default=0)
    tiers = [[node.above[tier:] for node in nodes] for tier in range(depth)]
    domains: list[Sequence[Hashable]] = (
        [[node.domain for node in nodes]] if any(node.domain for node in nodes) else []
    )
    levels: list[Sequence[Hashable]] = sorted(
        [*tiers[::-1], *domains], key=lambda level: len(set(level))
    )
    keys = [[node.zone for node in nodes], *levels, [node.kind for node in nodes]]
    ranks = [_first_seen_numbers(key) for key in keys]
    return sorted(range(len(nodes)), key=lambda place: tuple(rank[place] for rank in ranks))


def _first_seen_numbers(values: Sequence[Hashable]) -> list[int]:
    """Number of each value in the order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def fabric_tiers(
    nodes: Sequence[PlacedNode], *, islands: frozenset[int], is_blocks: bool, where: str
) -> FabricTierRecords:
    """Switch tiers above the nodes as cluster file entries; each has its most frequent unit size.

    Args:
        islands: devices of the scale-up domains; a switch that joins no more than the smallest is
            no tier.
        is_blocks: units are Slurm's blocks.
        where: place of the switches in the files.
    """
    depth = len(nodes[0].above)
    zones = len({node.zone for node in nodes})
    step = lcm(
        *{node.devices for node in nodes},
        *(islands if len(islands) == 1 and max(islands) < sum(n.devices for n in nodes) else ()),
    )
    records: list[dict[str, Any]] = []
    found: list[FoundFact] = []
    assumed: list[Assumption] = []
    below, joined = min(islands), False
    for tier in range(depth):
        name = "block" if is_blocks else _NAMES[tier] if tier < len(_NAMES) else f"tier-{tier + 1}"
        sizes: dict[Hashable, int] = defaultdict(int)
        for node in nodes:
            sizes[node.zone, node.above[tier:]] += node.devices
        joined = len(sizes) == zones
        size = _common_unit_size(tuple(sizes.values()), step)
        if size <= below and not joined:
            continue
        words = (
            f"{name}: {len(sizes)} of {size} devices"
            if not joined or zones > 1
            else f"{name}: over all {size} devices"
        )
        found.append(FoundFact(FactKind.TIER, words, where))
        if len(set(sizes.values())) > 1 and not joined:
            low, high = min(sizes.values()), max(sizes.values())
            assumed.append(
                Assumption(
                    name,
                    f"{size} devices",
                    f"its units have from {low} to {high}; most have about so many",
                )
            )
        records.append({"name": name} if joined else {"name": name, "devices": size})
        below = size
        if joined:
            break
    if records and not joined:
        name = _NAMES[min(depth, len(_NAMES) - 1)] if not is_blocks else "network"
        name = name if name not in {record["name"] for record in records} else "network"
        records.append({"name": name})
        assumed.append(Assumption(name, "joins all", "no switch that joins all is listed"))
    if records:
        assumed.append(
            Assumption(
                "oversubscription",
                "none, no rails",
                "lists of switches do not say what links carry",
            )
        )
    return FabricTierRecords(records=tuple(records), found=tuple(found), assumed=tuple(assumed))


def _common_unit_size(sizes: Sequence[int], step: int) -> int:
    """Most frequent unit size (smallest of a tie), rounded up to a multiple of `step`."""
    size, _ = max(Counter(sizes).items(), key=lambda one: (one[1], -one[0]))
    return -(-size // step) * step
