"""Blocks of each pipeline chunk of a grid: layers, and the blocks before and after them.

Layers are spread by `chunk_layers`, the blocks before and after them are at the ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from shardwright.model.ir.model_graph import Model, Run
from shardwright.strategy.grid.layers_per_chunk import chunk_layers, teacher_chunks
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import layer_runs, num_layers

Content = tuple[tuple[int, int], ...]
"""A chunk's blocks in order: (index into the model's blocks, count)."""


@lru_cache(maxsize=4096)
def chunk_contents(
    model: Model, *, pp: int, vpp: int, first: int = 0, last: int = 0, layers: tuple[int, ...] = ()
) -> tuple[Content, ...]:
    """Blocks of each pipeline chunk, as (block, count); `first`, `last`: layers on an end rank.

    A block that is no layer (embedding, projector, head) goes with the layer that follows it;
    blocks behind the last layer go with the last chunk. A teacher's blocks come first in each
    chunk.
    """
    sizes = chunk_layers(num_layers(model), pp=pp, vpp=vpp, first=first, last=last, layers=layers)
    of_teacher = [run for run in model.runs if model.blocks[run.block].is_of_teacher]
    student_chunks = _blocks_by_chunk(
        [run for run in model.runs if run not in of_teacher],
        sizes,
        {run.name for run in layer_runs(model)},
    )
    if not of_teacher:
        return tuple(map(run_lengths, student_chunks))
    teacher_layer_names = {
        run.name for run in of_teacher if not model.blocks[run.block].has_vocabulary
    }
    teacher_blocks = _blocks_by_chunk(
        of_teacher, teacher_chunks(model.teacher_layers, chunks=len(sizes)), teacher_layer_names
    )
    return tuple(
        run_lengths([*teachers_blocks, *student_blocks])
        for teachers_blocks, student_blocks in zip(teacher_blocks, student_chunks, strict=True)
    )


def _blocks_by_chunk(
    runs: Sequence[Run], sizes: tuple[int, ...], layer_names: set[str]
) -> list[list[int]]:
    """Block indices by chunk of `sizes` layers each; `layer_names`: runs that count as layers."""
    chunk_of_layer = [chunk for chunk, size in enumerate(sizes) for _ in range(size)]
    chunks: list[list[int]] = [[] for _ in sizes]
    placed = 0
    for run in runs:
        for _ in range(run.count):
            if run.name in layer_names:
                chunk = chunk_of_layer[placed]
                placed += 1
            elif placed < len(chunk_of_layer):
                chunk = chunk_of_layer[placed] if placed else 0
            else:
                chunk = len(sizes) - 1
            chunks[chunk].append(run.block)
    return chunks


def run_lengths(blocks: list[int]) -> Content:
    """Run-length encoding of a list of blocks, as (block, count)."""
    return tuple([(block, len(list(same))) for block, same in groupby(blocks)])
