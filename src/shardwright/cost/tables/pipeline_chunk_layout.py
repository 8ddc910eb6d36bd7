"""Layout of a model's blocks over pipeline chunks, as matrices.

Composing a step needs the layout for (pp, vpp), and no degrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.tensors_without_gradient import has_backward
from shardwright.program.identity_cache_keys import Same
from shardwright.program.stages.blocks_of_pipeline_chunks import Content, chunk_contents


@lru_cache(maxsize=1024)
def has_trained(block: Block) -> bool:
    """True if some parameter of the block has a gradient."""
    return any(p.trainable for o in block.operators for p in o.parameters)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkLayout:
    """Blocks of each pipeline chunk as matrices; equal only to itself.

    c = chunk, r = pipeline rank, b = block of the model.

    Args:
        contents: blocks of each chunk in order.
        counts: (c, b).
        layer, unit, head: (b,) True for blocks that are layers, that ZeRO-3 gathers by themselves
            (see `is_unit`), that compute logits.
        first: (c,) the first block of each chunk.
        turned, reduced, sent: see `first_backward_block`, `last_reduced_block`, `sent_stream`.
        by_rank: (r, b) blocks of each rank.
        streams: number of different ones that the model has.
        pp, vpp: ranks, and chunks a rank.
    """

    contents: tuple[Content, ...]
    counts: IntArray
    layer: BoolArray
    unit: BoolArray
    head: BoolArray
    first: IntArray
    turned: IntArray
    reduced: IntArray
    sent: IntArray
    streams: int
    by_rank: IntArray
    pp: int
    vpp: int


def is_unit(block: Block) -> bool:
    """True if ZeRO-3 gathers and frees the block by itself: any without a vocabulary.

    A teacher's layers too; embeddings and heads are roots.
    """
    return not block.has_vocabulary


class BlockFacts(NamedTuple):
    """Facts of every block of a model: layer, head, backward, trained parameters, stream.

    As in `ChunkLayout`.

    Args:
        stream: (b,) number of the stream of its output: outputs with as many tokens of as many
            elements are one. -1 = a teacher's.
    """

    layer: BoolArray
    unit: BoolArray
    head: BoolArray
    back: list[bool]
    trained: list[bool]
    stream: IntArray


def block_facts(model: Model) -> BlockFacts:
    """For every block: layer, head, backward, trained parameters and stream (cached)."""
    return _block_facts(Same(model))


@lru_cache(maxsize=64)
def _block_facts(model: Same[Model]) -> BlockFacts:
    """The facts of a model's blocks (cached by the model's identity)."""
    blocks = model.value.blocks
    return BlockFacts(
        layer=np.array([b.is_layer for b in blocks]),
        unit=np.array([is_unit(b) for b in blocks]),
        head=np.array([b.has_head for b in blocks]),
        back=[has_backward(b) for b in blocks],
        trained=[has_trained(b) for b in blocks],
        stream=_streams(blocks),
    )


def _streams(blocks: Sequence[Block]) -> IntArray:
    """(b,) number of the hidden-state stream that each block writes; -1 = a teacher's."""
    number: dict[tuple[str, int], int] = {}
    # A block that writes no hidden state ends the model, and sends nothing on.
    keys = [None if b.is_of_teacher else (b.sequence, b.output_width) for b in blocks]
    return np.array(
        [
            -1 if key is None else number.setdefault(key, len(number)) if key[1] else 0
            for key in keys
        ],
        dtype=np.int64,
    )


def first_backward_block(model: Model, contents: Sequence[Content]) -> IntArray:
    """(c,) index in `model.blocks` of each chunk's last block with a backward, else its last.

    The last block with any backward; the last of all where none has any.
    """
    back = block_facts(model).back
    blocks = []
    for content in contents:
        place = content[-1][0] if content else 0
        for block, _ in reversed(content):
            if back[block]:
                place = block
                break
        blocks.append(place)
    return np.array(blocks, dtype=np.int64)


def last_reduced_block(model: Model, contents: Sequence[Content]) -> IntArray:
    """(c,) index in `model.blocks` of each chunk's first block with a trained parameter, or first.

    The first block with any trained parameter; the first of all where none has any.
    """
    trained = block_facts(model).trained
    blocks = []
    for content in contents:
        place = content[0][0] if content else 0
        for block, _ in content:
            if trained[block]:
                place = block
                break
        blocks.append(place)
    return np.array(blocks, dtype=np.int64)


def sent_stream(model: Model, contents: Sequence[Content]) -> IntArray:
    """(c,) number of the hidden-state stream that each chunk sends to the next chunk.

    The output of its last block, a teacher's left out.
    """
    stream = block_facts(model).stream
    student_blocks = [[block for block, _ in content if stream[block] >= 0] for content in contents]
    return np.array(
        [stream[blocks[-1]] if blocks else 0 for blocks in student_blocks], dtype=np.int64
    )


def layout_of(
    model: Model, *, pp: int, vpp: int, first: int = 0, last: int = 0, layers: tuple[int, ...] = ()
) -> ChunkLayout:
    """Layout on pp x vpp chunks (cached; `first`, `last`: end ranks' layers), or StrategyError.

    The same object for the same arguments, as every row of options and every mesh needs it.

    Raises:
        StrategyError: layers do not divide (rule ``grid.layers``).
    """
    layout_or_error = _layout_of(Same(model), pp, vpp, first, last, layers)
    if isinstance(layout_or_error, StrategyError):
        raise layout_or_error.with_traceback(None)
    return layout_or_error


@lru_cache(maxsize=8192)
def _layout_of(
    keyed_model: Same[Model], pp: int, vpp: int, first: int, last: int, layers: tuple[int, ...]
) -> ChunkLayout | StrategyError:
    """Layout on pp x vpp chunks (`first`, `last`: end ranks' layers), or its error (cached)."""
    model = keyed_model.value
    try:
        contents = chunk_contents(model, pp=pp, vpp=vpp, first=first, last=last, layers=layers)
    except StrategyError as error:
        return error.with_traceback(None)
    counts = np.zeros((len(contents), len(model.blocks)), dtype=np.int64)
    for c, content in enumerate(contents):
        for block, count in content:
            counts[c, block] += count
    facts = _block_facts(keyed_model)
    return ChunkLayout(
        contents=contents,
        counts=counts,
        layer=facts.layer,
        unit=facts.unit,
        head=facts.head,
        first=np.array([content[0][0] if content else 0 for content in contents], dtype=np.int64),
        turned=first_backward_block(model, contents),
        reduced=last_reduced_block(model, contents),
        sent=sent_stream(model, contents),
        streams=int(facts.stream.max()) + 1,
        by_rank=counts.reshape(vpp, pp, -1).sum(axis=0),
        pp=pp,
        vpp=vpp,
    )


def first_layers(layout: ChunkLayout, layers: int) -> IntArray:
    """(c, b) number of blocks of each chunk that are among its first `layers` layers; 0 = all."""
    all_layers = layout.counts * layout.layer
    if not layers or layers >= all_layers.sum(axis=1).max():
        return all_layers
    if int(layout.layer.sum()) == 1:
        return np.minimum(all_layers, layers)
    chosen = np.zeros_like(all_layers)
    for c, content in enumerate(layout.contents):
        remaining = layers
        for block, count in content:
            taken = min(remaining, count) if layout.layer[block] else 0
            chosen[c, block] += taken
            remaining -= taken
    return chosen
