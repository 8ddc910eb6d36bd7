"""All-reduce trees over units whose links differ pair by pair, such as zones.

Each tree takes the links with most room left.

The buffer is cut into N equal parts, a tree each, one after the other:

    over the outermost units: the spanning tree whose busiest link is the least busy with it; a link
                              from a to b is busy for 1 / (min(members of a, members of b) x
                              bandwidth_ab) seconds a byte, the two directions apart
    inside a unit:            stars around a centre that moves from member to member, unit in unit
                              down to islands

So slow pairs carry little or nothing, and fast ones are shared. Kruskal's tree has the least
busiest edge of all.

Left out: cards and uplinks inside a unit when trees over units are chosen (the price has them),
latency (`tree` is for small buffers), groups of more than `MOST_MEMBERS`.

Sources: Zhao et al. 2024, "ForestColl" (arXiv:2402.06787), for sums along packed trees; Kruskal
1956 (Proceedings of the AMS 7).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.groups.links_of_one_group import Layout
from shardwright.collectives.messages.pipelined_tree_all_reduce_schedule import (
    Tree,
    middle_member,
    rooted_tree,
)

MOST_MEMBERS: Final = 64
FEWEST_PARTS: Final = 24
"""Least number of parts of the buffer: with more, trees spread over links more evenly."""
Edge = tuple[int, int]


@lru_cache(maxsize=1024)
def paired_trees(layout: Layout) -> tuple[Tree, ...]:
    """Spanning trees, with shares of the buffer, that balance unequal links of zones (cached).

    Outermost units with different links pair by pair; shares of the buffer.
    """
    largest = max(layout.units[-1])
    parts = largest * -(-FEWEST_PARTS // largest)
    shares: dict[tuple[Edge, ...], float] = {}
    for turn, unit_edges in enumerate(trees_over(layout, parts)):
        heads, edges = _stars_inside_units(layout, turn)
        edges += [(heads[unit], heads[other_unit]) for unit, other_unit in unit_edges]
        key = tuple(sorted((min(edge), max(edge)) for edge in edges))
        shares[key] = shares.get(key, 0.0) + 1.0 / parts
    return tuple(
        rooted_tree(share, list(edges), middle_member(list(edges)))
        for edges, share in shares.items()
    )


def pair_costs(layout: Layout) -> FloatArray:
    """(units, units) seconds that a link between two units is busy for a byte.

    inf from a unit to itself.
    """
    assert layout.between is not None
    members, rates = np.array(layout.units[-1]), np.array(layout.between.bandwidth)
    room = np.minimum.outer(members, members) * rates
    costs: FloatArray = np.divide(1.0, room, out=np.full(room.shape, np.inf), where=room > 0.0)
    return costs


def trees_over(layout: Layout, parts: int) -> list[list[Edge]]:
    """Edges of a spanning tree of units for each of `parts` parts, least by link seconds so far."""
    costs, units = pair_costs(layout) / parts, len(layout.units[-1])
    busy, trees = np.zeros_like(costs), []
    for _ in range(parts):
        busy_after = busy + costs
        tree = _kruskal_tree(np.maximum(busy_after, busy_after.T), units)
        for unit, other_unit in tree:
            busy[unit, other_unit] += costs[unit, other_unit]
            busy[other_unit, unit] += costs[other_unit, unit]
        trees.append(tree)
    return trees


def _kruskal_tree(weight: FloatArray, units: int) -> list[Edge]:
    """Edges of the minimum spanning tree over units, by Kruskal's algorithm."""
    component_of, tree = list(range(units)), []
    for _, unit, other_unit in sorted(
        (float(weight[unit, other_unit]), unit, other_unit)
        for unit, other_unit in combinations(range(units), 2)
    ):
        if component_of[unit] != component_of[other_unit]:
            tree.append((unit, other_unit))
            component_of = [
                component_of[unit] if component == component_of[other_unit] else component
                for component in component_of
            ]
    return tree


def _stars_inside_units(layout: Layout, turn: int) -> tuple[list[int], list[Edge]]:
    """(centre of each outermost unit, star edges inside the units); centres rotate with `turn`."""
    starts = np.cumsum([0, *layout.units[-1]])
    centres = {
        int(start) + turn % count for start, count in zip(starts, layout.units[-1], strict=False)
    }
    heads, edges = list(range(layout.size)), []
    first_members = np.cumsum([0, *layout.counts[0]])
    islands = [
        range(int(first), int(first) + count)
        for first, count in zip(first_members, layout.counts[0], strict=False)
    ]
    for level in (islands, *layout.children[:-1]):
        heads_above = []
        for inside in level:
            heads_inside = [heads[place] for place in inside]
            head = next(
                (member for member in heads_inside if member in centres),
                heads_inside[turn % len(heads_inside)],
            )
            edges += [(head, member) for member in heads_inside if member != head]
            heads_above.append(head)
        heads = heads_above
    return heads, edges
