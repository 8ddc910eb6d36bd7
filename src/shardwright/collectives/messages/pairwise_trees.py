"""Sums over units whose links differ pair by pair, such as zones: trees over the units that each
take the links with most room left.

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
from shardwright.collectives.groups.member_links import Layout
from shardwright.collectives.messages.tree_schedule import Tree, middle, rooted

MOST_MEMBERS: Final = 64
FEWEST_PARTS: Final = 24
Edge = tuple[int, int]


@lru_cache(maxsize=1024)
def paired_trees(layout: Layout) -> tuple[Tree, ...]:
    """The trees of a group with links of each two outermost units,
    with their shares of the buffer.
    """
    largest = max(layout.units[-1])
    parts = largest * -(-FEWEST_PARTS // largest)
    shares: dict[tuple[Edge, ...], float] = {}
    for turn, over in enumerate(trees_over(layout, parts)):
        heads, edges = _inside(layout, turn)
        edges += [(heads[one], heads[other]) for one, other in over]
        key = tuple(sorted((min(edge), max(edge)) for edge in edges))
        shares[key] = shares.get(key, 0.0) + 1.0 / parts
    return tuple(rooted(share, list(edges), middle(list(edges))) for edges, share in shares.items())


def pair_costs(layout: Layout) -> FloatArray:
    """(units, units) seconds a byte that a link from the one to the other is busy; inf from a unit
    to itself.
    """
    assert layout.between is not None
    members, rates = np.array(layout.units[-1]), np.array(layout.between.bandwidth)
    room = np.minimum.outer(members, members) * rates
    costs: FloatArray = np.divide(1.0, room, out=np.full(room.shape, np.inf), where=room > 0.0)
    return costs


def trees_over(layout: Layout, parts: int) -> list[list[Edge]]:
    """The edges over the outermost units of each part's tree."""
    costs, units = pair_costs(layout) / parts, len(layout.units[-1])
    busy, found = np.zeros_like(costs), []
    for _ in range(parts):
        then = busy + costs
        tree = _spanning(np.maximum(then, then.T), units)
        for one, other in tree:
            busy[one, other] += costs[one, other]
            busy[other, one] += costs[other, one]
        found.append(tree)
    return found


def _spanning(weight: FloatArray, units: int) -> list[Edge]:
    """Kruskal's tree of the least edges."""
    belongs, tree = list(range(units)), []
    for _, one, other in sorted(
        (float(weight[one, other]), one, other) for one, other in combinations(range(units), 2)
    ):
        if belongs[one] != belongs[other]:
            tree.append((one, other))
            belongs = [belongs[one] if of == belongs[other] else of for of in belongs]
    return tree


def _inside(layout: Layout, turn: int) -> tuple[list[int], list[Edge]]:
    """The centre of each outermost unit in one turn, and the edges of the stars in it."""
    starts = np.cumsum([0, *layout.units[-1]])
    centres = {
        int(start) + turn % count for start, count in zip(starts, layout.units[-1], strict=False)
    }
    heads, edges = list(range(layout.size)), []
    firsts = np.cumsum([0, *layout.counts[0]])
    islands = [
        range(int(first), int(first) + count)
        for first, count in zip(firsts, layout.counts[0], strict=False)
    ]
    for level in (islands, *layout.children[:-1]):
        above = []
        for inside in level:
            some = [heads[place] for place in inside]
            head = next((one for one in some if one in centres), some[turn % len(some)])
            edges += [(head, one) for one in some if one != head]
            above.append(head)
        heads = above
    return heads, edges
