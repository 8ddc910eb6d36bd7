"""Gemma 2 and 3, text: windows in a period, norms before and after each sub-block, GeGLU, tied embedding."""

from __future__ import annotations

from shardwright.model.blocks.decoder import configured_model
from shardwright.model.blocks.dense import decoder_block
from shardwright.model.blocks.windows import windows_by_period
from shardwright.model.ir.block import Block
from shardwright.model.ir.fields import MAX_LAYERS, Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import AttentionShape

MAX_CAP = 1e6


def build_gemma(fields: Fields, *, name: str) -> Model:
    """Gemma 1: no windows, norms before the sub-blocks only (`GemmaConfig`: tied)."""
    layers = fields.layers()
    block = _layer(fields, label="layer", window=0, soft_cap=0.0, qk_norm=False, post_norms=False)
    return _model(fields, name=name, architecture="GemmaForCausalLM", layers=[block] * layers)


def build_gemma2(fields: Fields, *, name: str) -> Model:
    """Gemma 2: every second layer sees all keys, scores are soft-capped (`Gemma2Config`: tied, cap 50)."""
    windows = windows_by_period(fields, layers=fields.layers(), period=2)
    # A null cap means none: only an absent field takes the class default.
    default = 0.0 if "attn_logit_softcapping" in fields.mapping else 50.0
    cap = fields.number("attn_logit_softcapping", minimum=0, maximum=MAX_CAP, default=default)
    kinds = {
        window: _layer(fields, label=_label(window), window=window, soft_cap=cap, qk_norm=False, post_norms=True)
        for window in dict.fromkeys(windows)
    }
    return _model(fields, name=name, architecture="Gemma2ForCausalLM", layers=[kinds[window] for window in windows])


def build_gemma3(fields: Fields, *, name: str) -> Model:
    """Gemma 3: every sixth layer sees all keys (`Gemma3TextConfig`: pattern 6, tied), norms of queries and keys."""
    period = fields.integer("sliding_window_pattern", "_sliding_window_pattern", default=6, maximum=MAX_LAYERS)
    windows = windows_by_period(fields, layers=fields.layers(), period=period)
    cap = fields.number("attn_logit_softcapping", minimum=0, maximum=MAX_CAP, default=0.0)
    kinds = {
        window: _layer(fields, label=_label(window), window=window, soft_cap=cap, qk_norm=True, post_norms=True)
        for window in dict.fromkeys(windows)
    }
    return _model(fields, name=name, architecture="Gemma3ForCausalLM", layers=[kinds[window] for window in windows])


def _label(window: int) -> str:
    return "layer_window" if window else "layer"


def _layer(fields: Fields, *, label: str, window: int, soft_cap: float, qk_norm: bool, post_norms: bool) -> Block:
    # head_dim is not hidden / heads in this family and its class default differs between releases: it must be written.
    head_dim = fields.integer("head_dim", maximum=2**16)
    bias = fields.flag("attention_bias", default=False)
    return decoder_block(
        label,
        hidden=fields.hidden(),
        attention=AttentionShape(
            heads=fields.heads(), kv_heads=fields.kv_heads(), head_dim=head_dim, value_dim=head_dim, window=window, soft_cap=soft_cap
        ),
        ffn=fields.ffn(),
        gated=True,
        attention_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
        post_norms=post_norms,
    )


def _model(fields: Fields, *, name: str, architecture: str, layers: list[Block]) -> Model:
    tied = fields.flag("tie_word_embeddings", default=True)
    return configured_model(fields, name=name, architecture=architecture, layers=layers, tied=tied)
