"""Merge of several inventory files of one cluster; contradicting facts are an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.accelerator_names import (
    accelerators_by_name,
    nvlink_of,
    possible_accelerators,
)
from shardwright.hardware.inventories.node_facts import (
    DeviceLinks,
    FactKind,
    FoundFact,
    Inventory,
    SeenNode,
    Switch,
)
from shardwright.lazily_compiled_dataclass import dataclass

CLOSE: Final = 1.05
"""Host memory sizes within this factor are of one kind of node: firmware takes different amounts.
"""
MAX_KINDS: Final = 256
_OTHER_NODES: Final = "one of the files is of other nodes: leave it out, or mend it"
_OF_A_KIND: Final = (
    FactKind.PRODUCT,
    FactKind.INSTANCE,
    FactKind.DEVICES,
    FactKind.DEVICE_MEMORY,
    FactKind.ZONE,
    FactKind.DOMAIN_NODES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSet:
    """Nodes of one kind: their facts, likely values where no fact is found, and their positions."""

    facts: Mapping[FactKind, FoundFact]
    guesses: tuple[tuple[FactKind, int, str], ...]
    places: tuple[int, ...]


def contradiction_error(
    one: FoundFact, other: FoundFact, *, hint: str = _OTHER_NODES
) -> ClusterError:
    """Make the error for two facts that contradict each other, with both places."""
    return ClusterError(
        f"{one.what} is {one.words[:60]} ({one.where}), and {other.words[:60]} ({other.where})",
        hint=hint,
    )


def more_precise_fact(one: FoundFact, other: FoundFact) -> FoundFact:
    """Choose the more precise of two facts on one property; ClusterError if they contradict.

    Raises:
        ClusterError: they contradict each other.
    """
    if one.value == other.value:
        return one
    if one.what is FactKind.PRODUCT:
        here, there = (
            {device.name for device in accelerators_by_name(str(fact.value))}
            for fact in (one, other)
        )
        if not here or not there or here & there:
            return min(
                (one, len(here) or MAX_KINDS),
                (other, len(there) or MAX_KINDS),
                key=lambda pair: pair[1],
            )[0]
    if (
        isinstance(one.value, DeviceLinks)
        and isinstance(other.value, DeviceLinks)
        and (set(one.value) & set(other.value)) - {0}
    ):
        return one if one.value.peer == one.value.total else other
    if (
        one.what is FactKind.HOST_MEMORY
        and isinstance(one.value, int)
        and isinstance(other.value, int)
    ):
        low, high = sorted((one, other), key=lambda fact: float(str(fact.value)))
        if float(str(high.value)) <= CLOSE * float(str(low.value)):
            return low
    if one.what in (FactKind.NEAR, FactKind.PROCESSOR, FactKind.ORDER):
        return one
    raise contradiction_error(one, other)


def merged_facts(facts: Iterable[FoundFact]) -> dict[FactKind, FoundFact]:
    """Merge facts into one for each kind; ClusterError where two contradict each other."""
    found: dict[FactKind, FoundFact] = {}
    for fact in facts:
        found[fact.what] = more_precise_fact(found[fact.what], fact) if fact.what in found else fact
    return found


def named_nodes(inventories: Sequence[Inventory]) -> tuple[SeenNode, ...]:
    """Nodes of all node lists, else of the switch list, merged by name; empty without lists.

    The result is empty where there is neither kind of list.

    Raises:
        ClusterError: two lists have no node in common or contradict each other, there are two lists
            of switches, or a node of a list is below none of the switches.
    """
    lists = [one for one in inventories if one.nodes]
    found: dict[str, SeenNode] = {}
    for one in lists:
        if found and not any(node.name in found for node in one.nodes):
            raise ClusterError(
                f"{lists[0].file} and {one.file} have no node in common:"
                f" {lists[0].nodes[0].name[:40]!r}, {one.nodes[0].name[:40]!r}",
                hint="names must be the same in both",
            )
        for node in one.nodes:
            known = found.get(node.name)
            facts = (
                tuple(merged_facts((*known.facts, *node.facts)).values()) if known else node.facts
            )
            found[node.name] = replace(
                known or node,
                facts=facts,
                above=(known.above if known else ()) or node.above,
                away=(known.away if known else "") or node.away,
                remark=(known.remark if known else "") or node.remark,
            )
    trees = [one for one in inventories if one.switches]
    if len(trees) > 1:
        raise ClusterError(
            f"{trees[0].file} and {trees[1].file} are both lists of switches",
            hint="give one of them",
        )
    return _nodes_below_switches(trees[0].switches, found) if trees else tuple(found.values())


def _nodes_below_switches(
    switches: Sequence[Switch], listed: Mapping[str, SeenNode]
) -> tuple[SeenNode, ...]:
    """Listed nodes (all if none listed) in switch order, with the switches above, nearest first.

    Where there is a list of nodes, only its nodes count.
    """
    parent = {child: one for one in switches for child in one.switches}
    nodes: list[SeenNode] = []
    for leaf in (one for one in switches if one.nodes):
        above = [leaf.name]
        while above[-1] in parent:
            above.append(parent[above[-1]].name)
        block = (FoundFact(FactKind.DOMAIN, leaf.name, leaf.where),) if leaf.is_block else ()
        for name in leaf.nodes:
            node = listed.get(name) if listed else SeenNode(name=name, where=leaf.where, facts=())
            if node is not None:
                facts = node.facts if node.fact(FactKind.DOMAIN) else (*node.facts, *block)
                nodes.append(replace(node, facts=facts, above=tuple(above)))
    placed = {node.name for node in nodes}
    lost = next((node for name, node in listed.items() if name not in placed), None)
    if lost is not None:
        raise ClusterError(
            f"node {lost.name[:60]!r} ({lost.where}) is below none of the switches of"
            f" {switches[0].where}",
            hint=_OTHER_NODES,
        )
    return tuple(nodes)


def node_sets(nodes: Sequence[SeenNode], samples: Sequence[SeenNode]) -> tuple[NodeSet, ...]:
    """Sets of nodes with equal facts and about equal memory, plus facts of matching samples.

    A sample is of every kind that it does not contradict.

    Raises:
        ClusterError: a sample is of no kind, facts contradict each other, or there are more than
            256 kinds.
    """
    sizes = Counter(
        str(fact.value) for node in nodes if (fact := node.fact(FactKind.DOMAIN)) is not None
    )
    by_key: dict[tuple[object, ...], list[tuple[int, dict[FactKind, FoundFact]]]] = {}
    for place, node in enumerate(nodes):
        facts = {fact.what: fact for fact in node.facts}
        domain = facts.pop(FactKind.DOMAIN, None)
        if domain is not None:
            facts[FactKind.DOMAIN_NODES] = FoundFact(
                FactKind.DOMAIN_NODES, sizes[str(domain.value)], domain.where
            )
        key = tuple(facts[what].value if what in facts else None for what in _OF_A_KIND)
        by_key.setdefault(key, []).append((place, facts))
    kinds = [kind for members in by_key.values() for kind in _split_by_memory(members)]
    if len(kinds) > MAX_KINDS:
        raise ClusterError(f"{len(kinds)} kinds of nodes", hint=f"at most {MAX_KINDS}")
    return _with_samples(kinds, samples)


def _split_by_memory(members: list[tuple[int, dict[FactKind, FoundFact]]]) -> list[NodeSet]:
    """Split nodes into sets of about equal host memory; each set has its smallest memory."""
    ranked = sorted(members, key=lambda one: (_host_memory_bytes(one[1]), one[0]))
    parts: list[list[tuple[int, dict[FactKind, FoundFact]]]] = []
    for one in ranked:
        if parts and _host_memory_bytes(one[1]) <= CLOSE * _host_memory_bytes(parts[-1][0][1]):
            parts[-1].append(one)
        else:
            parts.append([one])
    return [
        NodeSet(facts=part[0][1], guesses=(), places=tuple(sorted(place for place, _ in part)))
        for part in parts
    ]


def _host_memory_bytes(facts: Mapping[FactKind, FoundFact]) -> float:
    """Host memory of the facts in bytes; 0.0 where it is not found."""
    fact = facts.get(FactKind.HOST_MEMORY)
    return float(str(fact.value)) if fact is not None else 0.0


def _with_samples(kinds: Sequence[NodeSet], samples: Sequence[SeenNode]) -> tuple[NodeSet, ...]:
    """Node sets plus facts of samples that fit (link counts first); error if one fits no set."""
    found = list(kinds)
    for sample in samples:
        merged: dict[int, dict[FactKind, FoundFact]] = {}
        error: ClusterError | None = None
        for number, kind in enumerate(found):
            # A list of nodes describes racks better than a job's dump.
            facts = [
                fact
                for fact in sample.facts
                if fact.what is not FactKind.DOMAIN_NODES or fact.what not in kind.facts
            ]
            try:
                merged[number] = merged_facts((*kind.facts.values(), *facts))
            except ClusterError as refused:
                error = error or refused
        if error is not None and not merged:
            raise error
        alike = {number for number in merged if _has_catalog_links(found[number].facts, sample)}
        for number in alike or merged:
            found[number] = replace(
                found[number],
                facts=merged[number],
                guesses=(*found[number].guesses, *sample.guesses),
            )
    return tuple(found)


def _has_catalog_links(facts: Mapping[FactKind, FoundFact], sample: SeenNode) -> bool:
    """True if the sample's NVLink count is that of an accelerator that the facts may mean."""
    links = sample.fact(FactKind.LINKS) or sample.fact(FactKind.XGMI)
    counts = {
        link.links if (link := nvlink_of(device)) else 0 for device in possible_accelerators(facts)
    }
    return bool(
        counts
        & (set(links.value) if links is not None and isinstance(links.value, DeviceLinks) else {0})
    )
