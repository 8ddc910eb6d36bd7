"""DeepSeek-V2, V3 and models of their form (Kimi-K2): latent attention, shared experts, dense first layers, multi-token prediction."""

from __future__ import annotations

from shardwright.model.blocks.decoder import configured_model, untied
from shardwright.model.blocks.dense import layer_block, mlp_operators
from shardwright.model.blocks.experts import moe_operators
from shardwright.model.blocks.mla import LatentShape, latent_shape, mla_operators
from shardwright.model.ir.block import Block
from shardwright.model.ir.fields import MAX_EXPERTS, MAX_LAYERS, Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import ExpertShape


def expert_shape(fields: Fields) -> ExpertShape:
    """Routed experts, experts per token and the groups that routing is limited to (1 group = free)."""
    experts = fields.integer("n_routed_experts", "num_local_experts", "num_experts", maximum=MAX_EXPERTS)
    topk = fields.integer("num_experts_per_tok", maximum=MAX_EXPERTS)
    if topk > experts:
        fields.fail(f"num_experts_per_tok = {topk} exceeds the {experts} experts", hint="a token visits each expert at most once")
    total = fields.integer("n_group", default=1, maximum=MAX_EXPERTS)
    allowed = fields.integer("topk_group", default=total, maximum=MAX_EXPERTS)
    if experts % total or allowed > total:
        fields.fail(f"n_group = {total} and topk_group = {allowed} do not fit {experts} experts", hint="n_group divides the experts")
    return ExpertShape(experts=experts, topk=topk, groups=allowed if allowed < total else 0)


def sparse_layers(fields: Fields, *, layers: int) -> tuple[bool, ...]:
    """Which layers have experts: all from ``first_k_dense_replace`` (class default 0 in V2, 3 in V3: so it must be written),
    every ``moe_layer_freq``-th.
    """
    dense = fields.integer("first_k_dense_replace", minimum=0, maximum=MAX_LAYERS)
    every = fields.integer("moe_layer_freq", default=1, maximum=MAX_LAYERS)
    return tuple(i >= dense and i % every == 0 for i in range(layers))


def latent_layer(name: str, *, fields: Fields, hidden: int, latent: LatentShape, sparse: bool, correction: bool) -> Block:
    """One layer with latent attention and either a dense feed-forward or experts with shared ones."""
    bias = fields.flag("attention_bias", default=False)
    if sparse:
        expert_ffn = fields.ffn("moe_intermediate_size")
        shared = fields.integer("n_shared_experts", minimum=0, maximum=MAX_EXPERTS, default=0)
        feed_forward = moe_operators(
            source="norm2",
            hidden=hidden,
            ffn=expert_ffn,
            experts=expert_shape(fields),
            shared_ffn=shared * expert_ffn,
            correction=correction,
        )
    else:
        feed_forward = mlp_operators(source="norm2", hidden=hidden, ffn=fields.ffn(), gated=True)
    attention = mla_operators(source="norm1", hidden=hidden, shape=latent, bias=bias)
    return layer_block(name, hidden=hidden, attention=attention, feed_forward=feed_forward)


def _build(fields: Fields, *, name: str, architecture: str, correction: bool) -> Model:
    hidden, layers = fields.hidden(), fields.layers()
    latent = latent_shape(fields)
    sparse = sparse_layers(fields, layers=layers)
    kinds = {
        flag: latent_layer(label, fields=fields, hidden=hidden, latent=latent, sparse=flag, correction=correction)
        for flag, label in ((False, "dense"), (True, "moe"))
        if flag in sparse
    }
    return configured_model(
        fields,
        name=name,
        architecture=architecture,
        layers=[kinds[flag] for flag in sparse],
        tied=untied(fields),
        predicts=correction,
    )


def build_v2(fields: Fields, *, name: str) -> Model:
    """DeepSeek-V2 and V2-Lite (no multi-token prediction)."""
    return _build(fields, name=name, architecture="DeepseekV2ForCausalLM", correction=False)


def build_v3(fields: Fields, *, name: str) -> Model:
    """DeepSeek-V3, R1, Kimi-K2: the choice of experts uses a stored correction; ``num_nextn_predict_layers`` modules predict further."""
    return _build(fields, name=name, architecture="DeepseekV3ForCausalLM", correction=True)
