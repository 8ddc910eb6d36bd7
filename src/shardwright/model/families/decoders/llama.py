"""Builders of Llama-like decoders: RMSNorm, rotary, grouped queries, SwiGLU, and variations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import decoder_block, layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    QkNorm,
    attention_operators,
    grouped_shape,
    mlp_operators,
)
from shardwright.model.blocks.read_sliding_windows_from_config import windows_by_period, windows_of
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.config_json_field_access import MAX_LAYERS, Fields
from shardwright.model.ir.model_graph import Model


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
    gated: bool = True,
    rotary: Sequence[bool] = (),
) -> list[Block]:
    """Pre-norm layers, one for each window (keys, 0 = all); `kv_heads`, `head_dim` are defaults.

    `kv_heads`, `head_dim`: class defaults, if any. `rotary`: True for each layer with rotary
    positions; empty: all layers.
    """
    width, mixed = fields.head_dim(default=head_dim), len(set(windows)) > 1

    def layer(window: int, has_rotary: bool) -> Block:
        """The block of a layer that sees `window` keys (0 = all), rotary positions or none."""
        return decoder_block(
            f"layer{'_window' if window and mixed else ''}{'' if has_rotary else '_unturned'}",
            hidden=fields.hidden(),
            attention=grouped_shape(fields, head_dim=width, kv_heads=kv_heads, window=window),
            ffn=fields.ffn(),
            gated=gated,
            attention_bias=attention_bias,
            output_bias=output_bias,
            mlp_bias=mlp_bias,
            qk_norm=qk_norm,
            rotary=has_rotary,
            post_norms=post_norms,
        )

    return blocks_of(zip(windows, rotary or (True,) * len(windows), strict=True), layer)


def _uniform(fields: Fields, *, tied: bool = False, **more: Any) -> Model:
    """Build a model of equal layers that see all keys; `more` are arguments of `gated_layers`."""
    return configured_model(
        fields, layers=gated_layers(fields, windows=(0,) * fields.layers(), **more), tied=tied
    )


def build(fields: Fields) -> Model:
    """Build Llama 1, 2 or 3.x from its config (`LlamaConfig`: no biases, untied).

    Key/value heads default to the query heads.
    """
    bias = fields.flag("attention_bias", default=False)
    return _uniform(
        fields,
        kv_heads=fields.heads(),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
    )


def build_mistral(fields: Fields) -> Model:
    """Build Mistral or Ministral from its config: one window of 4,096 keys by default, or none.

    `MistralConfig`: no biases, untied; a null window sees all keys.
    """
    layers = gated_layers(
        fields,
        windows=windows_of(
            fields, layers=fields.layers(), on_all_without_types=True, default_window=4096
        ),
    )
    return configured_model(fields, layers=layers)


def build_phi3(fields: Fields) -> Model:
    """Build Phi-3, 3.5 or 4 from its config (`Phi3Config`: kv heads = heads, no biases, untied)."""
    windows = windows_of(fields, layers=fields.layers(), on_all_without_types=True)
    layers = gated_layers(fields, windows=windows, kv_heads=fields.heads())
    return configured_model(fields, layers=layers)


def build_qwen2(fields: Fields) -> Model:
    """Build Qwen1.5, Qwen2 or Qwen2.5 from its config: biases on q, k and v only."""
    layers = gated_layers(fields, windows=qwen_windows(fields), attention_bias=True)
    return configured_model(fields, layers=layers)


def build_qwen3(fields: Fields) -> Model:
    """Build Qwen3 from its config (`Qwen3Config`: head_dim 128, untied): query and key norms."""
    bias = fields.flag("attention_bias", default=False)
    layers = gated_layers(
        fields,
        windows=qwen_windows(fields),
        head_dim=128,
        attention_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
    return configured_model(fields, layers=layers)


def build_glm(fields: Fields) -> Model:
    """Build GLM-4 of 2024 from its config (`GlmConfig`: qkv biases, head_dim 128, untied)."""
    return _uniform(
        fields, head_dim=128, attention_bias=fields.flag("attention_bias", default=True)
    )


def build_glm4(fields: Fields) -> Model:
    """Build GLM-4-0414 from its config (`Glm4Config`): norms before and after each sub-block.

    Defaults: attention_bias true, head_dim 128, untied.
    """
    bias = fields.flag("attention_bias", default=True)
    return _uniform(fields, head_dim=128, attention_bias=bias, post_norms=True)


def _post_norm_layer(
    fields: Fields,
    name: str,
    *,
    window: int,
    kv_heads: int,
    qk_norm: QkNorm,
    bias: bool = False,
    rotary: bool = True,
) -> Block:
    """A SwiGLU layer with norms of the sub-blocks' outputs, not inputs; `kv_heads`: the default."""
    hidden = fields.hidden()
    shape = grouped_shape(fields, head_dim=fields.head_dim(), kv_heads=kv_heads, window=window)
    attention = attention_operators(
        source=INPUT,
        hidden=hidden,
        shape=shape,
        bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
        rotary=rotary,
    )
    feed_forward = mlp_operators(source="residual1", hidden=hidden, ffn=fields.ffn(), gated=True)
    return layer_block(
        name,
        hidden=hidden,
        attention=attention,
        feed_forward=feed_forward,
        pre_norms=False,
        post_norms=True,
    )


def _olmo(fields: Fields, windows: Sequence[int]) -> Model:
    """Build an OLMo of post-norm layers, each seeing its entry of `windows` in keys (0 = all)."""
    bias = fields.flag("attention_bias", default=False)

    def layer(window: int) -> Block:
        """The post-norm block of an OLMo layer that sees `window` keys, 0 = all keys."""
        name = "layer_window" if window else "layer"
        return _post_norm_layer(
            fields, name, window=window, kv_heads=fields.heads(), qk_norm=QkNorm.WIDTH, bias=bias
        )

    return configured_model(fields, layers=blocks_of(zip(windows), layer))


def build_olmo2(fields: Fields) -> Model:
    """Build OLMo 2 from its config: norms of outputs, query/key norms over all heads.

    `Olmo2Config`: kv heads default to the heads, no biases, untied.
    """
    return _olmo(fields, (0,) * fields.layers())


def build_olmo3(fields: Fields) -> Model:
    """Build OLMo 3 from its config: OLMo 2 with every fourth layer seeing all keys."""
    return _olmo(fields, windows_by_period(fields, layers=fields.layers(), period=4))


def build_exaone4(fields: Fields) -> Model:
    """Build EXAONE 4 from its config: norms of outputs; full layers beside windows have no rotary.

    `Exaone4Config`: 32 kv heads, no biases, untied.
    """
    layers, kv_heads = (
        fields.layers(),
        fields.heads() if fields.written("num_key_value_heads") else 32,
    )
    if fields.written("sliding_window") and not fields.present("sliding_window"):
        fields.mark_read("sliding_window_pattern", "layer_types")
        windows: tuple[int, ...] = (0,) * layers
    else:
        fields.mark_read("sliding_window_pattern")
        listed = fields.present("layer_types")
        windows = windows_by_period(
            fields,
            layers=layers,
            period=4 if listed else fields.integer("sliding_window_pattern", default=4),
        )
    mixed = any(windows) or fields.present("sliding_window")

    def layer(window: int) -> Block:
        """The post-norm block of an EXAONE layer that sees `window` keys, 0 = all keys."""
        name = "layer_window" if window else "layer"
        return _post_norm_layer(
            fields,
            name,
            window=window,
            kv_heads=kv_heads,
            qk_norm=QkNorm.HEAD,
            rotary=bool(window) or not mixed,
        )

    return configured_model(fields, layers=blocks_of(zip(windows), layer))


def build_smollm3(fields: Fields) -> Model:
    """Build SmolLM3 from its config: every fourth layer without positions, or ``no_rope_layers``.

    `SmolLM3Config`: 4 kv heads, no biases, tied.
    """
    layers = fields.layers()
    bias = fields.flag("attention_bias", default=False)
    windows = (0,) * layers
    if fields.flag("use_sliding_window", default=False):
        windows = windows_of(fields, layers=layers)
    else:
        fields.mark_read("sliding_window", "layer_types")
    blocks = gated_layers(
        fields,
        windows=windows,
        kv_heads=4,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
        rotary=rotary_layers(fields, layers=layers),
    )
    return configured_model(fields, layers=blocks, tied=True)


def build_seed_oss(fields: Fields) -> Model:
    """Build Seed-OSS from its config (`SeedOssConfig`: 8 kv heads of 128, qkv biases, untied)."""
    return _uniform(
        fields,
        kv_heads=8,
        head_dim=128,
        attention_bias=fields.flag("attention_bias", default=True),
        output_bias=fields.flag("attention_out_bias", default=False),
        mlp_bias=fields.flag("mlp_bias", default=False),
    )


def build_arcee(fields: Fields) -> Model:
    """Build Arcee's AFM from its config: Llama with an ungated squared-ReLU feed-forward.

    `ArceeConfig`: kv heads default to the heads, no biases, untied.
    """
    bias = fields.flag("attention_bias", default=False)
    return _uniform(
        fields,
        kv_heads=fields.heads(),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
        gated=False,
    )


def build_helium(fields: Fields) -> Model:
    """Build Helium from its config (`HeliumConfig`: 20 kv heads of 128, no biases, untied)."""
    return _uniform(
        fields,
        kv_heads=20,
        head_dim=128,
        attention_bias=fields.flag("attention_bias", default=False),
        mlp_bias=fields.flag("mlp_bias", default=False),
    )


def build_ernie4_5(fields: Fields) -> Model:
    """Build dense ERNIE 4.5 from its config (`Ernie4_5Config`: 2 kv heads of 128, tied)."""
    bias = fields.flag("use_bias", default=False)
    return _uniform(
        fields,
        kv_heads=2,
        head_dim=128,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tied=True,
    )


def build_granite(fields: Fields) -> Model:
    """Build dense Granite 3 as a Llama (`GraniteConfig`); its factors are numerical settings.

    `GraniteConfig`: kv heads default to the heads, no biases, untied.
    """
    return build(fields)


def rotary_layers(fields: Fields, *, layers: int) -> tuple[bool, ...]:
    """True for rotary layers: ``no_rope_layers`` (1 = rotary), else all but every n-th (default 4).

    In ``no_rope_layers`` 1 means rotary; the interval's default is 4.
    """
    listed = fields.integers("no_rope_layers", maximum=1)
    if listed and len(listed) != layers:
        fields.fail(
            f"no_rope_layers lists {len(listed)} layers of {layers}",
            hint="give one entry for each layer",
        )
    if listed:
        return tuple(bool(entry) for entry in listed)
    interval = fields.integer("no_rope_layer_interval", default=4, maximum=MAX_LAYERS)
    return tuple((i + 1) % interval != 0 for i in range(layers))


def qwen_windows(fields: Fields) -> tuple[int, ...]:
    """Window of each layer in keys, 0 = all; none but with ``use_sliding_window`` (Qwen2, Qwen3).

    There are none unless ``use_sliding_window``; then from layer ``max_window_layers`` on.
    """
    layers = fields.layers()
    if not fields.flag("use_sliding_window", default=False):
        fields.mark_read("sliding_window", "max_window_layers", "layer_types")
        return (0,) * layers
    if fields.present("layer_types"):
        return windows_of(fields, layers=layers)
    first = fields.integer("max_window_layers", minimum=0, maximum=MAX_LAYERS)
    window = fields.integer("sliding_window")
    return tuple(window if i >= first else 0 for i in range(layers))
