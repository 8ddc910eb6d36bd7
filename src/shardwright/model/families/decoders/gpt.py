"""Decoders of the GPT generation: LayerNorm with bias, multi-head attention, ungated feed-forward,
learned or ALiBi positions.
"""

from __future__ import annotations

from functools import partial

from shardwright.model.blocks.attention_windows import windows_of
from shardwright.model.blocks.decoder_model import configured_model
from shardwright.model.blocks.dense_blocks import (
    attention_operators,
    decoder_block,
    grouped_shape,
    layer_block,
    mlp_operators,
    parallel_block,
)
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_fields import MAX_CONTEXT, MAX_FFN, Fields
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape

# Rows that OPT's position table has before position 0.
OPT_POSITION_OFFSET = 2


def _heads(fields: Fields, *, alibi: bool = False, kv_heads: int | None = None) -> AttentionShape:
    heads, width = fields.heads(), fields.even_head_dim()
    return AttentionShape(
        heads=heads, kv_heads=kv_heads or heads, head_dim=width, value_dim=width, alibi=alibi
    )


def _biased_layer(
    fields: Fields, *, ffn: int, shape: AttentionShape, bias: bool = True, norm_bias: bool = True
) -> Block:
    return decoder_block(
        "layer",
        hidden=fields.hidden(),
        attention=shape,
        ffn=ffn,
        gated=False,
        norm_bias=norm_bias,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        rotary=False,
    )


def _learned(fields: Fields, shape: AttentionShape) -> Model:
    """GPT-2 with attention of a shape: a table of positions, feed-forwards of n_inner (null = 4 x
    hidden), tied.
    """
    if fields.flag("add_cross_attention", default=False):
        fields.unsupported("add_cross_attention = true")
    layer = _biased_layer(
        fields, ffn=fields.ffn("n_inner", default=4 * fields.hidden()), shape=shape
    )
    return configured_model(
        fields,
        layers=[layer] * fields.layers(),
        tied=True,
        positions=fields.integer("n_positions", "max_position_embeddings", maximum=MAX_CONTEXT),
        norm_bias=True,
    )


def build_gpt2(fields: Fields) -> Model:
    """GPT-2, GPT-3 and Megatron's GPTs (`GPT2Config`: n_inner null = 4 x hidden, tied)."""
    return _learned(fields, _heads(fields))


def build_gpt_neox(fields: Fields) -> Model:
    """GPT-NeoX and Pythia (`GPTNeoXConfig`: attention_bias true, use_parallel_residual true,
    untied): partial rotary positions.
    """
    hidden = fields.hidden()
    bias = fields.flag("attention_bias", default=True)
    attention = attention_operators(
        hidden=hidden, shape=_heads(fields), bias=bias, output_bias=bias
    )
    feed_forward = mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=False, bias=True)
    wrap = parallel_block if fields.flag("use_parallel_residual", default=True) else layer_block
    layer = wrap(
        "layer", hidden=hidden, attention=attention, feed_forward=feed_forward, norm_bias=True
    )
    return configured_model(fields, layers=[layer] * fields.layers(), norm_bias=True)


def build_opt(fields: Fields) -> Model:
    """OPT (`OPTConfig`: do_layer_norm_before true, biases, tied); the projected, post-norm form of
    OPT-350m is refused.
    """
    hidden = fields.hidden()
    projected = fields.optional_integer("word_embed_proj_dim")
    if projected is not None and projected != hidden:
        fields.unsupported(
            f"word_embed_proj_dim = {projected} next to hidden_size = {hidden} (a projected"
            " embedding)"
        )
    if not fields.flag("do_layer_norm_before", default=True):
        fields.unsupported("do_layer_norm_before = false (norms after the residual)")
    if not fields.flag("layer_norm_elementwise_affine", default=True):
        fields.unsupported("layer_norm_elementwise_affine = false")
    bias = fields.flag("enable_bias", default=True)
    layer = _biased_layer(
        fields, ffn=fields.ffn("ffn_dim", "intermediate_size"), shape=_heads(fields), bias=bias
    )
    return configured_model(
        fields,
        layers=[layer] * fields.layers(),
        tied=True,
        positions=fields.integer("max_position_embeddings", maximum=MAX_CONTEXT)
        + OPT_POSITION_OFFSET,
        norm_bias=True,
    )


def build_bloom(fields: Fields) -> Model:
    """BLOOM (`BloomConfig`: tied): ALiBi, a norm of the embedding, feed-forward of 4 x hidden."""
    layer = _biased_layer(fields, ffn=4 * fields.hidden(), shape=_heads(fields, alibi=True))
    return configured_model(
        fields,
        layers=[layer] * fields.layers(),
        tied=True,
        norm_bias=True,
        embed_norm=True,
    )


def build_mpt(fields: Fields) -> Model:
    """MPT (`MptConfig`: expansion_ratio 4, no_bias true, ALiBi, tied)."""
    attn = fields.optional_section("attn_config")
    if attn is not None and attn.flag("qk_ln", default=False):
        fields.unsupported("attn_config.qk_ln = true")
    if (
        attn is not None
        and attn.string("attn_type", default="multihead_attention") != "multihead_attention"
    ):
        fields.unsupported("attn_config.attn_type other than multihead_attention")
    alibi = attn.flag("alibi", default=True) if attn is not None else True
    learned = 0 if alibi else fields.integer("max_seq_len", maximum=MAX_CONTEXT)
    hidden = fields.hidden()
    ffn = fields.integer("expansion_ratio", default=4, maximum=64) * hidden
    if ffn > MAX_FFN:
        fields.fail(f"expansion_ratio x d_model = {ffn} is out of range")
    bias = not fields.flag("no_bias", default=True)
    layer = _biased_layer(
        fields, ffn=ffn, shape=_heads(fields, alibi=alibi), bias=bias, norm_bias=bias
    )
    return configured_model(
        fields,
        layers=[layer] * fields.layers(),
        tied=True,
        positions=learned,
        norm_bias=bias,
    )


def build_falcon(fields: Fields) -> Model:
    """Falcon (`FalconConfig`: multi_query true, parallel_attn true, bias false, tied): grouped or
    multi-query, parallel residual.
    """
    hidden = fields.hidden()
    modern = fields.flag("new_decoder_architecture", default=False)
    parallel = fields.flag("parallel_attn", default=True)
    bias = fields.flag("bias", default=False)
    alibi = fields.flag("alibi", default=False)
    if modern:
        kv_heads, norms = (
            fields.kv_heads("num_kv_heads", "n_head_kv"),
            fields.integer("num_ln_in_parallel_attn", default=2, maximum=2),
        )
    else:
        kv_heads, norms = (1 if fields.flag("multi_query", default=True) else fields.heads()), 1
    shape = _heads(fields, alibi=alibi, kv_heads=kv_heads)
    attention = attention_operators(
        hidden=hidden, shape=shape, bias=bias, output_bias=bias, rotary=not alibi
    )
    ffn = fields.ffn("ffn_hidden_size", default=4 * hidden)
    together = parallel or modern
    source = "norm1" if together and norms == 1 else "norm2"
    feed_forward = mlp_operators(source=source, hidden=hidden, ffn=ffn, gated=False, bias=bias)
    wrap = partial(parallel_block, norms=norms) if together else layer_block
    layer = wrap(
        "layer", hidden=hidden, attention=attention, feed_forward=feed_forward, norm_bias=True
    )
    return configured_model(fields, layers=[layer] * fields.layers(), tied=True, norm_bias=True)


def build_nemotron(fields: Fields) -> Model:
    """Nemotron-4 and Minitron (`NemotronConfig`: no biases, untied): LayerNorm with bias, squared
    ReLU, grouped queries, rotary.
    """
    width = fields.head_dim()
    bias = fields.flag("attention_bias", default=False)
    layer = decoder_block(
        "layer",
        hidden=fields.hidden(),
        attention=grouped_shape(fields, head_dim=width, kv_heads=fields.heads()),
        ffn=fields.ffn(),
        gated=False,
        norm_bias=True,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
    )
    return configured_model(fields, layers=[layer] * fields.layers(), norm_bias=True)


def build_starcoder2(fields: Fields) -> Model:
    """StarCoder2 (`Starcoder2Config`: 2 kv heads, biases, tied): LayerNorm with bias, ungated,
    rotary, a window of all layers or none.
    """
    bias = fields.flag("use_bias", default=True)
    (window,) = set(windows_of(fields, layers=fields.layers(), uniform=True))
    layer = decoder_block(
        "layer",
        hidden=fields.hidden(),
        attention=grouped_shape(fields, head_dim=fields.head_dim(), kv_heads=2, window=window),
        ffn=fields.ffn(),
        gated=False,
        norm_bias=True,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )
    return configured_model(fields, layers=[layer] * fields.layers(), tied=True, norm_bias=True)


def build_gpt_bigcode(fields: Fields) -> Model:
    """SantaCoder and StarCoder (`GPTBigCodeConfig`: multi_query true, n_inner null = 4 x hidden,
    tied): GPT-2 whose heads share keys.
    """
    shared = fields.flag("multi_query", default=True)
    return _learned(
        fields, _heads(fields, kv_heads=fields.kv_heads(default=1 if shared else fields.heads()))
    )
