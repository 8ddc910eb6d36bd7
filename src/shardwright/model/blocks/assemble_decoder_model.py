"""Assemble a decoder-only model: embedding, runs of equal layers, head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from shardwright.model.blocks.dense_blocks import embedding_block, head_block
from shardwright.model.blocks.multi_token_prediction import predictor_modules
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import Fields
from shardwright.model.ir.model_graph import Model, Run


def distinct(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Distinct blocks in order of first use; ValueError if two different blocks have one name."""
    blocks_by_name: dict[str, Block] = {}
    for block in blocks:
        if blocks_by_name.setdefault(block.name, block) != block:
            raise ValueError(f"two different blocks are named {block.name}")
    return tuple(blocks_by_name.values())


def layer_runs(layers: Sequence[Block]) -> tuple[tuple[str, Block, int], ...]:
    """(``layers`` or ``layers.<first>``, block, number) of each run of layers of one block name.

    The name is ``layers``, or ``layers.<first>`` if there are several runs.
    """
    stretches: list[tuple[int, Block, int]] = []
    start = 0
    for _, group in groupby(layers, key=lambda block: block.name):
        members = list(group)
        stretches.append((start, members[0], len(members)))
        start += len(members)
    if len(stretches) == 1:
        return (("layers", stretches[0][1], stretches[0][2]),)
    return tuple((f"layers.{first}", block, count) for first, block, count in stretches)


def decoder_model(
    *,
    embed: Block,
    layers: Sequence[Block],
    head: Block,
    hidden: int,
    vocab: int,
    max_context: int,
    predictors: Sequence[tuple[Block, Block]] = (),
) -> Model:
    """Build a decoder-only model: embedding, layers, prediction modules, head.

    Args:
        layers: one block per layer, the same object for equal layers; neighbouring equal
            layers become one run.
        predictors: multi-token-prediction modules in order, each (module, its head). The first
            reads the last layer, each other one the module before it; the main head comes last in
            the order of runs.
    """
    stretches = layer_runs(layers)
    blocks = distinct(
        [
            embed,
            *(block for _, block, _ in stretches),
            *(block for pair in predictors for block in pair),
            head,
        ]
    )
    index = {block.name: i for i, block in enumerate(blocks)}
    runs = [Run(name="embed", block=index[embed.name], count=1)]
    for run_name, block, count in stretches:
        runs.append(
            Run(name=run_name, block=index[block.name], count=count, inputs=(runs[-1].name,))
        )
    last = before = runs[-1].name
    for depth, (module, module_head) in enumerate(predictors):
        suffix = f".{depth}" if len(predictors) > 1 else ""
        runs.append(Run(name=f"mtp{suffix}", block=index[module.name], count=1, inputs=(before,)))
        before = runs[-1].name
        runs.append(
            Run(name=f"mtp_head{suffix}", block=index[module_head.name], count=1, inputs=(before,))
        )
    runs.append(Run(name="head", block=index[head.name], count=1, inputs=(last,)))
    return Model(
        blocks=blocks, runs=tuple(runs), hidden=hidden, vocab=vocab, max_context=max_context
    )


def configured_model(
    fields: Fields,
    *,
    layers: Sequence[Block],
    tied: bool = False,
    positions: int = 0,
    norm_bias: bool = False,
    embed_norm: bool = False,
    head_bias: bool = False,
    predicts: int = 0,
    predictor: Block | None = None,
) -> Model:
    """Build a decoder-only model around given layers; embedding and head come from the config.

    Args:
        layers: one block per layer.
        tied: the family's default of ``tie_word_embeddings``.
        positions: rows of a learned position table; 0 = none.
        embed_norm: add a norm after the embedding.
        norm_bias: use a LayerNorm with bias before the head.
        head_bias: add a bias to the logits.
        predicts: number of multi-token prediction modules.
        predictor: the layer inside each; None = the last layer's block.
    """
    hidden, vocab, tied = (
        fields.hidden(),
        fields.vocab(),
        fields.flag("tie_word_embeddings", default=tied),
    )
    return decoder_model(
        embed=embedding_block(
            hidden=hidden, vocab=vocab, positions=positions, norm_after=embed_norm
        ),
        layers=layers,
        head=head_block(hidden=hidden, vocab=vocab, tied=tied, norm_bias=norm_bias, bias=head_bias),
        hidden=hidden,
        vocab=vocab,
        max_context=fields.context(),
        predictors=predictor_modules(
            predicts, layer=predictor or layers[-1], hidden=hidden, vocab=vocab, tied=tied
        ),
    )


def blocks_of(kinds: Iterable[tuple[Any, ...]], build: Callable[..., Block]) -> list[Block]:
    """The block of each layer: `build(*kind)`, called once for each distinct entry of `kinds`."""
    listed = list(kinds)
    built = {kind: build(*kind) for kind in dict.fromkeys(listed)}
    return [built[kind] for kind in listed]
