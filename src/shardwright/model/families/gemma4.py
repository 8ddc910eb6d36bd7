"""Gemma 4, language model: windows with small heads, full layers with wide heads whose values are their keys; dense or with experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from shardwright.model.blocks.decoder import blocks_of, configured_model
from shardwright.model.blocks.dense import (
    QkNorm,
    attention_operators,
    core_operator,
    head_extents,
    hidden_extent,
    layer_block,
    linear,
    mlp_operators,
    norm,
    qk_norm_operator,
    residual,
    rotary_operator,
)
from shardwright.model.blocks.experts import expert_operators, router_operators
from shardwright.model.blocks.windows import windows_of
from shardwright.model.ir.block import Block
from shardwright.model.ir.fields import MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import AttentionShape, ExpertShape, Operator, OperatorClass
from shardwright.model.ir.tensor import Dim, Extent, Parameter


def build_gemma4(fields: Fields) -> Model:
    """Gemma 4 (`Gemma4TextConfig`: tied). Per-layer embeddings, layers that share keys and wide feed-forwards (E2B, E4B) are refused."""
    if fields.integer("hidden_size_per_layer_input", minimum=0, maximum=MAX_HIDDEN):
        fields.unsupported("hidden_size_per_layer_input (per-layer embeddings) other than 0")
    if fields.integer("num_kv_shared_layers", minimum=0, maximum=MAX_LAYERS, default=0):
        fields.unsupported("num_kv_shared_layers (layers that share keys and values) other than 0")
    if fields.flag("use_double_wide_mlp", default=False):
        fields.unsupported("use_double_wide_mlp = true")
    if not fields.present("layer_types"):
        fields.missing("layer_types")
    windows = windows_of(fields, layers=fields.layers())
    return configured_model(fields, layers=blocks_of(zip(windows), partial(_layer, fields)), tied=True)


def _layer(fields: Fields, window: int) -> Block:
    hidden, attention = fields.hidden(), _attention(fields, window=window)
    feed = mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True)
    if fields.flag("enable_moe_block", default=False):
        feed = (*feed, *_experts_beside(fields))
    return layer_block("layer_window" if window else "layer", hidden=hidden, attention=attention, feed_forward=feed, post_norms=True)


def _attention(fields: Fields, *, window: int) -> tuple[Operator, ...]:
    """Grouped-query attention; in full layers with ``attention_k_eq_v`` one projection gives keys and values (normed apart)."""
    hidden, heads = fields.hidden(), fields.heads()
    bias = fields.flag("attention_bias", default=False)
    if window:
        head_dim, kv_heads = fields.integer("head_dim", maximum=MAX_HEAD_DIM), fields.kv_heads()
        shared = False
    else:
        head_dim = fields.integer("global_head_dim", maximum=MAX_HEAD_DIM)
        shared = fields.flag("attention_k_eq_v", default=False)
        kv_heads = fields.integer("num_global_key_value_heads", maximum=MAX_HEADS) if shared else fields.kv_heads()
        if heads % kv_heads:
            fields.fail(f"num_global_key_value_heads = {kv_heads} does not divide the {heads} query heads", hint="choose a divisor")
    shape = AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim, window=window)
    if not shared:
        return attention_operators(hidden=hidden, shape=shape, bias=bias, output_bias=bias, qk_norm=True)
    query, key, _, out = head_extents(shape)
    width, klass = hidden_extent(hidden), OperatorClass.ATTN
    return (
        linear("qk", source="norm1", reads=(width,), writes=(query, key), klass=klass, bias=bias),
        qk_norm_operator(source="qk", shape=shape, width=QkNorm.HEAD),
        rotary_operator(inputs=("qk_norm",), shape=shape),
        core_operator("core", source="rotary", shape=shape),
        linear("proj", source="core", reads=(out,), writes=(width,), klass=klass, bias=bias),
    )


def _experts_beside(fields: Fields) -> tuple[Operator, ...]:
    """Experts that read the layer's stream beside the feed-forward; both outputs are normed and added.

    The router's input norm has a scale of its own, and every expert a stored factor.
    """
    hidden = fields.hidden()
    count = fields.integer("num_experts", maximum=MAX_EXPERTS)
    experts = ExpertShape(experts=count, topk=fields.integer("top_k_experts", "num_experts_per_tok", maximum=count))
    ffn = fields.ffn("moe_intermediate_size", "expert_intermediate_size")
    router, route = router_operators(source="router_norm", hidden=hidden, experts=experts)
    scale = Parameter(name="route.expert_scale", extents=(Extent(dim=Dim.EXPERTS, size=count),))
    routed = expert_operators(source="expert_norm", hidden=hidden, ffn=ffn, experts=experts)
    return (
        norm("mlp_norm", source="down", hidden=hidden),
        norm("router_norm", source="residual1", hidden=hidden),
        router,
        replace(route, parameters=(*route.parameters, scale)),
        norm("expert_norm", source="residual1", hidden=hidden),
        *routed,
        norm("moe_norm", source=routed[-1].name, hidden=hidden),
        residual("combine", source="moe_norm", skip="mlp_norm", hidden=hidden),
    )
