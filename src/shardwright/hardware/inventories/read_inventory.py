"""A cluster from what its files say: a cluster file, with what of it was found and what was
assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

import yaml

from shardwright.errors import ClusterError
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.files.cluster_file import cluster_from_yaml
from shardwright.hardware.inventories.cluster_file_entry import Described, described
from shardwright.hardware.inventories.link_efficiencies import rated
from shardwright.hardware.inventories.matching_node import takes
from shardwright.hardware.inventories.merge_inventories import (
    NodeSet,
    contradiction,
    named_nodes,
    node_sets,
)
from shardwright.hardware.inventories.node_facts import (
    Assumed,
    BusRate,
    Found,
    Inventory,
    SeenNode,
    What,
)
from shardwright.hardware.inventories.outputs.schedulable_states import schedulable
from shardwright.hardware.inventories.switch_tiers import (
    Placed,
    Tiers,
    full_paths,
    in_order,
    tiers_of,
)
from shardwright.hardware.network_zones import ZoneLink
from shardwright.lazy_dataclass import dataclass
from shardwright.units import BITS_PER_BYTE, GIGA, MILLI

MAX_GROUPS: Final = 1024
MAX_COUNT: Final = 131_072
MAX_REMARKS: Final = 200
_SAMPLE: Final = SeenNode(name="", where="", facts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRead:
    """Nodes of one kind: how many of what, what was found of them, and what was assumed."""

    name: str
    count: int
    found: tuple[Found, ...]
    assumed: tuple[Assumed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRead:
    """A cluster that was read.

    Args:
        text: the cluster file.
        cluster: what it says.
        kinds: of nodes.
        found, assumed: of the nodes together and the network.
    """

    text: str
    cluster: Cluster
    kinds: tuple[KindRead, ...]
    found: tuple[Found, ...]
    assumed: tuple[Assumed, ...]


def read_from(
    inventories: Sequence[Inventory],
    *,
    given: Mapping[str, str],
    count: int = 0,
    links: Sequence[ZoneLink] = (),
    all_nodes: bool = False,
) -> ClusterRead:
    """The cluster that some files describe together.

    Args:
        given: accelerators or instances by a product's word, or by "" for nodes whose files do not
            say.
        count: nodes, where no file lists them; 0 = one.
        links: of zones.
        all_nodes: count nodes too on which no job can be placed (down, drained, cordoned, not
            ready).

    Raises:
        ClusterError: the files contradict each other or do not say enough; the message says what,
        and where.
    """
    nodes, samples = (
        named_nodes(inventories),
        tuple(sample for one in inventories for sample in one.samples),
    )
    found = [note for one in inventories for note in one.notes]
    assumed: list[Assumed] = []
    if nodes:
        listed = len(nodes)
        nodes, remarks = schedulable(nodes, all_nodes=all_nodes)
        place = f"{nodes[0].where} and on"
        found += [Found(What.NODES, len(nodes), place), *remarks]
        for one in inventories:
            unlisted = sum(len(switch.nodes) for switch in one.switches) - listed
            if unlisted > 0:
                found.append(
                    Found(
                        What.NODES,
                        f"{unlisted} that no list of nodes with GPUs has, left out",
                        one.file,
                    )
                )
        if count and count != len(nodes):
            raise contradiction(
                Found(What.NODES, len(nodes), place),
                Found(What.NODES, count, "--nodes"),
                hint="leave --nodes out",
            )
    else:
        nodes, remark = _unnamed(samples, count)
        found += [remark] if isinstance(remark, Found) else []
        assumed += [remark] if isinstance(remark, Assumed) else []
    kinds = _kinds(node_sets(nodes, samples), given)
    placed = _placed(nodes, kinds)
    order = in_order(placed)
    tiers = _tiers(inventories, [placed[place] for place in order], kinds)
    records = _records([placed[place] for place in order], kinds)
    if len(records) > MAX_GROUPS:
        raise ClusterError(
            f"{len(records)} runs of nodes of different kinds",
            hint=f"at most {MAX_GROUPS}: leave some nodes out",
        )
    document: dict[str, Any] = {"name": _name(inventories), "nodes": records}
    if tiers.records:
        document |= {
            "fabric": list(tiers.records),
            "fabric_origin": {"evidence": "published", "reference": tiers.found[0].where[:200]},
        }
    else:
        assumed.append(Assumed("switches", "one without blocking", "no file lists switches"))
    zones = tuple(dict.fromkeys(record["zone"] for record in records if "zone" in record))
    if len(zones) > 1 and not links:
        hint = f"--link {zones[0]}~{zones[1]}=25gbps/1ms, for each two"
        raise ClusterError(
            f"nodes are in zones {', '.join(zones[:4])[:200]}, and no file says what joins these",
            hint=hint,
        )
    if links:
        document["links"] = [_link(link) for link in links]
    kinds = _with_rates(document, kinds, [rate for one in inventories for rate in one.rates])
    reads = tuple(_kind_read(kind) for kind in kinds)
    text = _text(document, inventories, reads, (*found, *tiers.found), (*assumed, *tiers.assumed))
    return ClusterRead(
        text=text,
        cluster=cluster_from_yaml(text),
        kinds=reads,
        found=(*found, *tiers.found),
        assumed=(*assumed, *tiers.assumed),
    )


def _unnamed(
    samples: Sequence[SeenNode], count: int
) -> tuple[tuple[SeenNode, ...], Found | Assumed]:
    """Nodes that no file lists: as many as somebody says, as a dump has, or one."""
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
            if what is What.NODES
        ),
        (1, "no file lists them"),
    )
    number = count or guess[0]
    remark = (
        Found(What.NODES, number, "--nodes")
        if count
        else Assumed(What.NODES, str(number), f"{guess[1]}; --nodes N says how many")
    )
    return (_SAMPLE,) * number, remark


def _kinds(sets: Sequence[NodeSet], given: Mapping[str, str]) -> list[Described]:
    """Nodes of each kind; what is given for all is of those that leave it open, where there are
    such.
    """
    named = {word: name for word, name in given.items() if word}
    takers = [one for one in sets if "" in given and takes(given[""], one.facts)]
    return [described(one, given=given if one in takers or not takers else named) for one in sets]


def _placed(nodes: Sequence[SeenNode], kinds: Sequence[Described]) -> list[Placed]:
    """Each node with its kind, zone and place in the network."""
    kind_of = {place: number for number, kind in enumerate(kinds) for place in kind.places}
    zones = {str(fact.value) for node in nodes if (fact := node.fact(What.ZONE)) is not None}
    found = []
    for place, (node, above) in enumerate(zip(nodes, full_paths(nodes), strict=True)):
        zone, domain, kind = node.fact(What.ZONE), node.fact(What.DOMAIN), kinds[kind_of[place]]
        spans = domain is not None and kind.island > kind.devices
        found.append(
            Placed(
                devices=kind.devices,
                kind=kind_of[place],
                zone=str(zone.value) if zone is not None and len(zones) > 1 else "",
                domain=str(domain.value) if domain is not None and spans else "",
                above=above,
            )
        )
    return found


def _tiers(
    inventories: Sequence[Inventory], placed: Sequence[Placed], kinds: Sequence[Described]
) -> Tiers:
    if not placed[0].above or len(placed) == 1:
        return Tiers()
    listed = next((one for one in inventories if one.switches), None)
    where = (
        listed.file if listed else next(f"{one.file}, labels" for one in inventories if one.nodes)
    )
    is_blocks = listed is not None and listed.switches[0].is_block
    return tiers_of(
        placed, islands=frozenset(kind.island for kind in kinds), is_blocks=is_blocks, where=where
    )


def _records(placed: Sequence[Placed], kinds: Sequence[Described]) -> list[dict[str, Any]]:
    """An entry for each run of nodes of one kind and zone."""
    runs = (
        (*key, sum(1 for _ in some))
        for key, some in groupby(placed, key=lambda node: (node.kind, node.zone))
    )
    return [
        _record(kinds[kind].record, count) | ({"zone": zone} if zone else {})
        for kind, zone, count in runs
    ]


def _record(record: Mapping[str, Any], count: int) -> dict[str, Any]:
    """An entry of its own with its count behind its name: what entries share would be written as
    YAML's aliases.
    """
    (key, name), *rest = deepcopy(dict(record)).items()
    return {key: name, "count": count, **dict(rest)}


def _with_rates(
    document: dict[str, Any], kinds: Sequence[Described], rates: Sequence[BusRate]
) -> list[Described]:
    """The kinds, and the entries of the document, with the rates that were measured on nodes of the
    one kind that there is.
    """
    if not rates:
        return list(kinds)
    if len(kinds) > 1:
        raise ClusterError(
            f"{rates[0].where}: which of {len(kinds)} kinds of nodes was measured is not said",
            hint="read the nodes of that kind alone",
        )
    change = rated(cluster_from_yaml(_dumped(document)).node, rates)
    for record in document["nodes"]:
        for key, value in change.record.items():
            record[key] = record.get(key, {}) | value
    one = kinds[0]
    return [
        replace(one, found=(*one.found, *change.found), assumed=(*one.assumed, *change.assumed))
    ]


def _link(one: ZoneLink) -> dict[str, Any]:
    """A link of two zones, as an entry of a cluster file."""
    return {
        "source": one.source,
        "target": one.target,
        "bandwidth_gbps": one.link.bandwidth * BITS_PER_BYTE / GIGA,
        "latency_ms": one.link.latency_s / MILLI,
        "egress_dollars_per_gigabyte": one.egress,
    }


def _kind_read(kind: Described) -> KindRead:
    name = f"{kind.devices} {kind.base.accelerator.name}"
    return KindRead(name=name, count=len(kind.places), found=kind.found, assumed=kind.assumed)


def _name(inventories: Sequence[Inventory]) -> str:
    return ("read from " + ", ".join(dict.fromkeys(one.file for one in inventories)))[:200]


def _dumped(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(
        dict(document), sort_keys=False, default_flow_style=None, width=140, allow_unicode=True
    )


def _text(
    document: Mapping[str, Any],
    inventories: Sequence[Inventory],
    kinds: Sequence[KindRead],
    found: Sequence[Found],
    assumed: Sequence[Assumed],
) -> str:
    """A cluster file whose remarks say what was found, and what was assumed."""
    lines = [f"found: {one.what} {one.words} ({one.where})" for one in found]
    lines += [f"assumed: {one.what} {one.value} ({one.why})" for one in assumed]
    for kind in kinds:
        lines.append(f"{kind.count} x node of {kind.name}")
        lines += [f"  found: {one.what} {one.words} ({one.where})" for one in kind.found]
        lines += [f"  assumed: {one.what} {one.value} ({one.why})" for one in kind.assumed]
    shown = [_remark(line) for line in lines[:MAX_REMARKS]]
    return "".join([*shown, _dumped(document)])


def _remark(line: str) -> str:
    """A remark of one line; names that others chose may hold anything."""
    return f"# {''.join(c if c.isprintable() and c.isascii() else '?' for c in line)[:400]}\n"
