"""The model graph of a row: a model of the catalog with the row's number of layers, or a decoder of four forms with the row's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.errors import ModelError
from shardwright.model.blocks.decoder import decoder_model
from shardwright.model.blocks.dense import attention_operators, decoder_block, embedding_block, head_block, layer_block
from shardwright.model.blocks.experts import moe_operators
from shardwright.model.catalog.catalog import catalog_entry
from shardwright.model.families.huggingface import model_from_config
from shardwright.model.ir.fields import MAX_LAYERS
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import AttentionShape, ExpertShape
from shardwright.validation.case import SkipReason
from shardwright.validation.measurements import Measurement

GPT: Final = "gpt"
LLAMA: Final = "llama"
NEMOTRON: Final = "nemotron"
EXPERTS: Final = "experts"
FORMS: Final = (GPT, LLAMA, NEMOTRON, EXPERTS)


def row_model(row: Measurement, *, config: Mapping[str, Any]) -> Model | tuple[SkipReason, str]:
    """The model graph of a row, or why there is none, with the size or name in question.

    Args:
        config: fields that replace those of the catalog's configuration.

    A feed-forward width that is not given is 4 x hidden in the forms ``gpt`` and ``experts``; key heads that are not given are as many as
    the query heads.
    """
    form = row.architecture
    if form not in FORMS:
        return _from_catalog(row, config=config)
    if (row.experts or 0) > 1 and form != EXPERTS:
        return SkipReason.UNSUPPORTED_MODEL, row.model_name
    sizes = {name: getattr(row, name) or 0 for name in ("layers", "hidden", "heads", "vocab", "seq_len")}
    needed = {**sizes, **({"ffn_hidden": row.ffn_hidden} if form in (LLAMA, NEMOTRON) else {})}
    needed |= {"topk": row.topk and row.experts} if form == EXPERTS else {}
    wrong = next((name for name, value in needed.items() if not value), "")
    if not wrong:
        wrong = "heads" if sizes["hidden"] % sizes["heads"] else "layers" if sizes["layers"] > MAX_LAYERS else ""
    if wrong:
        return SkipReason.INCOMPLETE_CONFIGURATION, wrong
    if form == EXPERTS:
        return _experts(row, **sizes)
    ffn = row.ffn_hidden or 4 * sizes["hidden"]
    return _dense(row.model_name, family=form, ffn=ffn, kv_heads=row.kv_heads or 0, qk_norm=bool(row.qk_norm), **sizes)


def _dense(
    name: str,
    *,
    family: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    seq_len: int,
    qk_norm: bool = False,
) -> Model:
    """The decoder of a family.

    GPT: LayerNorm, GELU, biases, learned positions, tied. Llama: RMSNorm, SwiGLU, rotary, untied. Nemotron: LayerNorm, squared ReLU, rotary
    and untied.
    """
    gpt = family == GPT
    width = hidden // heads
    shape = AttentionShape(heads=heads, kv_heads=kv_heads or heads, head_dim=width, value_dim=width)
    block = decoder_block(
        "layer",
        hidden=hidden,
        attention=shape,
        ffn=ffn,
        gated=family == LLAMA,
        norm_bias=family != LLAMA,
        attention_bias=gpt,
        output_bias=gpt,
        mlp_bias=gpt,
        qk_norm=qk_norm,
        rotary=not gpt,
    )
    return decoder_model(
        name,
        architecture=family,
        embed=embedding_block(hidden=hidden, vocab=vocab, positions=seq_len if gpt else 0),
        layers=(block,) * layers,
        head=head_block(hidden=hidden, vocab=vocab, tied=gpt, norm_bias=family != LLAMA),
        hidden=hidden,
        vocab=vocab,
        max_context=seq_len,
    )


def _experts(row: Measurement, *, layers: int, hidden: int, heads: int, vocab: int, seq_len: int) -> Model:
    """GPT with experts in every layer and no biases: LayerNorm, GELU, learned positions, tied (Megatron-LM's functional tests)."""
    width = hidden // heads
    shape = AttentionShape(heads=heads, kv_heads=row.kv_heads or heads, head_dim=width, value_dim=width)
    moe = moe_operators(
        source="norm2",
        hidden=hidden,
        ffn=row.expert_ffn or row.ffn_hidden or 4 * hidden,
        experts=ExpertShape(experts=row.experts or 1, topk=row.topk or 1),
        gated=False,
        shared_ffn=row.shared_ffn or 0,
    )
    attention = attention_operators(source="norm1", hidden=hidden, shape=shape, rotary=False)
    block = layer_block("moe", hidden=hidden, attention=attention, feed_forward=moe, norm_bias=True)
    return decoder_model(
        row.model_name,
        architecture=EXPERTS,
        embed=embedding_block(hidden=hidden, vocab=vocab, positions=seq_len),
        layers=(block,) * layers,
        head=head_block(hidden=hidden, vocab=vocab, tied=True, norm_bias=True),
        hidden=hidden,
        vocab=vocab,
        max_context=seq_len,
    )


def _from_catalog(row: Measurement, *, config: Mapping[str, Any]) -> Model | tuple[SkipReason, str]:
    """The catalog's model of that name."""
    try:
        known = catalog_entry(row.architecture or row.model_name).config
        layers = {"num_hidden_layers": row.layers} if row.layers else {}
        return model_from_config({**known, **layers, **config}, name=row.model_name)
    except ModelError as error:
        return SkipReason.UNSUPPORTED_MODEL, error.message
