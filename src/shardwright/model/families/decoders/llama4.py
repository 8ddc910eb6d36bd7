"""Builder of Llama 4's text model: interleaved experts, chunked attention with rotary positions."""

from __future__ import annotations

from functools import partial

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    QkNorm,
    attention_operators,
    grouped_shape,
    mlp_operators,
)
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.families.decoders.deepseek import expert_shape
from shardwright.model.families.decoders.llama import rotary_layers
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import MAX_CONTEXT, MAX_LAYERS, Fields
from shardwright.model.ir.model_graph import Model

CHUNKED = "chunked_attention"


def build(fields: Fields) -> Model:
    """Build Llama 4's text model from its config (`Llama4TextConfig`).

    ``intermediate_size`` is an expert's and the shared expert's width, ``intermediate_size_mlp`` a
    dense layer's.
    """
    layers = fields.layers()
    rotary = rotary_layers(fields, layers=layers)
    chunks = chunk_layers(fields, rotary=rotary)
    sparse = sparse_layers(fields, layers=layers)
    return configured_model(
        fields, layers=blocks_of(zip(rotary, chunks, sparse, strict=True), partial(_layer, fields))
    )


def chunk_layers(fields: Fields, *, rotary: tuple[bool, ...]) -> tuple[int, ...]:
    """Attention chunk of each layer in keys, 0 = all: by ``layer_types``, else in rotary layers.

    ``layer_types`` overrides this.
    """
    size = fields.integer("attention_chunk_size", maximum=MAX_CONTEXT)
    kinds = fields.layer_types(layers=len(rotary), allowed=(CHUNKED, "full_attention"))
    chunked = tuple(kind == CHUNKED for kind in kinds) if kinds else rotary
    return tuple(size if flag else 0 for flag in chunked)


def sparse_layers(fields: Fields, *, layers: int) -> tuple[bool, ...]:
    """True for layers with experts: in ``moe_layers``, or each ``interleave_moe_layer_step``-th."""
    listed = fields.integers("moe_layers", maximum=MAX_LAYERS)
    if listed:
        if max(listed) >= layers:
            fields.fail(
                f"moe_layers names layer {max(listed)} of {layers}",
                hint="layers are counted from 0",
            )
        return tuple(i in set(listed) for i in range(layers))
    step = fields.integer("interleave_moe_layer_step", maximum=MAX_LAYERS, default=1)
    return tuple((i + 1) % step == 0 for i in range(layers))


def _layer(fields: Fields, rotary: bool, chunk: int, sparse: bool) -> Block:
    """A Llama 4 layer of `chunk` keys (0 = all), rotary or not, dense or with experts."""
    hidden = fields.hidden()
    shape = grouped_shape(
        fields, head_dim=fields.head_dim(default=128), window=chunk, chunked=bool(chunk)
    )
    bias = fields.flag("attention_bias", default=False)
    norms = QkNorm.PLAIN if rotary and fields.flag("use_qk_norm", default=True) else False
    tempered = not rotary and fields.flag("attn_temperature_tuning", default=True)
    attention = attention_operators(
        hidden=hidden,
        shape=shape,
        bias=bias,
        output_bias=bias,
        qk_norm=norms,
        rotary=rotary,
        tempered=tempered,
    )
    if sparse:
        ffn = fields.ffn()
        feed_forward = moe_operators(
            hidden=hidden, ffn=ffn, experts=expert_shape(fields), shared_ffn=ffn, weighed=True
        )
    else:
        feed_forward = mlp_operators(
            hidden=hidden, ffn=fields.ffn("intermediate_size_mlp"), gated=True
        )
    label = (
        ("moe" if sparse else "dense") + ("" if rotary else "_norope") + ("_chunk" if chunk else "")
    )
    return layer_block(label, hidden=hidden, attention=attention, feed_forward=feed_forward)
