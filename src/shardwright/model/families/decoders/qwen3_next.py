"""Builders of Qwen3-Next and Qwen3.5/3.6 language models: gated delta nets and gated attention."""

from __future__ import annotations

from functools import partial

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import grouped_shape, mlp_operators
from shardwright.model.blocks.gated_delta_net_and_gated_attention import (
    delta_operators,
    delta_shape,
    gated_attention_operators,
)
from shardwright.model.families.decoders.mixture_of_experts import (
    qwen_moe_operators,
    sparse_by_step,
)
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import MAX_LAYERS, Fields
from shardwright.model.ir.model_graph import Model

LINEAR, FULL = "linear_attention", "full_attention"


def build_qwen3_next(fields: Fields) -> Model:
    """Build Qwen3-Next from its config: experts with a gated shared expert in most layers.

    All layers but ``mlp_only_layers``. `Qwen3NextConfig`: untied, no biases.
    """
    sparse = sparse_by_step(fields, layers=fields.layers())
    return _build(fields, sparse=sparse)


def build_qwen3_5(fields: Fields) -> Model:
    """Build the dense language model of Qwen3.5 or 3.6 from its config."""
    return _build(fields, sparse=(False,) * fields.layers())


def build_qwen3_5_moe(fields: Fields) -> Model:
    """Build the language model of Qwen3.5 or 3.6 with experts in every layer from its config."""
    return _build(fields, sparse=(True,) * fields.layers())


def _build(fields: Fields, *, sparse: tuple[bool, ...]) -> Model:
    """Build a Qwen3-Next or Qwen3.5 model with experts in the `sparse` layers."""
    layers = blocks_of(zip(_layer_kinds(fields), sparse, strict=True), partial(_layer, fields))
    if not fields.integer("mtp_num_hidden_layers", minimum=0, maximum=1, default=0):
        return configured_model(fields, layers=layers)
    if fields.flag("mtp_use_dedicated_embeddings", default=False):
        fields.unsupported("mtp_use_dedicated_embeddings = true")
    # The prediction module's one layer attends to all keys, whatever the last layer of the model
    # is.
    return configured_model(
        fields, layers=layers, predicts=1, predictor=_layer(fields, FULL, sparse[-1])
    )


def _layer_kinds(fields: Fields) -> tuple[str, ...]:
    """Kind of each layer: ``layer_types``, or full in each ``full_attention_interval``-th.

    n is ``full_attention_interval``.
    """
    layers = fields.layers()
    kinds = fields.layer_types(layers=layers, allowed=(LINEAR, FULL))
    if kinds:
        return kinds
    interval = fields.integer("full_attention_interval", maximum=MAX_LAYERS)
    return tuple(FULL if (i + 1) % interval == 0 else LINEAR for i in range(layers))


def _layer(fields: Fields, kind: str, sparse: bool) -> Block:
    """A layer with a gated delta net or gated attention by `kind`, dense or with experts."""
    hidden = fields.hidden()
    if kind == LINEAR:
        mixer = delta_operators(hidden=hidden, shape=delta_shape(fields))
    else:
        if not fields.flag("attn_output_gate", default=True):
            fields.unsupported("attn_output_gate = false in this family")
        shape = grouped_shape(fields, head_dim=fields.head_dim(default=256))
        mixer = gated_attention_operators(
            hidden=hidden, shape=shape, bias=fields.flag("attention_bias", default=False)
        )
    feed_forward = (
        qwen_moe_operators(fields)
        if sparse
        else mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True)
    )
    name = kind.removesuffix("_attention") + ("_moe" if sparse else "")
    return layer_block(name, hidden=hidden, attention=mixer, feed_forward=feed_forward)
