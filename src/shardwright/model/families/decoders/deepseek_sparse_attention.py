"""Builders of DeepSeek-V3.2 and GLM-5: latent attention over keys that an indexer selects."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.latent_attention import latent_shape, mla_operators
from shardwright.model.blocks.multi_token_prediction import num_predictors
from shardwright.model.blocks.sparse_attention_indexer import (
    index_operators,
    index_shape,
    with_selection,
)
from shardwright.model.families.decoders.deepseek import (
    V3_GROUPS,
    moe_or_dense_operators,
    sparse_layers,
)
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import MAX_LAYERS, Fields
from shardwright.model.ir.model_graph import Model

FULL, SHARED = "full", "shared"
DENSE, SPARSE = "dense", "sparse"
LETTERS = {"F": FULL, "S": SHARED}


def build_deepseek_v32(fields: Fields) -> Model:
    """Build DeepSeek-V3.2 from its config: V3 with an indexer in every layer.

    The indexer selects ``index_topk`` keys.
    """
    return _build_latent(fields, indexers=(FULL,) * fields.layers(), groups=V3_GROUPS)


def build_glm_moe_dsa(fields: Fields) -> Model:
    """Build GLM-5 to 5.3 from its config: DeepSeek-V3.2's form, with shared selections from 5.2 on.

    Most layers then use the selection of the last layer that has an indexer.

    ``layer_types`` has one word for all layers.
    """
    fields.mark_read("layer_types")
    return _build_latent(fields, indexers=_indexer_types(fields))


def _indexer_types(fields: Fields) -> tuple[str, ...]:
    """Each layer's indexer, full (own) or shared with an earlier layer: list, pattern or period.

    ``index_topk_pattern`` has letters F and S; ``index_topk_freq`` selects every n-th layer.

    Source of the last rule and its default offset 2: `GlmMoeDsaConfig` of Transformers 5.
    """
    layers = fields.layers()
    kinds = fields.layer_types(layers=layers, allowed=(FULL, SHARED), name="indexer_types")
    if not kinds and fields.present("index_topk_pattern"):
        pattern = fields.string("index_topk_pattern")
        if len(pattern) != layers or set(pattern) - set(LETTERS):
            fields.fail(
                f"index_topk_pattern must be {layers} letters F or S",
                hint="one letter for each layer",
            )
        kinds = tuple(LETTERS[letter] for letter in pattern)
    if not kinds:
        period = fields.integer("index_topk_freq", default=1, maximum=MAX_LAYERS)
        offset = fields.integer("index_skip_topk_offset", minimum=0, default=2, maximum=MAX_LAYERS)
        kinds = tuple(
            FULL if max(i - offset + 1, 0) % period == 0 else SHARED for i in range(layers)
        )
    if kinds[0] != FULL:
        fields.fail(
            "the first layer shares a selection that no layer before it makes",
            hint="make the first indexer full",
        )
    return kinds


def _layers_with_experts(fields: Fields) -> tuple[bool, ...]:
    """True for each layer with experts: ``mlp_layer_types`` or ``first_k_dense_replace``.

    Both must agree.
    """
    layers = fields.layers()
    kinds = fields.layer_types(layers=layers, allowed=(DENSE, SPARSE), name="mlp_layer_types")
    listed = tuple(kind == SPARSE for kind in kinds)
    if kinds and not fields.present("first_k_dense_replace"):
        return listed
    counted = sparse_layers(fields, layers=layers)
    if kinds and listed != counted:
        fields.fail("mlp_layer_types and first_k_dense_replace disagree", hint="keep one of them")
    return counted


def _build_latent(
    fields: Fields, *, indexers: tuple[str, ...], groups: tuple[int, int] = (1, 1)
) -> Model:
    """Build a latent-attention model; `indexers` has each layer's kind, full or shared."""
    layers = blocks_of(
        zip(_layers_with_experts(fields), indexers, strict=True),
        partial(_latent_layer, fields, groups=groups),
    )
    return configured_model(fields, layers=layers, predicts=num_predictors(fields))


def _latent_layer(fields: Fields, sparse: bool, indexer: str, *, groups: tuple[int, int]) -> Block:
    """A layer of latent attention over keys that its own, or an earlier, indexer selects.

    The transport of an earlier layer's selection is left out.
    """
    if not fields.present("q_lora_rank"):
        fields.missing("q_lora_rank")
    hidden, latent, index = fields.hidden(), latent_shape(fields), index_shape(fields)
    bias, shape = (
        fields.flag("attention_bias", default=False),
        replace(latent.attention(), selected=index.topk),
    )
    attention = mla_operators(hidden=hidden, shape=latent, bias=bias, attention=shape)
    if indexer == FULL:
        scorer = index_operators(
            query_source="q_norm", hidden=hidden, query_width=latent.q_lora, shape=index
        )
        attention = with_selection(attention, indexer=scorer, after="q_up")
    name = ("moe" if sparse else "dense") + ("" if indexer == FULL else "_shared_index")
    feed_forward = moe_or_dense_operators(fields, sparse=sparse, correction=True, groups=groups)
    return layer_block(name, hidden=hidden, attention=attention, feed_forward=feed_forward)
