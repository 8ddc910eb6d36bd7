"""Algorithms that are schedules: the sums along trees that a layout is given, priced by their rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives import forest, tree
from shardwright.collectives.algorithm import Collective, require
from shardwright.collectives.extent import extent_of
from shardwright.collectives.layout import Layout, layouts_of, link_seconds
from shardwright.collectives.span import Span
from shardwright.collectives.tree_schedule import PARTS, Tree, tree_lines, tree_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAlgorithm:
    """A `CollectiveAlgorithm` for sums along trees.

    Args:
        name: registry name. trees: of a group, with their shares of the buffer. most: members of the largest group.
    """

    name: str
    trees: Callable[[Layout], tuple[Tree, ...]]
    most: int
    kinds: frozenset[Collective] = frozenset({Collective.ALL_REDUCE})

    def seconds(self, kind: Collective, *, volume: FloatArray, span: Span) -> FloatArray:
        """Seconds for each group of `span`: the least over numbers of parts; inf for too many members; 0 for one.

        min over P of (alpha_P + V beta_P), see `tree_schedule`.

        Args:
            volume: bytes of the full buffer on the wire, shape (n,) or (1,).
        """
        require(self, kind)
        extent = extent_of(span)
        alpha, beta = (np.stack(column) for column in zip(*map(self._lines, layouts_of(extent.prepared)), strict=True))
        if extent.rows is not None:
            alpha, beta = alpha[extent.rows], beta[extent.rows]
        result: FloatArray = (alpha + beta * np.asarray(volume, dtype=np.float64)[:, None]).min(axis=1)
        return result

    def wire_bytes(self, kind: Collective, *, volume: FloatArray, span: Span) -> tuple[FloatArray, ...]:
        """Bytes that the busiest member sends over each tier's links, or of its unit's uplink its part."""
        require(self, kind)
        extent = extent_of(span)
        shares = np.array([self._sent(layout) for layout in layouts_of(extent.prepared)]).T
        return tuple((share if extent.rows is None else share[extent.rows]) * volume for share in shares)

    def _lines(self, layout: Layout) -> tuple[FloatArray, FloatArray]:
        if layout.size > self.most:
            return np.full(len(PARTS), np.inf), np.zeros(len(PARTS))
        return tree_lines(layout, self.trees(layout)) if layout.size > 1 else (np.zeros(len(PARTS)), np.zeros(len(PARTS)))

    def _sent(self, layout: Layout) -> list[float]:
        if not 1 < layout.size <= self.most:
            return [0.0] * len(layout.share)
        once = tree_sum(self.trees(layout))
        one = np.zeros_like(once.round)
        busy = link_seconds(layout, once.source, once.target, np.array(once.shares)[once.piece], one, 1)[0]
        ends = np.cumsum([0, layout.size, *([layout.size] * (len(layout.share) > 1)), *map(len, layout.units[1:])])
        return [float(busy[low:high].max()) * rate for low, high, rate in zip(ends, ends[1:], layout.share, strict=False)]


TREE = TreeAlgorithm(name="tree", trees=tree.tree_of, most=tree.MOST_MEMBERS)
FOREST = TreeAlgorithm(name="forest", trees=forest.forest_of, most=forest.MOST_MEMBERS)
