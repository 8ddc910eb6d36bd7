"""Cluster file from inventories: merged facts, catalog defaults, and a comment for each number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

import yaml

from shardwright.errors import ClusterError
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.files.read_cluster_file import cluster_from_yaml
from shardwright.hardware.inventories.catalog_node_match import may_have_accelerator
from shardwright.hardware.inventories.cluster_file_node_kind_entry import NodeEntry, node_entry
from shardwright.hardware.inventories.link_efficiencies_from_bus_bandwidth import (
    measured_efficiencies,
)
from shardwright.hardware.inventories.merge_inventories import (
    NodeSet,
    contradiction_error,
    named_nodes,
    node_sets,
)
from shardwright.hardware.inventories.node_facts import (
    Assumption,
    BusRate,
    FactKind,
    FoundFact,
    Inventory,
    SeenNode,
)
from shardwright.hardware.inventories.outputs.select_schedulable_nodes import schedulable_nodes
from shardwright.hardware.inventories.switch_tiers import (
    FabricTierRecords,
    PlacedNode,
    fabric_tiers,
    network_order,
    switch_paths,
)
from shardwright.hardware.zone_link_record_and_price_checks import ZoneLink
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.units import BITS_PER_BYTE, GIGA, MILLI

MAX_GROUPS: Final = 1024
MAX_COUNT: Final = 131_072
MAX_REMARKS: Final = 200
_SAMPLE: Final = SeenNode(name="", where="", facts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRead:
    """Nodes of one kind: name, count, found facts and assumptions."""

    name: str
    count: int
    found: tuple[FoundFact, ...]
    assumed: tuple[Assumption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRead:
    """A cluster that was read from inventories.

    Args:
        text: the cluster file.
        cluster: the cluster that the file describes.
        kinds: kinds of nodes.
        found, assumed: facts and assumptions on all nodes and the network.
    """

    text: str
    cluster: Cluster
    kinds: tuple[KindRead, ...]
    found: tuple[FoundFact, ...]
    assumed: tuple[Assumption, ...]


def cluster_from_inventories(
    inventories: Sequence[Inventory],
    *,
    given: Mapping[str, str],
    count: int = 0,
    links: Sequence[ZoneLink] = (),
    all_nodes: bool = False,
) -> ClusterRead:
    """Build the cluster, and its cluster file, that several inventories describe together.

    Args:
        given: accelerators or instances by a product's word, or by "" for nodes whose files do not
            state one.
        count: number of nodes, where no file lists them; 0 = one.
        links: links between zones.
        all_nodes: count nodes too on which no job can be placed (down, drained, cordoned, not
            ready).

    Raises:
        ClusterError: the files contradict each other or lack a fact; the message names the fact and
            its place.
    """
    nodes, samples = (
        named_nodes(inventories),
        tuple(sample for one in inventories for sample in one.samples),
    )
    found = [note for one in inventories for note in one.notes]
    assumed: list[Assumption] = []
    if nodes:
        listed = len(nodes)
        nodes, remarks = schedulable_nodes(nodes, all_nodes=all_nodes)
        place = f"{nodes[0].where} and on"
        found += [FoundFact(FactKind.NODES, len(nodes), place), *remarks]
        for one in inventories:
            unlisted = sum(len(switch.nodes) for switch in one.switches) - listed
            if unlisted > 0:
                found.append(
                    FoundFact(
                        FactKind.NODES,
                        f"{unlisted} that no list of nodes with GPUs has, left out",
                        one.file,
                    )
                )
        if count and count != len(nodes):
            raise contradiction_error(
                FoundFact(FactKind.NODES, len(nodes), place),
                FoundFact(FactKind.NODES, count, "--nodes"),
                hint="leave --nodes out",
            )
    else:
        nodes, remark = _unlisted_nodes(samples, count)
        found += [remark] if isinstance(remark, FoundFact) else []
        assumed += [remark] if isinstance(remark, Assumption) else []
    kinds = _node_entries(node_sets(nodes, samples), given)
    placed = _placed_nodes(nodes, kinds)
    order = network_order(placed)
    tiers = _fabric_tiers(inventories, [placed[place] for place in order], kinds)
    records = _node_records([placed[place] for place in order], kinds)
    if len(records) > MAX_GROUPS:
        raise ClusterError(
            f"{len(records)} runs of nodes of different kinds",
            hint=f"at most {MAX_GROUPS}: leave some nodes out",
        )
    document: dict[str, Any] = {"name": _cluster_name(inventories), "nodes": records}
    if tiers.records:
        document |= {
            "fabric": list(tiers.records),
            "fabric_origin": {"evidence": "published", "reference": tiers.found[0].where[:200]},
        }
    else:
        assumed.append(Assumption("switches", "one without blocking", "no file lists switches"))
    zones = tuple(dict.fromkeys(record["zone"] for record in records if "zone" in record))
    if len(zones) > 1 and not links:
        hint = f"--link {zones[0]}~{zones[1]}=25gbps/1ms, for each two"
        raise ClusterError(
            f"nodes are in zones {', '.join(zones[:4])[:200]}, and no file says what joins these",
            hint=hint,
        )
    if links:
        document["links"] = [_zone_link_record(link) for link in links]
    kinds = _with_measured_rates(
        document, kinds, [rate for one in inventories for rate in one.rates]
    )
    reads = tuple(_node_kind_report(kind) for kind in kinds)
    text = _cluster_file_text(
        document, inventories, reads, (*found, *tiers.found), (*assumed, *tiers.assumed)
    )
    return ClusterRead(
        text=text,
        cluster=cluster_from_yaml(text),
        kinds=reads,
        found=(*found, *tiers.found),
        assumed=(*assumed, *tiers.assumed),
    )


def _unlisted_nodes(
    samples: Sequence[SeenNode], count: int
) -> tuple[tuple[SeenNode, ...], FoundFact | Assumption]:
    """(placeholder nodes: `count`, else a dump's number, else one; remark on the number).

    The number is the user's, that of a dump, or one.
    """
    if count > MAX_COUNT:
        raise ClusterError(f"--nodes {count}", hint=f"at most {MAX_COUNT}")
    if not samples:
        raise ClusterError(
            "no file says what a node is",
            hint="nvidia-smi topo -m of one, scontrol show nodes, or kubectl get nodes -o json",
        )
    guess = next(
        (
            (number, why)
            for sample in samples
            for what, number, why in sample.guesses
            if what is FactKind.NODES
        ),
        (1, "no file lists them"),
    )
    number = count or guess[0]
    remark = (
        FoundFact(FactKind.NODES, number, "--nodes")
        if count
        else Assumption(FactKind.NODES, str(number), f"{guess[1]}; --nodes N says how many")
    )
    return (_SAMPLE,) * number, remark


def _node_entries(sets: Sequence[NodeSet], given: Mapping[str, str]) -> list[NodeEntry]:
    """Cluster file entry of each kind of nodes, with the accelerators that the user names.

    The name under "" in `given` is for the kinds that leave their accelerator open, where there are
    such.
    """
    named = {word: name for word, name in given.items() if word}
    takers = [one for one in sets if "" in given and may_have_accelerator(given[""], one.facts)]
    return [node_entry(one, given=given if one in takers or not takers else named) for one in sets]


def _placed_nodes(nodes: Sequence[SeenNode], kinds: Sequence[NodeEntry]) -> list[PlacedNode]:
    """Kind number, zone, scale-up domain and switches above of each node, in order."""
    kind_of = {place: number for number, kind in enumerate(kinds) for place in kind.places}
    zones = {str(fact.value) for node in nodes if (fact := node.fact(FactKind.ZONE)) is not None}
    found = []
    for place, (node, above) in enumerate(zip(nodes, switch_paths(nodes), strict=True)):
        zone, domain, kind = (
            node.fact(FactKind.ZONE),
            node.fact(FactKind.DOMAIN),
            kinds[kind_of[place]],
        )
        spans = domain is not None and kind.island > kind.devices
        found.append(
            PlacedNode(
                devices=kind.devices,
                kind=kind_of[place],
                zone=str(zone.value) if zone is not None and len(zones) > 1 else "",
                domain=str(domain.value) if domain is not None and spans else "",
                above=above,
            )
        )
    return found


def _fabric_tiers(
    inventories: Sequence[Inventory], placed: Sequence[PlacedNode], kinds: Sequence[NodeEntry]
) -> FabricTierRecords:
    """Switch tiers above the nodes; empty for one node, or where no file lists switches."""
    if not placed[0].above or len(placed) == 1:
        return FabricTierRecords()
    listed = next((one for one in inventories if one.switches), None)
    where = (
        listed.file if listed else next(f"{one.file}, labels" for one in inventories if one.nodes)
    )
    is_blocks = listed is not None and listed.switches[0].is_block
    return fabric_tiers(
        placed, islands=frozenset(kind.island for kind in kinds), is_blocks=is_blocks, where=where
    )


def _node_records(placed: Sequence[PlacedNode], kinds: Sequence[NodeEntry]) -> list[dict[str, Any]]:
    """Entry with count and zone of each run of neighbouring nodes of one kind and zone."""
    runs = (
        (*key, sum(1 for _ in some))
        for key, some in groupby(placed, key=lambda node: (node.kind, node.zone))
    )
    return [
        _counted_record(kinds[kind].record, count) | ({"zone": zone} if zone else {})
        for kind, zone, count in runs
    ]


def _counted_record(record: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Copy of an entry with its count after its name.

    Entries that share values would be written with YAML aliases.
    """
    (key, name), *rest = deepcopy(dict(record)).items()
    return {key: name, "count": count, **dict(rest)}


def _with_measured_rates(
    document: dict[str, Any], kinds: Sequence[NodeEntry], rates: Sequence[BusRate]
) -> list[NodeEntry]:
    """Add measured link efficiencies to the document's nodes in place; return the node kinds.

    ClusterError where there are several kinds.
    """
    if not rates:
        return list(kinds)
    if len(kinds) > 1:
        raise ClusterError(
            f"{rates[0].where}: which of {len(kinds)} kinds of nodes was measured is not said",
            hint="read the nodes of that kind alone",
        )
    change = measured_efficiencies(cluster_from_yaml(_yaml_text(document)).node, rates)
    for record in document["nodes"]:
        for key, value in change.record.items():
            record[key] = record.get(key, {}) | value
    one = kinds[0]
    return [
        replace(one, found=(*one.found, *change.found), assumed=(*one.assumed, *change.assumed))
    ]


def _zone_link_record(one: ZoneLink) -> dict[str, Any]:
    """Link of two zones as an entry of a cluster file."""
    return {
        "source": one.source,
        "target": one.target,
        "bandwidth_gbps": one.link.bandwidth * BITS_PER_BYTE / GIGA,
        "latency_ms": one.link.latency_s / MILLI,
        "egress_dollars_per_gigabyte": one.egress,
    }


def _node_kind_report(kind: NodeEntry) -> KindRead:
    """Report on a node kind: name, number of nodes, found facts and assumptions."""
    name = f"{kind.devices} {kind.base.accelerator.name}"
    return KindRead(name=name, count=len(kind.places), found=kind.found, assumed=kind.assumed)


def _cluster_name(inventories: Sequence[Inventory]) -> str:
    """Name of the cluster: ``read from`` and the names of its files."""
    return ("read from " + ", ".join(dict.fromkeys(one.file for one in inventories)))[:200]


def _yaml_text(document: Mapping[str, Any]) -> str:
    """YAML text of a cluster file's document."""
    return yaml.safe_dump(
        dict(document), sort_keys=False, default_flow_style=None, width=140, allow_unicode=True
    )


def _cluster_file_text(
    document: Mapping[str, Any],
    inventories: Sequence[Inventory],
    kinds: Sequence[KindRead],
    found: Sequence[FoundFact],
    assumed: Sequence[Assumption],
) -> str:
    """Cluster file whose comments list the found facts and the assumptions."""
    lines = [f"found: {one.what} {one.words} ({one.where})" for one in found]
    lines += [f"assumed: {one.what} {one.value} ({one.why})" for one in assumed]
    for kind in kinds:
        lines.append(f"{kind.count} x node of {kind.name}")
        lines += [f"  found: {one.what} {one.words} ({one.where})" for one in kind.found]
        lines += [f"  assumed: {one.what} {one.value} ({one.why})" for one in kind.assumed]
    shown = [_comment_line(line) for line in lines[:MAX_REMARKS]]
    return "".join([*shown, _yaml_text(document)])


def _comment_line(line: str) -> str:
    """One YAML comment line, with characters that are not printable ASCII replaced."""
    return f"# {''.join(c if c.isprintable() and c.isascii() else '?' for c in line)[:400]}\n"
