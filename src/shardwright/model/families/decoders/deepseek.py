"""Builders of DeepSeek-V2, V3 and Kimi-K2: latent attention, shared experts, token prediction."""

from __future__ import annotations

from typing import Final

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import mlp_operators
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.blocks.latent_attention import LatentShape, latent_shape, mla_operators
from shardwright.model.blocks.multi_token_prediction import num_predictors
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import MAX_EXPERTS, MAX_LAYERS, Fields
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import ExpertShape, Operator

V3_GROUPS: Final = (8, 4)
"""Default groups of experts in `DeepseekV3Config`, and groups that a token may use."""


def expert_shape(fields: Fields, *, groups: tuple[int, int] = (1, 1)) -> ExpertShape:
    """Read experts, experts a token, and ``n_group`` and ``topk_group`` (default `groups`).

    `groups`: default number of groups, and of groups that a token may use.
    """
    experts = fields.integer(
        "n_routed_experts", "num_local_experts", "num_experts", maximum=MAX_EXPERTS
    )
    topk = fields.integer("num_experts_per_tok", "experts_per_token", maximum=MAX_EXPERTS)
    if topk > experts:
        fields.fail(
            f"num_experts_per_tok = {topk} exceeds the {experts} experts",
            hint="a token visits each expert at most once",
        )
    total = fields.integer(
        "n_group", default=1 if fields.written("n_group") else groups[0], maximum=MAX_EXPERTS
    )
    allowed = fields.integer(
        "topk_group",
        default=total if fields.written("topk_group") else groups[1],
        maximum=MAX_EXPERTS,
    )
    if experts % total or allowed > total:
        fields.fail(
            f"n_group = {total} and topk_group = {allowed} do not fit {experts} experts",
            hint="n_group divides the experts",
        )
    limited = allowed < total
    if limited and topk > allowed * (experts // total):
        fields.fail(
            f"num_experts_per_tok = {topk} exceeds the experts of {allowed} of {total} groups",
            hint="raise topk_group",
        )
    return ExpertShape(
        experts=experts,
        topk=topk,
        groups=allowed if limited else 0,
        of_groups=total if limited else 0,
    )


def sparse_layers(fields: Fields, *, layers: int) -> tuple[bool, ...]:
    """True for layers with experts: i >= ``first_k_dense_replace``, i mod ``moe_layer_freq`` = 0.

    The class default of ``first_k_dense_replace`` differs (0 in V2, 3 in V3), so it must be
    written.
    """
    dense = fields.integer("first_k_dense_replace", minimum=0, maximum=MAX_LAYERS)
    period = fields.integer("moe_layer_freq", default=1, maximum=MAX_LAYERS)
    return tuple(i >= dense and i % period == 0 for i in range(layers))


def moe_or_dense_operators(
    fields: Fields, *, sparse: bool, correction: bool, groups: tuple[int, int] = (1, 1)
) -> tuple[Operator, ...]:
    """Dense feed-forward, or if `sparse` routed (`correction`: selection bias) and shared experts.

    Default of shared experts: 2 in V2, else 1.

    `groups`: as in `expert_shape`.
    """
    hidden = fields.hidden()
    if not sparse:
        return mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=True)
    ffn = fields.ffn("moe_intermediate_size")
    shared = (
        fields.integer(
            "n_shared_experts", minimum=0, maximum=MAX_EXPERTS, default=1 if correction else 2
        )
        * ffn
    )
    return moe_operators(
        hidden=hidden,
        ffn=ffn,
        experts=expert_shape(fields, groups=groups),
        shared_ffn=shared,
        correction=correction,
    )


def latent_layer(fields: Fields, *, latent: LatentShape, sparse: bool, correction: bool) -> Block:
    """A DeepSeek layer: latent attention, then a dense feed-forward or, if `sparse`, experts."""
    attention = mla_operators(
        hidden=fields.hidden(), shape=latent, bias=fields.flag("attention_bias", default=False)
    )
    feed_forward = moe_or_dense_operators(
        fields, sparse=sparse, correction=correction, groups=V3_GROUPS if correction else (1, 1)
    )
    return layer_block(
        "moe" if sparse else "dense",
        hidden=fields.hidden(),
        attention=attention,
        feed_forward=feed_forward,
    )


def _build(fields: Fields, *, correction: bool) -> Model:
    """Build DeepSeek-V3 (`correction`: selection biases, prediction modules), or else V2."""
    latent, sparse = latent_shape(fields), sparse_layers(fields, layers=fields.layers())
    layers = blocks_of(
        zip(sparse),
        lambda flag: latent_layer(fields, latent=latent, sparse=flag, correction=correction),
    )
    return configured_model(
        fields, layers=layers, predicts=num_predictors(fields) if correction else 0
    )


def build_v2(fields: Fields) -> Model:
    """Build DeepSeek-V2 or V2-Lite from its config; without multi-token prediction."""
    return _build(fields, correction=False)


def build_v3(fields: Fields) -> Model:
    """Build DeepSeek-V3, R1 or Kimi-K2 from its config: routing correction, token prediction.

    The selection of experts uses a stored correction; ``num_nextn_predict_layers`` modules predict
    further tokens.
    """
    return _build(fields, correction=True)
