"""The model as a chain of one-layer positions, between any two of which a pipeline may be cut."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.tables.pipeline_chunk_layout import block_facts
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.stages.blocks_of_pipeline_chunks import Content, run_lengths
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import layer_runs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """Layer chain of a model: its blocks in order, as positions of one layer each.

    Args:
        before: indices of the blocks before the first layer, on its device.
        layers: indices of the blocks of every position; a block between two layers belongs to the
            second.
        after: indices of the blocks after the last layer.
        counts: (positions, blocks) blocks of each position, ends included.
        inner: (positions, blocks) the same without the ends.
        redone: (positions, blocks) blocks that recomputation applies to.
    """

    before: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    after: tuple[int, ...]
    counts: IntArray
    inner: IntArray
    redone: IntArray

    def __len__(self) -> int:
        """Number of positions."""
        return len(self.layers)

    def content(self, start: int, stop: int, *, first: bool, last: bool) -> Content:
        """Blocks of a chunk with the positions start .. stop - 1, in order as (block, count).

        The first and the last chunk also have the model's ends.
        """
        blocks = [
            *(self.before if first else ()),
            *(b for unit in self.layers[start:stop] for b in unit),
            *(self.after if last else ()),
        ]
        return run_lengths(blocks)


@lru_cache(maxsize=64)
def chain_of(model: Model) -> Chain:
    """The layer chain of a model, with the positions over which its layers are spread."""
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
