"""Builders of Gemma 1, 2 and 3 text models: periodic windows, GeGLU, tied embedding."""

from __future__ import annotations

from functools import partial

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import decoder_block
from shardwright.model.blocks.dense_transformer_operators import grouped_shape
from shardwright.model.blocks.read_sliding_windows_from_config import windows_by_period
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import MAX_LAYERS, Fields
from shardwright.model.ir.model_graph import Model

MAX_CAP = 1e6


def build_gemma(fields: Fields) -> Model:
    """Build Gemma 1 from its config (`GemmaConfig`: tied): no windows, pre-norms only."""
    layer = _layer(fields, 0, post_norms=False)
    return configured_model(fields, layers=[layer] * fields.layers(), tied=True)


def build_gemma2(fields: Fields) -> Model:
    """Build Gemma 2 from its config: every second layer sees all keys, soft-capped scores.

    `Gemma2Config`: tied, cap 50.
    """
    windows = windows_by_period(fields, layers=fields.layers(), period=2)
    # A null cap means none: only an absent field takes the class default.
    default = 0.0 if fields.written("attn_logit_softcapping") else 50.0
    cap = fields.number("attn_logit_softcapping", minimum=0, maximum=MAX_CAP, default=default)
    return configured_model(
        fields, layers=blocks_of(zip(windows), partial(_layer, fields, soft_cap=cap)), tied=True
    )


def build_gemma3(fields: Fields) -> Model:
    """Build Gemma 3 from its config: every sixth layer sees all keys, query and key norms.

    `Gemma3TextConfig`: pattern 6, tied.
    """
    period = fields.integer(
        "sliding_window_pattern", "_sliding_window_pattern", default=6, maximum=MAX_LAYERS
    )
    windows = windows_by_period(fields, layers=fields.layers(), period=period)
    cap = fields.number("attn_logit_softcapping", minimum=0, maximum=MAX_CAP, default=0.0)
    return configured_model(
        fields,
        layers=blocks_of(zip(windows), partial(_layer, fields, soft_cap=cap, qk_norm=True)),
        tied=True,
    )


def _layer(
    fields: Fields,
    window: int,
    *,
    soft_cap: float = 0.0,
    qk_norm: bool = False,
    post_norms: bool = True,
) -> Block:
    """A Gemma layer with GeGLU feed-forward; attention sees `window` keys, 0 = all keys."""
    # head_dim is not hidden / heads in this family and its class default differs between releases:
    # it must be written.
    head_dim = fields.integer("head_dim", maximum=2**16)
    bias = fields.flag("attention_bias", default=False)
    return decoder_block(
        "layer_window" if window else "layer",
        hidden=fields.hidden(),
        attention=grouped_shape(fields, head_dim=head_dim, window=window, soft_cap=soft_cap),
        ffn=fields.ffn(),
        gated=True,
        attention_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
        post_norms=post_norms,
    )
