"""Several files of one cluster: facts of a node from all of them, one beside the other or an error
that names both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.accelerator_names import (
    accelerators_called,
    devices_meant,
    nvlink_of,
)
from shardwright.hardware.inventories.node_facts import (
    Found,
    Inventory,
    Links,
    SeenNode,
    Switch,
    What,
)
from shardwright.lazy_dataclass import dataclass

CLOSE: Final = 1.05
"""Sizes of memory that differ by less are of one kind of node: what firmware takes differs."""
MAX_KINDS: Final = 256
_OTHER_NODES: Final = "one of the files is of other nodes: leave it out, or mend it"
_OF_A_KIND: Final = (
    What.PRODUCT,
    What.INSTANCE,
    What.DEVICES,
    What.DEVICE_MEMORY,
    What.ZONE,
    What.DOMAIN_NODES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSet:
    """Nodes of one kind: their facts, guesses where no fact is,
    and their places among all nodes.
    """

    facts: Mapping[What, Found]
    guesses: tuple[tuple[What, int, str], ...]
    places: tuple[int, ...]


def contradiction(one: Found, other: Found, *, hint: str = _OTHER_NODES) -> ClusterError:
    """The error of two facts that cannot both be."""
    return ClusterError(
        f"{one.what} is {one.words[:60]} ({one.where}), and {other.words[:60]} ({other.where})",
        hint=hint,
    )


def agreed(one: Found, other: Found) -> Found:
    """The more precise of two facts of one kind about a node, from two files.

    Raises:
        ClusterError: they contradict each other.
    """
    if one.value == other.value:
        return one
    if one.what is What.PRODUCT:
        here, there = (
            {device.name for device in accelerators_called(str(fact.value))}
            for fact in (one, other)
        )
        if not here or not there or here & there:
            return min(
                (one, len(here) or MAX_KINDS),
                (other, len(there) or MAX_KINDS),
                key=lambda pair: pair[1],
            )[0]
    if (
        isinstance(one.value, Links)
        and isinstance(other.value, Links)
        and (set(one.value) & set(other.value)) - {0}
    ):
        return one if one.value.peer == one.value.total else other
    if one.what is What.HOST_MEMORY and isinstance(one.value, int) and isinstance(other.value, int):
        low, high = sorted((one, other), key=lambda fact: float(str(fact.value)))
        if float(str(high.value)) <= CLOSE * float(str(low.value)):
            return low
    if one.what in (What.NEAR, What.PROCESSOR, What.ORDER):
        return one
    raise contradiction(one, other)


def together(facts: Iterable[Found]) -> dict[What, Found]:
    """One fact of each kind. Raises as `agreed`."""
    found: dict[What, Found] = {}
    for fact in facts:
        found[fact.what] = agreed(found[fact.what], fact) if fact.what in found else fact
    return found


def named_nodes(inventories: Sequence[Inventory]) -> tuple[SeenNode, ...]:
    """The nodes of a cluster by name, from the lists of nodes, or from the switches where there is
    no list; none where there is neither.

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
            facts = tuple(together((*known.facts, *node.facts)).values()) if known else node.facts
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
    return _below(trees[0].switches, found) if trees else tuple(found.values())


def _below(switches: Sequence[Switch], listed: Mapping[str, SeenNode]) -> tuple[SeenNode, ...]:
    """Nodes in the order of the switches, with those above each; a list of nodes says which of them
    count.
    """
    parent = {child: one for one in switches for child in one.switches}
    nodes: list[SeenNode] = []
    for leaf in (one for one in switches if one.nodes):
        above = [leaf.name]
        while above[-1] in parent:
            above.append(parent[above[-1]].name)
        block = (Found(What.DOMAIN, leaf.name, leaf.where),) if leaf.is_block else ()
        for name in leaf.nodes:
            node = listed.get(name) if listed else SeenNode(name=name, where=leaf.where, facts=())
            if node is not None:
                facts = node.facts if node.fact(What.DOMAIN) else (*node.facts, *block)
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
    """Nodes by kind, in the order in which each first stands, with what the samples say of each.

    A sample is of every kind that it does not contradict; where there is one kind, of that.

    Raises:
        ClusterError: a sample is of no kind, facts contradict each other, or there are more than
        256 kinds.
    """
    sizes = Counter(
        str(fact.value) for node in nodes if (fact := node.fact(What.DOMAIN)) is not None
    )
    by_key: dict[tuple[object, ...], list[tuple[int, dict[What, Found]]]] = {}
    for place, node in enumerate(nodes):
        facts = {fact.what: fact for fact in node.facts}
        domain = facts.pop(What.DOMAIN, None)
        if domain is not None:
            facts[What.DOMAIN_NODES] = Found(
                What.DOMAIN_NODES, sizes[str(domain.value)], domain.where
            )
        key = tuple(facts[what].value if what in facts else None for what in _OF_A_KIND)
        by_key.setdefault(key, []).append((place, facts))
    kinds = [kind for members in by_key.values() for kind in _by_memory(members)]
    if len(kinds) > MAX_KINDS:
        raise ClusterError(f"{len(kinds)} kinds of nodes", hint=f"at most {MAX_KINDS}")
    return _sampled(kinds, samples)


def _by_memory(members: list[tuple[int, dict[What, Found]]]) -> list[NodeSet]:
    """Members of about the same host memory are of one kind, which has the least of theirs."""
    ranked = sorted(members, key=lambda one: (_memory(one[1]), one[0]))
    parts: list[list[tuple[int, dict[What, Found]]]] = []
    for one in ranked:
        if parts and _memory(one[1]) <= CLOSE * _memory(parts[-1][0][1]):
            parts[-1].append(one)
        else:
            parts.append([one])
    return [
        NodeSet(facts=part[0][1], guesses=(), places=tuple(sorted(place for place, _ in part)))
        for part in parts
    ]


def _memory(facts: Mapping[What, Found]) -> float:
    fact = facts.get(What.HOST_MEMORY)
    return float(str(fact.value)) if fact is not None else 0.0


def _sampled(kinds: Sequence[NodeSet], samples: Sequence[SeenNode]) -> tuple[NodeSet, ...]:
    found = list(kinds)
    for sample in samples:
        merged: dict[int, dict[What, Found]] = {}
        error: ClusterError | None = None
        for number, kind in enumerate(found):
            # What a rack is, a list of nodes knows better than a job's dump.
            facts = [
                fact
                for fact in sample.facts
                if fact.what is not What.DOMAIN_NODES or fact.what not in kind.facts
            ]
            try:
                merged[number] = together((*kind.facts.values(), *facts))
            except ClusterError as refused:
                error = error or refused
        if error is not None and not merged:
            raise error
        alike = {number for number in merged if _has_links_of(found[number].facts, sample)}
        for number in alike or merged:
            found[number] = replace(
                found[number],
                facts=merged[number],
                guesses=(*found[number].guesses, *sample.guesses),
            )
    return tuple(found)


def _has_links_of(facts: Mapping[What, Found], sample: SeenNode) -> bool:
    """The sample has the NVLinks that the kind's accelerators have by their sheets: none where they
    have none.
    """
    links = sample.fact(What.LINKS) or sample.fact(What.XGMI)
    counts = {link.links if (link := nvlink_of(device)) else 0 for device in devices_meant(facts)}
    return bool(
        counts & (set(links.value) if links is not None and isinstance(links.value, Links) else {0})
    )
