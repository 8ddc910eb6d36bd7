"""All-reduce by a forest of spanning trees whose edges are spread over the members.

The trees have the degrees of `compute_fastest_spanning_tree_degrees`.

The buffer is a line from 0 to 1; at each place of it a tree is cut out, and between places where
some choice changes the tree is the same:

    units beside each other: mean edges D_u - 1 above one laid end to end; place t of each whole
                                length falls to the unit under it
    edges of a unit:         laid end to end along the line, over the units (at last members)
                                inside it by their part of them
    inside an island:        a star whose centre moves from member to member

so every unit has its mean number of edges over the line, in each tree that number rounded up or
down.

For groups whose units are not all equal: over equal ones rings and double trees need no more than
(n - 1)/n of twice the buffer through a unit's links, and a group of as many members over more,
unequal units needs that at least.

Left out: latency (few large trees are made, not short ones; `tree` is for small buffers), groups of
more than `MOST_MEMBERS`.

Sources: Zhao et al. 2024, "ForestColl" (arXiv:2402.06787); McNaughton 1959 (Management Science 6)
for edges laid end to end.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from shardwright.collectives.groups.links_of_one_group import Layout
from shardwright.collectives.messages.compute_fastest_spanning_tree_degrees import (
    Packing,
    packing_of,
)
from shardwright.collectives.messages.pipelined_tree_all_reduce_schedule import (
    Tree,
    middle_member,
    rooted_tree,
)

MOST_MEMBERS: Final = 64
_LEAST_SHARE: Final = 1e-9
Unit = tuple[int, int]
"""Tier and number; members are units of tier -1."""


@dataclass(slots=True)
class _Strips:
    """Edges that leave a unit, along the buffer: their number and their length up to there.

    The number from each place on.
    """

    start: list[float]
    count: list[int]
    before: list[float]


@dataclass(slots=True)
class _Forest:
    """Builder of the spanning trees of a group: edges of every unit, laid along the buffer."""

    layout: Layout
    packing: Packing
    cuts: list[float] = field(default_factory=lambda: [0.0, 1.0])
    strips: dict[Unit, _Strips] = field(default_factory=dict)

    def inside(self, unit: Unit) -> range:
        """Numbers of the units one tier below that `unit` holds; of an island, its members."""
        tier, number = unit
        if tier > 0:
            return self.layout.children[tier - 1][number]
        first = sum(self.layout.counts[0][:number])
        return range(first, first + self.layout.counts[0][number])

    def cumulative_edges(self, unit: Unit) -> list[float]:
        """Running sum, from 0, of mean edges that leave `unit`, by the unit inside that they leave.

        As part of those that leave this one.
        """
        tier, number = unit
        inside = self.inside(unit)
        above = float(self.packing.total[tier][number])
        parts = np.full(len(inside), above / len(inside))
        if tier > 0:
            span = slice(inside.start, inside.stop)
            parts = self.packing.total[tier - 1][span] - self.packing.inner[tier - 1][span]
        ends = np.cumsum(parts)
        return [0.0, *(ends[:-1] * (above / ends[-1] if ends[-1] > 0.0 else 0.0)).tolist(), above]

    def sibling_edges(self, parent: Unit, place: float) -> list[int]:
        """By unit inside `parent`, number of edges to its siblings, at buffer `place` (0 to 1).

        In the tree at `place` of the buffer.
        """
        inside = self.inside(parent)
        if len(inside) == 1:
            return [0]
        ends = np.cumsum(self.packing.inner[parent[0] - 1][inside.start : inside.stop] - 1.0)
        ends[-1] = round(float(ends[-1]))
        marks = np.floor(np.concatenate([[0.0], ends]) + place).astype(int)
        return [int(1 + b - a) for a, b in pairwise(marks)]

    def cut_at_sibling_changes(self, parent: Unit) -> None:
        """Cut the buffer at each place where the units inside `parent` change `sibling_edges`."""
        inside = self.inside(parent)
        if len(inside) > 1:
            ends = np.cumsum(self.packing.inner[parent[0] - 1][inside.start : inside.stop] - 1.0)[
                :-1
            ]
            self.cuts += (1.0 - ends % 1.0).tolist()

    def owners(self, unit: Unit, place: float) -> list[int]:
        """By edge leaving `unit`, the index inside of the unit left, at buffer `place` (0 to 1).

        In the tree at `place`; units inside are 0, 1, ..
        """
        strips, ends = self.strips[unit], self.cumulative_edges(unit)
        strip = bisect_right(strips.start, place) - 1
        length = (strips.start[strip + 1] if strip + 1 < len(strips.start) else 1.0) - strips.start[
            strip
        ]
        first_edge = strips.before[strip] + place - strips.start[strip]
        scale = ends[-1] / max(
            strips.before[-1] + strips.count[-1] * (1.0 - strips.start[-1]), 1e-300
        )
        return [
            min(
                max(bisect_right(ends, (first_edge + number * length) * scale) - 1, 0),
                len(ends) - 2,
            )
            for number in range(strips.count[strip])
        ]

    def leaving_edges(self, parent: Unit, place: float) -> list[int]:
        """Number of edges that leave each unit inside `parent`, at buffer `place` (0 to 1)."""
        edges = self.sibling_edges(parent, place)
        if parent in self.strips:
            for owner in self.owners(parent, place):
                edges[owner] += 1
        return edges

    def lay_edges(self, parent: Unit) -> None:
        """Lay out edges of units inside `parent` along the buffer; cut it where edges change owner.

        Where an edge passes from a unit inside one to the next.
        """
        starts = sorted({cut for cut in self.cuts if cut < 1.0})
        middles = [(a + b) / 2 for a, b in pairwise([*starts, 1.0])]
        counts = [self.leaving_edges(parent, place) for place in middles]
        for index, number in enumerate(self.inside(parent)):
            unit = parent[0] - 1, number
            column = [count[index] for count in counts]
            lengths = [b - a for a, b in pairwise([*starts, 1.0])]
            before = [0.0, *np.cumsum(np.multiply(column, lengths)).tolist()]
            self.strips[unit] = _Strips(start=starts, count=column, before=before[:-1])
            ends = self.cumulative_edges(unit)
            scale = before[-1] / ends[-1] if ends[-1] > 0.0 else 1.0
            for start, length, count, low in zip(starts, lengths, column, before, strict=False):
                for edge in range(count):
                    self.cuts += [
                        start + end * scale - low - edge * length
                        for end in ends[1:-1]
                        if 0.0 < end * scale - low - edge * length < length
                    ]

    def member(self, unit: Unit, edge: int, place: float) -> int:
        """Member from which edge number `edge` of `unit` starts, at buffer `place` (0 to 1)."""
        while True:
            owners = self.owners(unit, place)
            owner, inside = owners[edge], self.inside(unit)
            if unit[0] == 0:
                return inside[owner]
            edge = self.sibling_edges(unit, place)[owner] + owners[:edge].count(owner)
            unit = unit[0] - 1, inside[owner]

    def tree(self, place: float) -> list[tuple[int, int]]:
        """(member, member) edges of the spanning tree at `place`, from 0 to 1, of the buffer."""
        edges = []
        for tier in range(len(self.layout.children), 0, -1):
            for number in range(len(self.layout.children[tier - 1])):
                inside, beside = (
                    self.inside((tier, number)),
                    self.sibling_edges((tier, number), place),
                )
                used = [0] * len(inside)
                for unit_beside, other_beside in _tree_of_degrees(beside):
                    ends = []
                    for unit in (unit_beside, other_beside):
                        ends.append(self.member((tier - 1, inside[unit]), used[unit], place))
                        used[unit] += 1
                    edges.append((ends[0], ends[1]))
        for number in range(len(self.layout.counts[0])):
            inside = self.inside((0, number))
            centre = inside[min(int(place * len(inside)), len(inside) - 1)]
            edges += [(centre, other_beside) for other_beside in inside if other_beside != centre]
        return edges


def _tree_of_degrees(degrees: list[int]) -> list[tuple[int, int]]:
    """Edges of a tree with the given degrees, of little height: units of many edges come first.

    Units of many edges are near the top.
    """
    order = sorted(range(len(degrees)), key=lambda unit: (-degrees[unit], unit))
    edges: list[tuple[int, int]] = []
    free = [(order[0], degrees[order[0]])] if len(order) > 1 else []
    place = 0
    for unit in order[1:]:
        parent, edges_left = free[place]
        edges.append((parent, unit))
        free[place] = (parent, edges_left - 1)
        free.append((unit, degrees[unit] - 1))
        while place < len(free) - 1 and free[place][1] == 0:
            place += 1
    return edges


@lru_cache(maxsize=1024)
def forest_of(layout: Layout) -> tuple[Tree, ...]:
    """Spanning trees, with shares of the buffer, that fill links equally fast (cached)."""
    forest = _Forest(layout=layout, packing=packing_of(layout))
    for tier in range(len(layout.children), 0, -1):
        for number in range(len(layout.children[tier - 1])):
            forest.cut_at_sibling_changes((tier, number))
        for number in range(len(layout.children[tier - 1])):
            forest.lay_edges((tier, number))
    for count in set(layout.counts[0]):
        forest.cuts += [member / count for member in range(1, count)]
    ends = [0.0]
    for cut in sorted(cut for cut in forest.cuts if 0.0 < cut < 1.0):
        if cut - ends[-1] > _LEAST_SHARE and 1.0 - cut > _LEAST_SHARE:
            ends.append(cut)
    shares: dict[tuple[tuple[int, int], ...], float] = {}
    for low, high in pairwise([*ends, 1.0]):
        edges = tuple(sorted((min(edge), max(edge)) for edge in forest.tree((low + high) / 2)))
        shares[edges] = shares.get(edges, 0.0) + high - low
    return tuple(
        rooted_tree(share, list(edges), middle_member(list(edges)))
        for edges, share in shares.items()
    )
