"""Qwen3-Next and the language models of Qwen3.5 and 3.6: gated delta nets with a gated softmax attention in every fourth layer."""

from __future__ import annotations

from shardwright.model.blocks.decoder import decoder_model, untied
from shardwright.model.blocks.dense import embedding_block, head_block, layer_block, mlp_operators
from shardwright.model.blocks.experts import moe_operators
from shardwright.model.blocks.linear_attention import delta_operators, delta_shape, gated_attention_operators
from shardwright.model.blocks.predictor import predictor_block
from shardwright.model.families.deepseek import expert_shape
from shardwright.model.families.hybrid import grouped_shape
from shardwright.model.families.moe import sparse_by_step
from shardwright.model.ir.block import Block
from shardwright.model.ir.fields import MAX_LAYERS, Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import Operator

LINEAR, FULL = "linear_attention", "full_attention"


def build_qwen3_next(fields: Fields, *, name: str) -> Model:
    """Qwen3-Next (`Qwen3NextConfig`: untied, no biases): experts with a gated shared one in every layer but ``mlp_only_layers``."""
    sparse = sparse_by_step(fields, layers=fields.layers())
    return _build(fields, name=name, architecture="Qwen3NextForCausalLM", sparse=sparse)


def build_qwen3_5(fields: Fields, *, name: str) -> Model:
    """The language model of Qwen3.5 and 3.6, dense."""
    return _build(fields, name=name, architecture="Qwen3_5ForCausalLM", sparse=(False,) * fields.layers())


def build_qwen3_5_moe(fields: Fields, *, name: str) -> Model:
    """The language model of Qwen3.5 and 3.6 with experts in every layer."""
    return _build(fields, name=name, architecture="Qwen3_5MoeForCausalLM", sparse=(True,) * fields.layers())


def _build(fields: Fields, *, name: str, architecture: str, sparse: tuple[bool, ...]) -> Model:
    kinds = _kinds(fields)
    pairs = list(zip(kinds, sparse, strict=True))
    blocks = {pair: _layer(fields, linear=pair[0] == LINEAR, sparse=pair[1]) for pair in dict.fromkeys(pairs)}
    hidden, vocab, tied = fields.hidden(), fields.vocab(), untied(fields)
    predictors: tuple[tuple[Block, Block], ...] = ()
    if fields.integer("mtp_num_hidden_layers", minimum=0, maximum=1, default=0):
        if fields.flag("mtp_use_dedicated_embeddings", default=False):
            fields.unsupported("mtp_use_dedicated_embeddings = true")
        # The prediction module's one layer attends to all keys, whatever the last layer of the model is.
        layer = _layer(fields, linear=False, sparse=sparse[-1])
        owner = "embed.embed.weight" if tied else "head.logits.weight"
        head = head_block(hidden=hidden, vocab=vocab, tied=True, tied_to=owner, name="mtp_head")
        predictors = ((predictor_block("mtp", layer=layer, hidden=hidden, vocab=vocab), head),)
    return decoder_model(
        name,
        architecture=architecture,
        embed=embedding_block(hidden=hidden, vocab=vocab),
        layers=[blocks[pair] for pair in pairs],
        head=head_block(hidden=hidden, vocab=vocab, tied=tied),
        hidden=hidden,
        vocab=vocab,
        max_context=fields.context(),
        predictors=predictors,
    )


def _kinds(fields: Fields) -> tuple[str, ...]:
    """Kind of each layer: ``layer_types``, or every ``full_attention_interval``-th layer attends to all keys."""
    layers = fields.layers()
    kinds = fields.layer_types(layers=layers, allowed=(LINEAR, FULL))
    if kinds:
        return kinds
    interval = fields.integer("full_attention_interval", maximum=MAX_LAYERS)
    return tuple(FULL if (i + 1) % interval == 0 else LINEAR for i in range(layers))


def _layer(fields: Fields, *, linear: bool, sparse: bool) -> Block:
    hidden = fields.hidden()
    if linear:
        mixer = delta_operators(source="norm1", hidden=hidden, shape=delta_shape(fields))
    else:
        if not fields.flag("attn_output_gate", default=True):
            fields.unsupported("attn_output_gate = false in this family")
        shape = grouped_shape(fields, head_dim=fields.head_dim())
        mixer = gated_attention_operators(source="norm1", hidden=hidden, shape=shape, bias=fields.flag("attention_bias", default=False))
    name = (LINEAR if linear else FULL).removesuffix("_attention") + ("_moe" if sparse else "")
    return layer_block(name, hidden=hidden, attention=mixer, feed_forward=_feed_forward(fields, sparse=sparse))


def _feed_forward(fields: Fields, *, sparse: bool) -> tuple[Operator, ...]:
    hidden = fields.hidden()
    if not sparse:
        return mlp_operators(source="norm2", hidden=hidden, ffn=fields.ffn(), gated=True)
    return moe_operators(
        source="norm2",
        hidden=hidden,
        ffn=fields.ffn("moe_intermediate_size"),
        experts=expert_shape(fields),
        shared_ffn=fields.ffn("shared_expert_intermediate_size"),
        shared_gate=True,
    )
