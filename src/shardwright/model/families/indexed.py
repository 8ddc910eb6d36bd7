"""Models with sparse attention by an indexer: DeepSeek-V3.2, GLM-5 and MiniMax-M3."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from shardwright.model.blocks.decoder import blocks_of, configured_model
from shardwright.model.blocks.dense import attention_operators, grouped_shape, layer_block, mlp_operators
from shardwright.model.blocks.experts import moe_operators
from shardwright.model.blocks.mla import latent_shape, mla_operators
from shardwright.model.blocks.predictor import num_predictors
from shardwright.model.blocks.sparse_attention import IndexShape, index_operators, index_shape, with_selection
from shardwright.model.families.deepseek import V3_GROUPS, expert_shape, shared_experts, sparse_layers
from shardwright.model.ir.block import Block
from shardwright.model.ir.fields import MAX_CONTEXT, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, Fields
from shardwright.model.ir.graph import Model

FULL, SHARED = "full", "shared"
DENSE, SPARSE = "dense", "sparse"
LETTERS = {"F": FULL, "S": SHARED}


def build_deepseek_v32(fields: Fields) -> Model:
    """DeepSeek-V3.2: DeepSeek-V3 with an indexer in every layer that selects ``index_topk`` keys."""
    return _build_latent(fields, indexers=(FULL,) * fields.layers(), groups=V3_GROUPS)


def build_glm_moe_dsa(fields: Fields) -> Model:
    """GLM-5 to 5.3: the same form; in 5.2 and later most layers share the selection of the last layer that has an indexer.

    ``layer_types`` has one word for all layers.
    """
    fields.aside("layer_types")
    return _build_latent(fields, indexers=_indexer_types(fields))


def _indexer_types(fields: Fields) -> tuple[str, ...]:
    """Which layers run an indexer: ``indexer_types``, ``index_topk_pattern`` (F, S), or every ``index_topk_freq``-th layer.

    Source of the last rule and its default offset 2: `GlmMoeDsaConfig` of Transformers 5.
    """
    layers = fields.layers()
    kinds = fields.layer_types(layers=layers, allowed=(FULL, SHARED), name="indexer_types")
    if not kinds and fields.present("index_topk_pattern"):
        pattern = fields.string("index_topk_pattern")
        if len(pattern) != layers or set(pattern) - set(LETTERS):
            fields.fail(f"index_topk_pattern must be {layers} letters F or S", hint="one letter for each layer")
        kinds = tuple(LETTERS[letter] for letter in pattern)
    if not kinds:
        every = fields.integer("index_topk_freq", default=1, maximum=MAX_LAYERS)
        offset = fields.integer("index_skip_topk_offset", minimum=0, default=2, maximum=MAX_LAYERS)
        kinds = tuple(FULL if max(i - offset + 1, 0) % every == 0 else SHARED for i in range(layers))
    if kinds[0] != FULL:
        fields.fail("the first layer shares a selection that no layer before it makes", hint="make the first indexer full")
    return kinds


def _sparse(fields: Fields) -> tuple[bool, ...]:
    """Which layers have experts: ``mlp_layer_types`` where it is written, else DeepSeek's fields; both must agree."""
    layers = fields.layers()
    kinds = fields.layer_types(layers=layers, allowed=(DENSE, SPARSE), name="mlp_layer_types")
    listed = tuple(kind == SPARSE for kind in kinds)
    if kinds and not fields.present("first_k_dense_replace"):
        return listed
    counted = sparse_layers(fields, layers=layers)
    if kinds and listed != counted:
        fields.fail("mlp_layer_types and first_k_dense_replace disagree", hint="keep one of them")
    return counted


def _build_latent(fields: Fields, *, indexers: tuple[str, ...], groups: tuple[int, int] = (1, 1)) -> Model:
    layers = blocks_of(zip(_sparse(fields), indexers, strict=True), partial(_latent_layer, fields, groups=groups))
    return configured_model(fields, layers=layers, predicts=num_predictors(fields))


def _latent_layer(fields: Fields, sparse: bool, indexer: str, *, groups: tuple[int, int]) -> Block:
    """Latent attention over selected keys; without an indexer the selection is that of an earlier layer (its transport is left out)."""
    if not fields.present("q_lora_rank"):
        fields.missing("q_lora_rank")
    hidden, latent, index = fields.hidden(), latent_shape(fields), index_shape(fields)
    bias, shape = fields.flag("attention_bias", default=False), replace(latent.attention(), selected=index.topk)
    attention = mla_operators(hidden=hidden, shape=latent, bias=bias, attention=shape)
    if indexer == FULL:
        scorer = index_operators(query_source="q_norm", hidden=hidden, query_width=latent.q_lora, shape=index)
        attention = with_selection(attention, indexer=scorer, after="q_up")
    name = ("moe" if sparse else "dense") + ("" if indexer == FULL else "_shared_index")
    feed_forward = shared_experts(fields, sparse=sparse, correction=True, groups=groups)
    return layer_block(name, hidden=hidden, attention=attention, feed_forward=feed_forward)


def build_minimax_m3(fields: Fields) -> Model:
    """MiniMax-M3, language model: grouped-query attention over selected blocks of keys, dense first layers, one shared expert.

    Every key/value head has its own scorer head; a query sees ``sparse_topk_blocks`` blocks of ``sparse_block_size`` keys.
    ``num_nextn_predict_layers`` counts prediction modules; ``num_mtp_modules`` (a number of prediction steps that share one) is not read.
    """
    layers = fields.layers()
    fields.aside("first_k_dense_replace", "moe_intermediate_size")  # what moe_layer_freq and intermediate_size say
    moe = fields.switches("moe_layer_freq", layers=layers)
    section = fields.section("sparse_attention_config")
    indexed = (False,) * layers
    if section.flag("use_sparse_attention"):
        indexed = section.switches("sparse_attention_freq", layers=layers)
    if fields.flag("attention_output_gate", default=False):
        fields.unsupported("attention_output_gate = true in this family")
    return configured_model(
        fields,
        layers=blocks_of(zip(moe, indexed, strict=True), partial(_minimax_layer, fields, section)),
        predicts=num_predictors(fields) if fields.present("num_nextn_predict_layers") else 0,
    )


def _minimax_layer(fields: Fields, section: Fields, moe: bool, indexed: bool) -> Block:
    hidden = fields.hidden()
    head_dim = fields.integer("head_dim", maximum=MAX_HEAD_DIM)
    selected = 0
    if indexed:
        size = section.integer("sparse_block_size", maximum=MAX_CONTEXT)
        selected = min(size * section.integer("sparse_topk_blocks", maximum=MAX_CONTEXT), MAX_CONTEXT)
    shape = grouped_shape(fields, head_dim=head_dim, selected=selected)
    attention = attention_operators(hidden=hidden, shape=shape, qk_norm=_qk_norm(fields))
    if indexed:
        index = IndexShape(
            heads=section.integer("sparse_num_index_heads", maximum=MAX_HEADS),
            head_dim=section.integer("sparse_index_dim", maximum=MAX_HEAD_DIM),
            topk=section.integer("sparse_topk_blocks", maximum=MAX_CONTEXT),
        )
        scorer = index_operators(query_source="norm1", hidden=hidden, query_width=hidden, shape=index, weighted=False, gain_only=True)
        attention = with_selection(attention, indexer=scorer, after="qkv")
    if moe:
        correction = fields.flag("use_routing_bias", default=False)
        shared = fields.integer("n_shared_experts", minimum=0, maximum=MAX_EXPERTS, default=0) * fields.ffn("shared_intermediate_size")
        feed = moe_operators(hidden=hidden, ffn=fields.ffn(), experts=expert_shape(fields), shared_ffn=shared, correction=correction)
    else:
        feed = mlp_operators(hidden=hidden, ffn=fields.ffn("dense_intermediate_size"), gated=True)
    name = ("moe" if moe else "dense") + ("_indexed" if indexed else "")
    return layer_block(name, hidden=hidden, attention=attention, feed_forward=feed)


def _qk_norm(fields: Fields) -> bool:
    if not fields.flag("use_qk_norm"):
        return False
    fields.choice("qk_norm_type", allowed=("per_head",))
    return True
