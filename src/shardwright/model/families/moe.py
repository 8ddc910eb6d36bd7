"""Mixture-of-experts decoders with grouped-query attention: Mixtral, Qwen2-MoE, Qwen3-MoE, GLM-4.5, gpt-oss."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.model.blocks.decoder import configured_model, untied
from shardwright.model.blocks.dense import attention_operators, layer_block, mlp_operators
from shardwright.model.blocks.experts import moe_operators
from shardwright.model.blocks.windows import windows_of
from shardwright.model.families.deepseek import expert_shape
from shardwright.model.ir.block import Block
from shardwright.model.ir.fields import MAX_LAYERS, Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import AttentionShape, Operator


def sparse_by_step(fields: Fields, *, layers: int) -> tuple[bool, ...]:
    """Which layers have experts in Qwen's spelling: all but ``mlp_only_layers``, every ``decoder_sparse_step``-th
    (`Qwen2MoeConfig`: none, 1).
    """
    dense = frozenset(fields.integers("mlp_only_layers", maximum=MAX_LAYERS))
    step = fields.integer("decoder_sparse_step", default=1, maximum=MAX_LAYERS)
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))


def _shape(fields: Fields, *, head_dim: int, kv_heads: int | None = None, window: int = 0, sinks: bool = False) -> AttentionShape:
    return AttentionShape(
        heads=fields.heads(), kv_heads=fields.kv_heads(default=kv_heads), head_dim=head_dim, value_dim=head_dim, window=window, sinks=sinks
    )


def _mixed(fields: Fields, *, attention: tuple[Operator, ...], moe: tuple[Operator, ...], sparse: Sequence[bool]) -> list[Block]:
    """One block per layer: experts where `sparse` says so, a dense SwiGLU elsewhere (only then ``intermediate_size`` is read)."""
    hidden = fields.hidden()
    kinds = {}
    if True in sparse:
        kinds[True] = layer_block("moe", hidden=hidden, attention=attention, feed_forward=moe)
    if False in sparse:
        dense = mlp_operators(source="norm2", hidden=hidden, ffn=fields.ffn(), gated=True)
        kinds[False] = layer_block("dense", hidden=hidden, attention=attention, feed_forward=dense)
    return [kinds[flag] for flag in sparse]


def build_mixtral(fields: Fields, *, name: str) -> Model:
    """Mixtral (`MixtralConfig`: untied, no biases, window null = none)."""
    hidden, layers = fields.hidden(), fields.layers()
    (window,) = set(windows_of(fields, layers=layers, uniform=True))
    shape = _shape(fields, head_dim=fields.head_dim(), window=window)
    moe = moe_operators(source="norm2", hidden=hidden, ffn=fields.ffn(), experts=expert_shape(fields))
    attention = attention_operators(source="norm1", hidden=hidden, shape=shape)
    blocks = _mixed(fields, attention=attention, moe=moe, sparse=[True] * layers)
    return configured_model(fields, name=name, architecture="MixtralForCausalLM", layers=blocks, tied=untied(fields))


def build_qwen2_moe(fields: Fields, *, name: str) -> Model:
    """Qwen1.5-MoE and Qwen2-MoE: biases on q, k, v (`Qwen2MoeConfig`: qkv_bias True), a gated shared expert."""
    _no_window(fields)
    hidden, layers = fields.hidden(), fields.layers()
    attention = attention_operators(
        source="norm1", hidden=hidden, shape=_shape(fields, head_dim=fields.head_dim()), bias=fields.flag("qkv_bias", default=True)
    )
    moe = moe_operators(
        source="norm2",
        hidden=hidden,
        ffn=fields.ffn("moe_intermediate_size"),
        experts=expert_shape(fields),
        shared_ffn=fields.ffn("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    blocks = _mixed(fields, attention=attention, moe=moe, sparse=sparse_by_step(fields, layers=layers))
    return configured_model(fields, name=name, architecture="Qwen2MoeForCausalLM", layers=blocks, tied=untied(fields))


def build_qwen3_moe(fields: Fields, *, name: str) -> Model:
    """Qwen3-MoE: norms of queries and keys, no shared expert."""
    _no_window(fields)
    hidden, layers = fields.hidden(), fields.layers()
    bias = fields.flag("attention_bias", default=False)
    attention = attention_operators(
        source="norm1", hidden=hidden, shape=_shape(fields, head_dim=fields.head_dim()), bias=bias, output_bias=bias, qk_norm=True
    )
    moe = moe_operators(source="norm2", hidden=hidden, ffn=fields.ffn("moe_intermediate_size"), experts=expert_shape(fields))
    blocks = _mixed(fields, attention=attention, moe=moe, sparse=sparse_by_step(fields, layers=layers))
    return configured_model(fields, name=name, architecture="Qwen3MoeForCausalLM", layers=blocks, tied=untied(fields))


def build_glm4_moe(fields: Fields, *, name: str) -> Model:
    """GLM-4.5 and 4.6: routing and shared experts of DeepSeek-V3 over grouped-query attention, one prediction module."""
    hidden, layers = fields.hidden(), fields.layers()
    attention = attention_operators(
        source="norm1",
        hidden=hidden,
        shape=_shape(fields, head_dim=fields.head_dim()),
        bias=fields.flag("attention_bias", default=False),
        qk_norm=fields.flag("use_qk_norm", default=False),
    )
    expert_ffn = fields.ffn("moe_intermediate_size")
    moe = moe_operators(
        source="norm2",
        hidden=hidden,
        ffn=expert_ffn,
        experts=expert_shape(fields),
        shared_ffn=fields.integer("n_shared_experts", minimum=0, maximum=1024, default=0) * expert_ffn,
        correction=True,
    )
    first = fields.integer("first_k_dense_replace", minimum=0, maximum=MAX_LAYERS)
    blocks = _mixed(fields, attention=attention, moe=moe, sparse=[i >= first for i in range(layers)])
    return configured_model(fields, name=name, architecture="Glm4MoeForCausalLM", layers=blocks, tied=untied(fields), predicts=True)


def build_gpt_oss(fields: Fields, *, name: str) -> Model:
    """gpt-oss: alternating windows, learned sinks, biases everywhere (`GptOssConfig`: attention_bias True), no shared expert."""
    hidden, layers = fields.hidden(), fields.layers()
    bias = fields.flag("attention_bias", default=True)
    windows = windows_of(fields, layers=layers)
    moe = moe_operators(source="norm2", hidden=hidden, ffn=fields.ffn(), experts=expert_shape(fields), router_bias=True, bias=True)
    kinds = {}
    for window in sorted(set(windows)):
        shape = _shape(fields, head_dim=fields.head_dim(), window=window, sinks=True)
        attention = attention_operators(source="norm1", hidden=hidden, shape=shape, bias=bias, output_bias=bias)
        kinds[window] = layer_block("moe_window" if window else "moe", hidden=hidden, attention=attention, feed_forward=moe)
    blocks = [kinds[window] for window in windows]
    return configured_model(fields, name=name, architecture="GptOssForCausalLM", layers=blocks, tied=untied(fields))


def _no_window(fields: Fields) -> None:
    """Sliding windows in Qwen's mixtures depend on `max_window_layers`; no published model uses them."""
    if fields.flag("use_sliding_window", default=False):
        fields.unsupported("use_sliding_window = true in this family", hint="set it to false, or plan a model of another family")
