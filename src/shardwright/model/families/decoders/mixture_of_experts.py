"""Builders of Mixtral, Qwen-MoE, OLMoE, GLM-4.5 and gpt-oss models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    QkNorm,
    attention_operators,
    grouped_shape,
    mlp_operators,
)
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.blocks.multi_token_prediction import num_predictors
from shardwright.model.blocks.read_sliding_windows_from_config import refuse_window, windows_of
from shardwright.model.families.decoders.deepseek import expert_shape, moe_or_dense_operators
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import MAX_LAYERS, Fields
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator


def sparse_by_step(fields: Fields, *, layers: int) -> tuple[bool, ...]:
    """True for layers not in ``mlp_only_layers`` with i + 1 divisible by ``decoder_sparse_step``.

    All layers but ``mlp_only_layers``, every ``decoder_sparse_step``-th (`Qwen2MoeConfig`: none,
    1).
    """
    dense = frozenset(fields.integers("mlp_only_layers", maximum=MAX_LAYERS))
    step = fields.integer("decoder_sparse_step", default=1, maximum=MAX_LAYERS)
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))


def _sparse_and_dense_layers(
    fields: Fields,
    *,
    attention: tuple[Operator, ...],
    moe: tuple[Operator, ...],
    sparse: Sequence[bool],
) -> list[Block]:
    """One block for each layer: experts where `sparse`, a dense SwiGLU elsewhere.

    Only then ``intermediate_size`` is read.
    """
    hidden = fields.hidden()

    def layer(has_experts: bool) -> Block:
        """The block of a layer with experts, or else with a dense SwiGLU."""
        feed_forward = (
            moe if has_experts else mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True)
        )
        return layer_block(
            "moe" if has_experts else "dense",
            hidden=hidden,
            attention=attention,
            feed_forward=feed_forward,
        )

    return blocks_of(zip(sparse), layer)


def build_mixtral(fields: Fields) -> Model:
    """Build Mixtral from its config (`MixtralConfig`: untied, no biases, window null = none)."""
    hidden, layers = fields.hidden(), fields.layers()
    (window,) = set(windows_of(fields, layers=layers, on_all_without_types=True))
    moe = moe_operators(hidden=hidden, ffn=fields.ffn(), experts=expert_shape(fields))
    attention = attention_operators(
        hidden=hidden, shape=grouped_shape(fields, head_dim=fields.head_dim(), window=window)
    )
    return configured_model(
        fields,
        layers=[layer_block("moe", hidden=hidden, attention=attention, feed_forward=moe)] * layers,
    )


def qwen_moe_operators(fields: Fields) -> tuple[Operator, ...]:
    """Feed-forward of Qwen's mixture of experts: routed experts, sigmoid-gated shared expert."""
    return moe_operators(
        hidden=fields.hidden(),
        ffn=fields.ffn("moe_intermediate_size"),
        experts=expert_shape(fields),
        shared_ffn=fields.ffn("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def build_qwen2_moe(fields: Fields) -> Model:
    """Build Qwen1.5-MoE or Qwen2-MoE from its config: qkv biases, a gated shared expert."""
    refuse_window(fields)
    bias, shape = (
        fields.flag("qkv_bias", default=True),
        grouped_shape(fields, head_dim=fields.head_dim()),
    )
    attention = attention_operators(hidden=fields.hidden(), shape=shape, bias=bias)
    sparse = sparse_by_step(fields, layers=fields.layers())
    return configured_model(
        fields,
        layers=_sparse_and_dense_layers(
            fields, attention=attention, moe=qwen_moe_operators(fields), sparse=sparse
        ),
    )


def build_qwen3_moe(fields: Fields) -> Model:
    """Build Qwen3-MoE from its config: query and key norms, no shared expert.

    Some files write ``use_qk_norm``.
    """
    refuse_window(fields)
    fields.mark_read("use_qk_norm")
    hidden, bias = fields.hidden(), fields.flag("attention_bias", default=False)
    shape = grouped_shape(fields, head_dim=fields.head_dim())
    attention = attention_operators(
        hidden=hidden, shape=shape, bias=bias, output_bias=bias, qk_norm=True
    )
    moe = moe_operators(
        hidden=hidden, ffn=fields.ffn("moe_intermediate_size"), experts=expert_shape(fields)
    )
    sparse = sparse_by_step(fields, layers=fields.layers())
    return configured_model(
        fields, layers=_sparse_and_dense_layers(fields, attention=attention, moe=moe, sparse=sparse)
    )


def build_olmoe(fields: Fields) -> Model:
    """Build OLMoE from its config: experts in every layer, query/key norms over all heads.

    `OlmoeConfig`: kv heads default to the heads, no biases, untied.
    """
    hidden, bias = fields.hidden(), fields.flag("attention_bias", default=False)
    shape = grouped_shape(fields, head_dim=fields.head_dim(), kv_heads=fields.heads())
    attention = attention_operators(
        hidden=hidden, shape=shape, bias=bias, output_bias=bias, qk_norm=QkNorm.WIDTH
    )
    moe = moe_operators(hidden=hidden, ffn=fields.ffn(), experts=expert_shape(fields))
    layers = [
        layer_block("moe", hidden=hidden, attention=attention, feed_forward=moe)
    ] * fields.layers()
    return configured_model(fields, layers=layers)


def build_glm4_moe(fields: Fields) -> Model:
    """Build GLM-4.5 or 4.6 from its config: dense layers, then DeepSeek-V3's experts; GQA.

    One prediction module.
    """
    bias, norms = (
        fields.flag("attention_bias", default=False),
        fields.flag("use_qk_norm", default=False),
    )
    shape = grouped_shape(fields, head_dim=fields.head_dim())
    attention = attention_operators(hidden=fields.hidden(), shape=shape, bias=bias, qk_norm=norms)
    moe = moe_or_dense_operators(fields, sparse=True, correction=True)
    first = fields.integer("first_k_dense_replace", minimum=0, maximum=MAX_LAYERS)
    layers = _sparse_and_dense_layers(
        fields, attention=attention, moe=moe, sparse=[i >= first for i in range(fields.layers())]
    )
    return configured_model(fields, layers=layers, predicts=num_predictors(fields))


def build_gpt_oss(fields: Fields) -> Model:
    """Build gpt-oss from its config: alternating windows, learned sinks, biases, clamped gates.

    `GptOssConfig`: attention_bias True; no shared expert; swiglu_limit 7.
    """
    hidden = fields.hidden()
    bias = fields.flag("attention_bias", default=True)
    moe = moe_operators(
        hidden=hidden, ffn=fields.ffn(), experts=expert_shape(fields), router_bias=True, bias=True
    )
    moe = tuple(replace(o, clamped=o.gated) for o in moe)

    def layer(window: int) -> Block:
        """The block of a gpt-oss layer that sees `window` keys, 0 = all keys."""
        shape = grouped_shape(
            fields, head_dim=fields.head_dim(default=64), window=window, sinks=True
        )
        attention = attention_operators(hidden=hidden, shape=shape, bias=bias, output_bias=bias)
        return layer_block(
            "moe_window" if window else "moe", hidden=hidden, attention=attention, feed_forward=moe
        )

    return configured_model(
        fields, layers=blocks_of(zip(windows_of(fields, layers=fields.layers())), layer)
    )
