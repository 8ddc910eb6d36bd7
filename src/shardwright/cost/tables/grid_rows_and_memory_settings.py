"""The table rows of a grid, and its memory choices."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.part_phase_recompute_keys import MODES
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable, MeshTable
from shardwright.cost.tables.pipeline_chunk_layout import ChunkLayout, first_layers
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Row numbers of a grid in the tables, and the layout of its blocks over the pipeline."""

    layers: LayerTable
    layer_row: int
    meshes: MeshTable
    mesh_row: int
    layout: ChunkLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoices:
    """Memory choices of some pipeline ranks: ZeRO stage, offload and recompute.

    Args:
        zero: ZeRO stage.
        offload: percent of the optimizer's states on the host.
        modes: (c, b, modes) blocks of each chunk under each recompute option (MODES).
        mode: the strongest one that is used.
    """

    zero: int
    offload: int
    modes: IntArray
    mode: int


def grid_choices(grid: Grid, layout: ChunkLayout) -> MemoryChoices:
    """The memory choices that a grid states, as block counts by recompute mode."""
    modes = np.zeros((*layout.counts.shape, len(MODES)), dtype=np.int64)
    if grid.recompute is Recompute.FULL:
        modes[:, :, 2] = first_layers(layout, grid.recompute_layers)
    elif grid.recompute is Recompute.SELECTIVE:
        modes[:, :, 1] = layout.counts * layout.layer
    elif grid.host:
        modes[:, :, 3] = first_layers(layout, grid.host)
    modes[:, :, 0] = layout.counts - modes.sum(axis=2)
    return MemoryChoices(
        zero=grid.zero,
        offload=grid.offload,
        modes=modes,
        mode=MODES.index("host" if grid.host else grid.recompute.value),
    )
