"""Llama, Mistral, Phi-3, Qwen2, Qwen3, GLM-4, OLMo 2: RMSNorm, rotary, grouped queries, SwiGLU; biases, norms and windows differ."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.model.blocks.decoder import blocks_of, configured_model
from shardwright.model.blocks.dense import QkNorm, attention_operators, decoder_block, grouped_shape, layer_block, mlp_operators
from shardwright.model.blocks.windows import windows_of
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.fields import MAX_LAYERS, Fields
from shardwright.model.ir.graph import Model


def gated_layers(
    fields: Fields,
    *,
    windows: Sequence[int],
    kv_heads: int | None = None,
    head_dim: int | None = None,
    attention_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    post_norms: bool = False,
) -> list[Block]:
    """One SwiGLU layer per entry of `windows` (keys seen, 0 = all); `kv_heads`, `head_dim`: class defaults where there are any."""
    width, mixed = fields.head_dim(default=head_dim), len(set(windows)) > 1

    def layer(window: int) -> Block:
        return decoder_block(
            "layer_window" if window and mixed else "layer",
            hidden=fields.hidden(),
            attention=grouped_shape(fields, head_dim=width, kv_heads=kv_heads, window=window),
            ffn=fields.ffn(),
            gated=True,
            attention_bias=attention_bias,
            output_bias=output_bias,
            mlp_bias=mlp_bias,
            qk_norm=qk_norm,
            post_norms=post_norms,
        )

    return blocks_of(zip(windows), layer)


def build(fields: Fields) -> Model:
    """Llama 1, 2, 3.x (`LlamaConfig`: kv heads default to the heads, no biases, untied)."""
    bias = fields.flag("attention_bias", default=False)
    layers = gated_layers(
        fields,
        windows=(0,) * fields.layers(),
        kv_heads=fields.heads(),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
    )
    return configured_model(fields, layers=layers)


def build_mistral(fields: Fields) -> Model:
    """Mistral and Ministral (`MistralConfig`: no biases, untied; a null window sees all keys)."""
    layers = gated_layers(fields, windows=windows_of(fields, layers=fields.layers(), uniform=True))
    return configured_model(fields, layers=layers)


def build_phi3(fields: Fields) -> Model:
    """Phi-3, 3.5 and 4 (`Phi3Config`: kv heads default to the heads, no biases, untied)."""
    windows = windows_of(fields, layers=fields.layers(), uniform=True)
    layers = gated_layers(fields, windows=windows, kv_heads=fields.heads())
    return configured_model(fields, layers=layers)


def build_qwen2(fields: Fields) -> Model:
    """Qwen1.5, Qwen2, Qwen2.5: biases on q, k and v only."""
    layers = gated_layers(fields, windows=qwen_windows(fields), attention_bias=True)
    return configured_model(fields, layers=layers)


def build_qwen3(fields: Fields) -> Model:
    """Qwen3 (`Qwen3Config`: head_dim 128, attention_bias false, untied): norms of queries and keys."""
    bias = fields.flag("attention_bias", default=False)
    layers = gated_layers(fields, windows=qwen_windows(fields), head_dim=128, attention_bias=bias, output_bias=bias, qk_norm=True)
    return configured_model(fields, layers=layers)


def build_glm(fields: Fields) -> Model:
    """GLM-4 of 2024 (`GlmConfig`: attention_bias true, head_dim 128, untied)."""
    layers = gated_layers(fields, windows=(0,) * fields.layers(), head_dim=128, attention_bias=fields.flag("attention_bias", default=True))
    return configured_model(fields, layers=layers)


def build_glm4(fields: Fields) -> Model:
    """GLM-4-0414 (`Glm4Config`: attention_bias true, head_dim 128, untied): norms before and after each sub-block."""
    bias = fields.flag("attention_bias", default=True)
    layers = gated_layers(fields, windows=(0,) * fields.layers(), head_dim=128, attention_bias=bias, post_norms=True)
    return configured_model(fields, layers=layers)


def build_olmo2(fields: Fields) -> Model:
    """OLMo 2 (`Olmo2Config`: kv heads default to the heads, no biases, untied): norms of the outputs, query/key norms over all heads."""
    hidden, width = fields.hidden(), fields.even_head_dim()
    bias = fields.flag("attention_bias", default=False)
    shape = grouped_shape(fields, head_dim=width, kv_heads=fields.heads())
    attention = attention_operators(source=INPUT, hidden=hidden, shape=shape, bias=bias, output_bias=bias, qk_norm=QkNorm.WIDTH)
    feed_forward = mlp_operators(source="residual1", hidden=hidden, ffn=fields.ffn(), gated=True)
    layer = layer_block("layer", hidden=hidden, attention=attention, feed_forward=feed_forward, pre_norms=False, post_norms=True)
    return configured_model(fields, layers=[layer] * fields.layers())


def qwen_windows(fields: Fields) -> tuple[int, ...]:
    """Windows of Qwen2 and Qwen3: none unless ``use_sliding_window``; then on layers from ``max_window_layers`` on."""
    layers = fields.layers()
    if not fields.flag("use_sliding_window", default=False):
        fields.aside("sliding_window", "max_window_layers", "layer_types")
        return (0,) * layers
    if fields.present("layer_types"):
        return windows_of(fields, layers=layers)
    first = fields.integer("max_window_layers", minimum=0, maximum=MAX_LAYERS)
    window = fields.integer("sliding_window")
    return tuple(window if i >= first else 0 for i in range(layers))
