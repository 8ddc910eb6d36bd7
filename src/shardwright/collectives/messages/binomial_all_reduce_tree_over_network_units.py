"""One binomial all-reduce tree over a hierarchy of network units, also unequal ones.

Sums go up from unit to unit and come down again, in parts.

In every unit the first member is its head. Heads of the units in one unit, at last members of an
island, form a binomial tree: the member that stands at place p behind the head sends to the place
without p's lowest set bit. With all of the buffer in one part

    seconds = 2 x sum over tiers of ceil(log2 m_k) (latency_k + V / bandwidth_k)

for equal units, m_k of them in each unit of tier k; for others, and in parts, the seconds of the
rounds of `pipelined_tree_all_reduce_schedule`: small buffers go in few rounds, larger ones in
parts that follow one another. The heads' links carry every byte: rings and forests are faster for
large buffers. Left out: groups of more than `MOST_MEMBERS`.

Sources: Thakur, Rabenseifner & Gropp 2005 (IJHPCA 19), section 4.2 (binomial tree; number from
memory); Xiong et al. 2024, "Revisiting the time cost model of AllReduce" (arXiv:2409.04202), for
sums on trees of switches (abstract).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from shardwright.collectives.groups.links_of_one_group import Layout
from shardwright.collectives.messages.pipelined_tree_all_reduce_schedule import Tree, rooted_tree

MOST_MEMBERS: Final = 512


@lru_cache(maxsize=1024)
def binomial_unit_tree(layout: Layout) -> tuple[Tree, ...]:
    """One binomial tree of units, each with a binomial tree inside, rooted at the first member."""
    heads, edges = list(range(layout.size)), []
    islands = [
        range(first, first + count)
        for first, count in zip(_starts(layout.counts[0]), layout.counts[0], strict=True)
    ]
    for units in (islands, *layout.children):
        for inside in units:
            edges += [
                (heads[inside[place]], heads[inside[place & (place - 1)]])
                for place in range(1, len(inside))
            ]
        heads = [heads[inside[0]] for inside in units]
    return (rooted_tree(1.0, edges, heads[0]),)


def _starts(counts: tuple[int, ...]) -> list[int]:
    """Number of the first member of each unit: the sum of the `counts` before it."""
    return [sum(counts[:number]) for number in range(len(counts))]
