"""Builders of StableLM, Phi, GPT-J and Cohere: attention and feed-forward in parallel."""

from __future__ import annotations

from functools import partial

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block, parallel_block
from shardwright.model.blocks.dense_transformer_operators import (
    attention_operators,
    grouped_shape,
    mlp_operators,
)
from shardwright.model.blocks.read_sliding_windows_from_config import windows_by_period
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import MAX_CONTEXT, MAX_LAYERS, Fields
from shardwright.model.ir.model_graph import Model


def build_stablelm(fields: Fields) -> Model:
    """Build StableLM 2 or 3B from its config: LayerNorm with bias, SwiGLU, partial rotary.

    `StableLmConfig`: 32 kv heads, no biases, untied.
    """
    if fields.flag("qk_layernorm", default=False):
        fields.unsupported("qk_layernorm = true (a LayerNorm of each head with its own gain)")
    hidden = fields.hidden()
    shape = grouped_shape(fields, head_dim=fields.head_dim(), kv_heads=32)
    together = fields.flag("use_parallel_residual", default=False)
    wrap = partial(parallel_block, norms=1) if together else layer_block
    layer = wrap(
        "layer",
        hidden=hidden,
        attention=attention_operators(
            hidden=hidden, shape=shape, bias=fields.flag("use_qkv_bias", default=False)
        ),
        feed_forward=mlp_operators(
            hidden=hidden, ffn=fields.ffn(), gated=True, source="norm1" if together else "norm2"
        ),
        norm_bias=True,
    )
    return configured_model(fields, layers=[layer] * fields.layers(), norm_bias=True)


def build_phi(fields: Fields) -> Model:
    """Build Phi-1, 1.5 or 2 from its config: one LayerNorm a layer, biases, partial rotary.

    `PhiConfig`: kv heads default to the heads, untied.
    """
    if fields.flag("qk_layernorm", default=False):
        fields.unsupported("qk_layernorm = true (a LayerNorm of each head)")
    hidden = fields.hidden()
    shape = grouped_shape(fields, head_dim=fields.head_dim(), kv_heads=fields.heads())
    layer = parallel_block(
        "layer",
        hidden=hidden,
        attention=attention_operators(hidden=hidden, shape=shape, bias=True, output_bias=True),
        feed_forward=mlp_operators(
            hidden=hidden, ffn=fields.ffn(), gated=False, bias=True, source="norm1"
        ),
        norm_bias=True,
        norms=1,
    )
    return configured_model(
        fields, layers=[layer] * fields.layers(), norm_bias=True, head_bias=True
    )


def build_gptj(fields: Fields) -> Model:
    """Build GPT-J from its config: one LayerNorm a layer, attention without biases.

    `GPTJConfig`: n_inner null = 4 x hidden, untied; the head has a bias.
    """
    hidden = fields.hidden()
    fields.integer("n_positions", "max_position_embeddings", maximum=MAX_CONTEXT)
    shape = grouped_shape(fields, head_dim=fields.even_head_dim(), kv_heads=fields.heads())
    layer = parallel_block(
        "layer",
        hidden=hidden,
        attention=attention_operators(hidden=hidden, shape=shape),
        feed_forward=mlp_operators(
            hidden=hidden,
            ffn=fields.ffn("n_inner", default=4 * hidden),
            gated=False,
            bias=True,
            source="norm1",
        ),
        norm_bias=True,
        norms=1,
    )
    return configured_model(
        fields, layers=[layer] * fields.layers(), norm_bias=True, head_bias=True
    )


def build_cohere(fields: Fields) -> Model:
    """Build Command R from its config: one LayerNorm a layer without bias, SwiGLU.

    `CohereConfig`: kv heads default to the heads, no biases, tied.
    """
    if fields.flag("use_qk_norm", default=False):
        fields.unsupported("use_qk_norm = true (a LayerNorm of each head with its own gain)")
    return configured_model(
        fields,
        layers=[_cohere_layer(fields, 0, rotary_positions=True)] * fields.layers(),
        tied=True,
    )


def build_cohere2(fields: Fields) -> Model:
    """Build Command R7B or A from its config: every fourth layer sees all keys without positions.

    `Cohere2Config`.
    """
    period = (
        4
        if fields.present("layer_types")
        else fields.integer("sliding_window_pattern", default=4, maximum=MAX_LAYERS)
    )
    windows = windows_by_period(fields, layers=fields.layers(), period=period)
    layers = blocks_of(
        zip(windows), lambda window: _cohere_layer(fields, window, rotary_positions=bool(window))
    )
    return configured_model(fields, layers=layers, tied=True)


def _cohere_layer(fields: Fields, window: int, *, rotary_positions: bool) -> Block:
    """A Cohere layer seeing `window` keys (0 = all): one norm, attention beside feed-forward."""
    hidden, bias = fields.hidden(), fields.flag("attention_bias", default=False)
    shape = grouped_shape(
        fields, head_dim=fields.head_dim(), kv_heads=fields.heads(), window=window
    )
    return parallel_block(
        "layer_window" if window else "layer",
        hidden=hidden,
        attention=attention_operators(
            hidden=hidden, shape=shape, bias=bias, output_bias=bias, rotary=rotary_positions
        ),
        feed_forward=mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True, source="norm1"),
        norms=1,
    )
