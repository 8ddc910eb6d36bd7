"""The model graph of a row: a model of the catalog with the row's number of layers, or a decoder of
five forms with the row's sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from shardwright.errors import ModelError
from shardwright.model.blocks.decoder import decoder_model
from shardwright.model.blocks.dense import (
    attention_operators,
    embedding_block,
    head_block,
    layer_block,
    mlp_operators,
)
from shardwright.model.blocks.experts import moe_operators
from shardwright.model.catalog.catalog import catalog_entry
from shardwright.model.families.huggingface_config import (
    load_config,
    model_from_config,
    parse_config,
)
from shardwright.model.ir.fields import MAX_LAYERS
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import AttentionShape, ExpertShape
from shardwright.validation.tables.measured_rows import Measurement
from shardwright.validation.tables.measured_run import SkipReason

GPT: Final = "gpt"
LLAMA: Final = "llama"
NEMOTRON: Final = "nemotron"
EXPERTS: Final = "experts"
MIXTURE: Final = "mixture"
FORMS: Final = (GPT, LLAMA, NEMOTRON, EXPERTS, MIXTURE)


def row_model(row: Measurement, *, config: Mapping[str, Any]) -> Model | tuple[SkipReason, str]:
    """The model graph of a row, or why there is none, with the size or name in question.

    Args:
        config: fields that replace those of the catalog's configuration.

    A feed-forward width that is not given is 4 x hidden in the forms ``gpt`` and ``experts``; key
    heads that are not given are as many as the query heads.
    """
    form = row.architecture
    if row.config:
        return _from_file(row)
    if form not in FORMS:
        return _from_catalog(row, config=config)
    if (row.experts or 0) > 1 and form not in (EXPERTS, MIXTURE):
        return SkipReason.UNSUPPORTED_MODEL, row.model_name
    sizes = {
        name: getattr(row, name) or 0 for name in ("layers", "hidden", "heads", "vocab", "seq_len")
    }
    needed = {**sizes, **({"ffn_hidden": row.ffn_hidden} if form in (LLAMA, NEMOTRON) else {})}
    needed |= {"topk": row.topk and row.experts} if form in (EXPERTS, MIXTURE) else {}
    needed |= {"expert_ffn": row.expert_ffn or row.ffn_hidden} if form == MIXTURE else {}
    wrong = next((name for name, value in needed.items() if not value), "")
    if not wrong:
        wrong = (
            "heads"
            if sizes["hidden"] % sizes["heads"]
            else "layers"
            if sizes["layers"] > MAX_LAYERS
            else ""
        )
    if wrong:
        return SkipReason.INCOMPLETE_CONFIGURATION, wrong
    return _decoder(row, form=form, **sizes)


def _from_file(row: Measurement) -> Model | tuple[SkipReason, str]:
    try:
        if not row.config.lstrip().startswith("{"):
            return replace(load_config(row.config), name=row.model_name)
        return model_from_config(
            parse_config(row.config.encode(), source="config"), name=row.model_name
        )
    except ModelError as error:
        return SkipReason.UNSUPPORTED_MODEL, error.message


def _decoder(
    row: Measurement, *, form: str, layers: int, hidden: int, heads: int, vocab: int, seq_len: int
) -> Model:
    """The decoder of a form.

    GPT: LayerNorm, GELU, biases, learned positions, tied. Llama: RMSNorm, SwiGLU, rotary, untied.
    Nemotron: LayerNorm, squared ReLU, rotary and untied. Experts: GPT with experts in every layer
    and no biases (Megatron-LM's functional tests). Mixture: Llama with experts in every layer.
    """
    sparse, gated = form in (EXPERTS, MIXTURE), form in (LLAMA, MIXTURE)
    learned, bias, norm_bias = form in (GPT, EXPERTS), form == GPT, not gated
    width, ffn = hidden // heads, row.ffn_hidden or 4 * hidden
    shape = AttentionShape(
        heads=heads, kv_heads=row.kv_heads or heads, head_dim=width, value_dim=width
    )
    if sparse:
        experts, width_of_one = (
            ExpertShape(experts=row.experts or 1, topk=row.topk or 1),
            row.expert_ffn or ffn,
        )
        shared = row.shared_ffn or (round((row.shared_experts or 0) * width_of_one) if gated else 0)
        feed = moe_operators(
            hidden=hidden, ffn=width_of_one, experts=experts, gated=gated, shared_ffn=shared
        )
    else:
        feed = mlp_operators(hidden=hidden, ffn=ffn, gated=gated, bias=bias)
    norms = bool(row.qk_norm) and form != EXPERTS
    attention = attention_operators(
        hidden=hidden, shape=shape, bias=bias, output_bias=bias, qk_norm=norms, rotary=not learned
    )
    block = layer_block(
        "moe" if sparse else "layer",
        hidden=hidden,
        attention=attention,
        feed_forward=feed,
        norm_bias=norm_bias,
    )
    model = decoder_model(
        embed=embedding_block(hidden=hidden, vocab=vocab, positions=seq_len if learned else 0),
        layers=(block,) * layers,
        head=head_block(hidden=hidden, vocab=vocab, tied=learned, norm_bias=norm_bias),
        hidden=hidden,
        vocab=vocab,
        max_context=seq_len,
    )
    return replace(model, name=row.model_name, architecture=form)


def _from_catalog(row: Measurement, *, config: Mapping[str, Any]) -> Model | tuple[SkipReason, str]:
    """The catalog's model of that name."""
    try:
        known = catalog_entry(row.architecture or row.model_name).config
        layers = {"num_hidden_layers": row.layers} if row.layers else {}
        return model_from_config({**known, **layers, **config}, name=row.model_name)
    except ModelError as error:
        return SkipReason.UNSUPPORTED_MODEL, error.message
