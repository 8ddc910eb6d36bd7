"""Builder of MiniMax-M3's language model, from published or Transformers' field names."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from shardwright.model.blocks.assemble_decoder_model import blocks_of, configured_model
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    attention_operators,
    grouped_shape,
    mlp_operators,
)
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.blocks.multi_token_prediction import num_predictors
from shardwright.model.blocks.sparse_attention_indexer import (
    IndexShape,
    index_operators,
    with_selection,
)
from shardwright.model.families.decoders.deepseek import expert_shape
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    Fields,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import BlockChoice, Operator

DENSE, SPARSE = "dense", "sparse"
FULL, INDEXED = "full_attention", "minimax_m3_sparse"
SECTION: Final = "sparse_attention_config"
SIZES: Final = {
    "index_n_heads": ("sparse_num_index_heads", 4, MAX_HEADS),
    "index_head_dim": ("sparse_index_dim", 128, MAX_HEAD_DIM),
    "index_block_size": ("sparse_block_size", 128, MAX_CONTEXT),
    "index_topk_blocks": ("sparse_topk_blocks", 16, MAX_CONTEXT),
    "index_local_blocks": ("sparse_local_block", 1, MAX_CONTEXT),
}
"""Size of an indexer -> (name in its section, which wins; class default; maximum)."""


def build_minimax_m3(fields: Fields) -> Model:
    """Build MiniMax-M3's language model: sparse grouped-query attention, experts.

    First layers are dense, one expert is shared, gates are clamped.

    Every key/value head has its own scorer head; a query sees ``index_topk_blocks`` blocks of
    ``index_block_size`` keys. ``num_nextn_predict_layers`` counts prediction modules;
    ``num_mtp_modules`` (a number of prediction steps that share one) is not read.
    """
    layers = fields.layers()
    fields.mark_read(
        "first_k_dense_replace", "moe_intermediate_size"
    )  # what moe_layer_freq and intermediate_size say
    if fields.flag("attention_output_gate", default=False):
        fields.unsupported("attention_output_gate = true in this family")
    kinds = zip(
        _layers_with_experts(fields, layers), _layers_with_indexer(fields, layers), strict=True
    )
    return configured_model(
        fields,
        layers=blocks_of(kinds, partial(_layer, fields)),
        predicts=num_predictors(fields) if fields.present("num_nextn_predict_layers") else 0,
    )


def _layers_with_experts(fields: Fields, layers: int) -> tuple[bool, ...]:
    """True for each layer with experts: ``mlp_layer_types``, or ``moe_layer_freq``, or all."""
    listed = tuple(
        kind == SPARSE
        for kind in fields.layer_types(
            layers=layers, allowed=(DENSE, SPARSE), name="mlp_layer_types"
        )
    )
    switched = (
        fields.switches("moe_layer_freq", layers=layers) if fields.present("moe_layer_freq") else ()
    )
    if listed and switched and listed != switched:
        fields.fail("mlp_layer_types and moe_layer_freq disagree", hint="keep one of them")
    return listed or switched or (True,) * layers


def _layers_with_indexer(fields: Fields, layers: int) -> tuple[bool, ...]:
    """True for layers with an indexer: ``layer_types``, or ``sparse_attention_config``, or none."""
    listed = tuple(
        kind == INDEXED for kind in fields.layer_types(layers=layers, allowed=(FULL, INDEXED))
    )
    section = fields.optional_section(SECTION)
    switched: tuple[bool, ...] = ()
    if section is not None:
        section.mark_read("sparse_disable_index_value")  # an indexer has no values
        section.choice("sparse_score_type", allowed=("max",), default="max")
        if section.integer("sparse_init_block", minimum=0, default=0):
            section.unsupported("sparse_init_block other than 0 in this family")
        asked = section.flag("use_sparse_attention", default=True)
        if asked or section.present("sparse_attention_freq"):
            switched = section.switches("sparse_attention_freq", layers=layers)
        if any(switched) and not asked:
            section.unsupported(
                "use_sparse_attention = false beside layers that sparse_attention_freq names"
            )
    if listed and switched and listed != switched:
        fields.fail(f"layer_types and {SECTION} disagree", hint="keep one of them")
    return listed or switched or (False,) * layers


def _indexer_size(fields: Fields, name: str) -> int:
    """Read one size of the indexer: from its section, the top level, or the class default."""
    other, usual, most = SIZES[name]
    section, least = fields.optional_section(SECTION), 0 if name == "index_local_blocks" else 1
    if section is not None and section.present(other):
        return section.integer(other, minimum=least, maximum=most)
    return fields.integer(name, default=usual, minimum=least, maximum=most)


def _layer(fields: Fields, moe: bool, indexed: bool) -> Block:
    """A MiniMax-M3 layer: dense or with experts, with or without an indexer."""
    hidden = fields.hidden()
    feed = (
        _experts(fields)
        if moe
        else mlp_operators(hidden=hidden, ffn=fields.ffn("dense_intermediate_size"), gated=True)
    )
    clamped = tuple(replace(operator, clamped=operator.gated) for operator in feed)
    name = ("moe" if moe else "dense") + ("_indexed" if indexed else "")
    return layer_block(
        name, hidden=hidden, attention=_attention(fields, indexed), feed_forward=clamped
    )


def _attention(fields: Fields, indexed: bool) -> tuple[Operator, ...]:
    """Grouped-query attention, over key blocks that an indexer selects if `indexed`."""
    hidden, sizes = fields.hidden(), {name: _indexer_size(fields, name) for name in SIZES}
    selected = (
        min(sizes["index_block_size"] * sizes["index_topk_blocks"], MAX_CONTEXT) if indexed else 0
    )
    shape = grouped_shape(
        fields, head_dim=fields.integer("head_dim", maximum=MAX_HEAD_DIM), selected=selected
    )
    attention = attention_operators(hidden=hidden, shape=shape, qk_norm=_qk_norm(fields))
    if not indexed:
        return attention
    index = IndexShape(
        heads=sizes["index_n_heads"],
        head_dim=sizes["index_head_dim"],
        topk=sizes["index_topk_blocks"],
    )
    blocks = BlockChoice(
        size=sizes["index_block_size"],
        count=index.topk,
        local=sizes["index_local_blocks"],
        heads=index.heads,
        width=shape.head_dim,
    )
    if shape.heads % index.heads:
        fields.fail(
            f"{index.heads} heads of the indexer do not divide the {shape.heads} query heads",
            hint="choose a divisor",
        )
    if blocks.local > blocks.count:
        fields.fail(
            f"{blocks.local} local blocks are more than the {blocks.count} that are selected",
            hint="select as many at least",
        )
    scorer = index_operators(
        query_source="norm1", hidden=hidden, query_width=hidden, shape=index, blocks=blocks
    )
    return with_selection(attention, indexer=scorer, after="qkv")


def _experts(fields: Fields) -> tuple[Operator, ...]:
    """MiniMax-M3's feed-forward with experts: routed experts, and by default one shared expert."""
    shared = fields.integer(
        "n_shared_experts", minimum=0, maximum=MAX_EXPERTS, default=1
    ) * fields.ffn("shared_intermediate_size")
    return moe_operators(
        hidden=fields.hidden(),
        ffn=fields.ffn(),
        experts=expert_shape(fields),
        shared_ffn=shared,
        correction=fields.flag("use_routing_bias", default=True),
    )


def _qk_norm(fields: Fields) -> bool:
    """True if ``use_qk_norm``; raises for a ``qk_norm_type`` other than per_head."""
    if not fields.flag("use_qk_norm", default=True):
        return False
    fields.choice("qk_norm_type", allowed=("per_head",), default="per_head")
    return True
