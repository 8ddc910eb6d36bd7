"""The model of a table row: from a config, the catalog, or a decoder built from the row's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from shardwright.errors import ModelError
from shardwright.model.blocks.assemble_decoder_model import decoder_model
from shardwright.model.blocks.dense_blocks import embedding_block, head_block, layer_block
from shardwright.model.blocks.dense_transformer_operators import attention_operators, mlp_operators
from shardwright.model.blocks.expert_blocks import moe_operators
from shardwright.model.catalog.load_model_by_name import catalog_entry
from shardwright.model.families.huggingface_config import (
    load_config,
    model_from_config,
    parse_config,
)
from shardwright.model.ir.config_json_field_access import MAX_LAYERS
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape, ExpertShape
from shardwright.validation.tables.skipped_rows import SkipReason, UnusableRowError
from shardwright.validation.training.training_table_columns import TrainingMeasurement

GPT: Final = "gpt"
LLAMA: Final = "llama"
NEMOTRON: Final = "nemotron"
EXPERTS: Final = "experts"
MIXTURE: Final = "mixture"
FORMS: Final = (GPT, LLAMA, NEMOTRON, EXPERTS, MIXTURE)


def row_model(row: TrainingMeasurement, *, config: Mapping[str, Any]) -> Model:
    """The model of a row: from its config cell, from the catalog, or a decoder with its sizes.

    A feed-forward width that is not given is 4 x hidden in the forms ``gpt`` and ``experts``; key
    heads that are not given are as many as the query heads.

    Args:
        config: fields that replace fields of the catalog's configuration.

    Raises:
        UnusableRowError: no such model; the message names the size or the name in question.
    """
    try:
        if row.config:
            return model_of_config(row.config, name=row.model_name)
        if row.architecture not in FORMS:
            return _catalog_model(row, config=config)
    except ModelError as error:
        raise UnusableRowError(SkipReason.UNSUPPORTED_MODEL, error.message) from None
    form = row.architecture
    if (row.experts or 0) > 1 and form not in (EXPERTS, MIXTURE):
        raise UnusableRowError(SkipReason.UNSUPPORTED_MODEL, row.model_name)
    sizes = {
        name: getattr(row, name) or 0 for name in ("layers", "hidden", "heads", "vocab", "seq_len")
    }
    needed = {**sizes}
    if form in (LLAMA, NEMOTRON):
        needed["ffn_hidden"] = row.ffn_hidden or 0
    if form in (EXPERTS, MIXTURE):
        needed["topk"] = row.topk if row.topk and row.experts else 0
    if form == MIXTURE:
        needed["expert_ffn"] = row.expert_ffn or row.ffn_hidden or 0
    wrong = next((name for name, value in needed.items() if not value), "")
    if not wrong and sizes["hidden"] % sizes["heads"]:
        wrong = "heads"
    if not wrong and sizes["layers"] > MAX_LAYERS:
        wrong = "layers"
    if wrong:
        raise UnusableRowError(SkipReason.INCOMPLETE_CONFIGURATION, wrong)
    return _decoder(row, form=form, **sizes)


def model_of_config(cell: str, *, name: str) -> Model:
    """Load a model from a Hugging Face config.json, given as its path or as its text.

    Raises:
        ModelError: the config cannot be read, or has an unknown architecture.
    """
    if cell.lstrip().startswith("{"):
        return model_from_config(parse_config(cell.encode(), source="config"), name=name)
    return replace(load_config(cell), name=name)


def _decoder(
    row: TrainingMeasurement,
    *,
    form: str,
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    seq_len: int,
) -> Model:
    """Build a decoder of a form (gpt, llama, nemotron, experts, mixture) from sizes.

    GPT: LayerNorm, GELU, biases, learned positions, tied. Llama: RMSNorm, SwiGLU, rotary, untied.
    Nemotron: LayerNorm, squared ReLU, rotary and untied. Experts: GPT with experts in every layer
    and no biases (Megatron-LM's functional tests). Mixture: Llama with experts in every layer.
    """
    sparse, gated = form in (EXPERTS, MIXTURE), form in (LLAMA, MIXTURE)
    learned_positions, bias, norm_bias = form in (GPT, EXPERTS), form == GPT, not gated
    head_width, ffn = hidden // heads, row.ffn_hidden or 4 * hidden
    shape = AttentionShape(
        heads=heads, kv_heads=row.kv_heads or heads, head_dim=head_width, value_dim=head_width
    )
    if sparse:
        expert_ffn = row.expert_ffn or ffn
        shared_experts = round((row.shared_experts or 0) * expert_ffn) if gated else 0
        feed_forward = moe_operators(
            hidden=hidden,
            ffn=expert_ffn,
            experts=ExpertShape(experts=row.experts or 1, topk=row.topk or 1),
            gated=gated,
            shared_ffn=row.shared_ffn or shared_experts,
        )
    else:
        feed_forward = mlp_operators(hidden=hidden, ffn=ffn, gated=gated, bias=bias)
    attention = attention_operators(
        hidden=hidden,
        shape=shape,
        bias=bias,
        output_bias=bias,
        qk_norm=bool(row.qk_norm) and form != EXPERTS,
        rotary=not learned_positions,
    )
    block = layer_block(
        "moe" if sparse else "layer",
        hidden=hidden,
        attention=attention,
        feed_forward=feed_forward,
        norm_bias=norm_bias,
    )
    positions = seq_len if learned_positions else 0
    model = decoder_model(
        embed=embedding_block(hidden=hidden, vocab=vocab, positions=positions),
        layers=(block,) * layers,
        head=head_block(hidden=hidden, vocab=vocab, tied=learned_positions, norm_bias=norm_bias),
        hidden=hidden,
        vocab=vocab,
        max_context=seq_len,
    )
    return replace(model, name=row.model_name, architecture=form)


def _catalog_model(row: TrainingMeasurement, *, config: Mapping[str, Any]) -> Model:
    """Catalog model of the row's architecture or name, with row's layers and `config` fields."""
    fields = catalog_entry(row.architecture or row.model_name).config
    layers = {"num_hidden_layers": row.layers} if row.layers else {}
    return model_from_config({**fields, **layers, **config}, name=row.model_name)
