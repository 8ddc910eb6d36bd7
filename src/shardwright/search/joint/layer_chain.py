"""The model as a chain of positions of one layer each; a pipeline may be cut between any two."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.tables.layers_by_chunk import block_facts
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.stages.chunk_contents import Content, run_lengths
from shardwright.strategy.grid.model_counts import layer_runs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """The model's blocks in order.

    Args:
        before, layers, after: blocks that come before the first layer and at its device, of every
            position, and behind the last layer: (position -> indices into the model's blocks; a
            block between two layers goes with the second).
        counts: (positions, blocks) of each position, ends included.
        inner: (positions, blocks) without them.
        redone: (positions, blocks) those that recompute applies to.
    """

    before: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    after: tuple[int, ...]
    counts: IntArray
    inner: IntArray
    redone: IntArray

    def __len__(self) -> int:
        return len(self.layers)

    def content(self, start: int, stop: int, *, first: bool, last: bool) -> Content:
        """Blocks of a chunk with the positions start to stop, in order as (block, count); the
        first and the last chunk also have the model's ends.
        """
        blocks = [
            *(self.before if first else ()),
            *(b for unit in self.layers[start:stop] for b in unit),
            *(self.after if last else ()),
        ]
        return run_lengths(blocks)


@lru_cache(maxsize=64)
def chain_of(model: Model) -> Chain:
    """The chain of `model`, with its blocks in the positions in which `program.stages.chunks`
    spreads them.
    """
    names = {run.name for run in layer_runs(model)}
    before: list[int] = []
    layers: list[tuple[int, ...]] = []
    waiting: list[int] = []
    for run in model.runs:
        for _ in range(run.count):
            if run.name not in names:
                (waiting if layers else before).append(run.block)
            else:
                layers.append((*waiting, run.block))
                waiting = []
    width = len(model.blocks)
    of = block_facts(model)
    layer = of.layer & ~of.head
    inner = np.zeros((len(layers), width), dtype=np.int64)
    for position, unit in enumerate(layers):
        np.add.at(inner[position], list(unit), 1)
    counts = inner.copy()
    np.add.at(counts[0], before, 1)
    np.add.at(counts[-1], waiting, 1)
    return Chain(
        before=tuple(before),
        layers=tuple(layers),
        after=tuple(waiting),
        counts=counts,
        inner=inner,
        redone=counts * layer[None, :],
    )
