"""All-reduces along spanning trees made for one group, priced by rounds of messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective, require_kind
from shardwright.collectives.groups.links_of_one_group import Layout, layouts_of, link_seconds
from shardwright.collectives.groups.span_cost_quantities import span_quantities
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.collectives.messages import all_reduce_trees_over_unequal_links as pairwise_trees
from shardwright.collectives.messages import (
    binomial_all_reduce_tree_over_network_units as unit_tree,
)
from shardwright.collectives.messages import build_spanning_forest_of_all_reduce as spanning_forest
from shardwright.collectives.messages.pipelined_tree_all_reduce_schedule import (
    PARTS,
    Tree,
    tree_all_reduce,
    tree_lines,
)
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAlgorithm:
    """A `CollectiveAlgorithm` for all-reduces along spanning trees of a group.

    Args:
        name: registry name.
        trees: trees of a group, with their shares of the buffer.
        most: members of the largest group.
        legal: whether a group of several members can run the algorithm.
    """

    name: str
    trees: Callable[[Layout], tuple[Tree, ...]]
    most: int
    legal: Callable[[Layout], bool]
    kinds: frozenset[Collective] = frozenset({Collective.ALL_REDUCE})

    def seconds(self, kind: Collective, *, volume: FloatArray, span: Span) -> FloatArray:
        """Seconds of a tree all-reduce for each group: the least over numbers of pipelined parts.

        inf where the algorithm does not apply; 0 for one member.

        min over P of (alpha_P + V beta_P), see `pipelined_tree_all_reduce_schedule`.

        Args:
            volume: bytes of the full buffer on the wire, shape (n,) or (1,).
        """
        require_kind(self, kind)
        alpha, beta, rows = _lines_over(self, span)
        if rows is not None:
            alpha, beta = alpha[rows], beta[rows]
        seconds: FloatArray = (alpha + beta * np.asarray(volume, dtype=np.float64)[:, None]).min(
            axis=1
        )
        return seconds

    def wire_bytes(
        self, kind: Collective, *, volume: FloatArray, span: Span
    ) -> tuple[FloatArray, ...]:
        """Bytes that the busiest member of a tree all-reduce sends over each tier's links.

        Over a unit's uplink, its part of them.
        """
        require_kind(self, kind)
        quantities = span_quantities(span)
        shares = (
            np.array([self._sent_by_tier(layout) for layout in layouts_of(quantities.prepared)])
            .reshape(-1, len(span.below))
            .T
        )
        return tuple(
            (share if quantities.rows is None else share[quantities.rows]) * volume
            for share in shares
        )

    def lines(self, layout: Layout) -> tuple[FloatArray, FloatArray]:
        """(latency, seconds a byte) of a tree all-reduce by number of parts; inf where illegal."""
        if not self._is_legal(layout):
            return np.full(len(PARTS), np.inf), np.zeros(len(PARTS))
        return (
            tree_lines(layout, self.trees(layout))
            if layout.size > 1
            else (np.zeros(len(PARTS)), np.zeros(len(PARTS)))
        )

    def _is_legal(self, layout: Layout) -> bool:
        """True if tree all-reduce can run on the group: legal layout, at most `most` members."""
        return layout.size == 1 or (layout.size <= self.most and self.legal(layout))

    def _sent_by_tier(self, layout: Layout) -> list[float]:
        """Bytes that a tree all-reduce's busiest member sends over each tier, a byte of buffer."""
        if layout.size == 1 or not self._is_legal(layout):
            return [0.0] * len(layout.share)
        schedule = tree_all_reduce(self.trees(layout))
        no_latency = np.zeros_like(schedule.round)
        busy = link_seconds(
            layout,
            schedule.source,
            schedule.target,
            np.array(schedule.shares)[schedule.piece],
            no_latency,
            1,
        )[0]
        ends = np.cumsum([0, *layout.links])
        return [
            float(busy[low:high].max()) * rate
            for low, high, rate in zip(ends, ends[1:], layout.share, strict=False)
        ]


@lru_cache(maxsize=16384)
def _lines_over(
    algorithm: TreeAlgorithm, span: Span
) -> tuple[FloatArray, FloatArray, IntArray | None]:
    """(latency, seconds a byte) by (distinct group, part count); row of each group, None = its own.

    As one span is priced many times.
    """
    quantities = span_quantities(span)
    lines_of_groups = np.array(
        [algorithm.lines(layout) for layout in layouts_of(quantities.prepared)]
    ).reshape(-1, 2, len(PARTS))
    return lines_of_groups[:, 0], lines_of_groups[:, 1], quantities.rows


TREE = TreeAlgorithm(
    name="tree",
    trees=unit_tree.binomial_unit_tree,
    most=unit_tree.MOST_MEMBERS,
    legal=lambda _: True,
)
FOREST = TreeAlgorithm(
    name="forest",
    trees=spanning_forest.forest_of,
    most=spanning_forest.MOST_MEMBERS,
    legal=lambda layout: not layout.is_even,
)
PAIRED = TreeAlgorithm(
    name="paired",
    trees=pairwise_trees.paired_trees,
    most=pairwise_trees.MOST_MEMBERS,
    legal=lambda layout: layout.between is not None,
)
