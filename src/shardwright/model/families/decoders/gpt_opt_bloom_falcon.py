"""Builders of GPT-style decoders: LayerNorm with bias, learned or ALiBi positions."""

from __future__ import annotations

from functools import partial

from shardwright.model.blocks.assemble_decoder_model import configured_model
from shardwright.model.blocks.dense_blocks import decoder_block, layer_block, parallel_block
from shardwright.model.blocks.dense_transformer_operators import (
    attention_operators,
    grouped_shape,
    mlp_operators,
)
from shardwright.model.blocks.read_sliding_windows_from_config import windows_of
from shardwright.model.ir.block import Block
from shardwright.model.ir.config_json_field_access import MAX_CONTEXT, MAX_FFN, Fields
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape

# Rows that OPT's position table has before position 0.
OPT_POSITION_OFFSET = 2


def _attention_shape(
    fields: Fields, *, alibi: bool = False, kv_heads: int | None = None
) -> AttentionShape:
    """Attention shape of heads hidden / heads wide; `kv_heads` None = as many as query heads."""
    heads, width = fields.heads(), fields.even_head_dim()
    return AttentionShape(
        heads=heads, kv_heads=kv_heads or heads, head_dim=width, value_dim=width, alibi=alibi
    )


def _biased_layer(
    fields: Fields, *, ffn: int, shape: AttentionShape, bias: bool = True, norm_bias: bool = True
) -> Block:
    """A pre-norm GPT layer with ungated feed-forward, without rotary positions, biases optional."""
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


def _with_learned_positions(fields: Fields, shape: AttentionShape) -> Model:
    """Build a GPT-2 model with learned positions and attention of this shape.

    The feed-forward width is n_inner (null = 4 x hidden); the head is tied.
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
    """Build GPT-2, GPT-3 or a Megatron GPT from its config (`GPT2Config`: tied)."""
    return _with_learned_positions(fields, _attention_shape(fields))


def build_gpt_neox(fields: Fields) -> Model:
    """Build GPT-NeoX or Pythia from its config: partial rotary positions, parallel residual.

    `GPTNeoXConfig`: attention_bias true, use_parallel_residual true, untied.
    """
    hidden = fields.hidden()
    bias = fields.flag("attention_bias", default=True)
    attention = attention_operators(
        hidden=hidden, shape=_attention_shape(fields), bias=bias, output_bias=bias
    )
    feed_forward = mlp_operators(hidden=hidden, ffn=fields.ffn(), gated=False, bias=True)
    wrap = parallel_block if fields.flag("use_parallel_residual", default=True) else layer_block
    layer = wrap(
        "layer", hidden=hidden, attention=attention, feed_forward=feed_forward, norm_bias=True
    )
    return configured_model(fields, layers=[layer] * fields.layers(), norm_bias=True)


def build_opt(fields: Fields) -> Model:
    """Build OPT from its config (`OPTConfig`: biases, tied); the post-norm OPT-350m is refused."""
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
        fields,
        ffn=fields.ffn("ffn_dim", "intermediate_size"),
        shape=_attention_shape(fields),
        bias=bias,
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
    """Build BLOOM from its config (`BloomConfig`: tied): ALiBi, norm of the embedding."""
    layer = _biased_layer(
        fields, ffn=4 * fields.hidden(), shape=_attention_shape(fields, alibi=True)
    )
    return configured_model(
        fields,
        layers=[layer] * fields.layers(),
        tied=True,
        norm_bias=True,
        embed_norm=True,
    )


def build_mpt(fields: Fields) -> Model:
    """Build MPT from its config (`MptConfig`: expansion_ratio 4, no biases, ALiBi, tied)."""
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
        fields, ffn=ffn, shape=_attention_shape(fields, alibi=alibi), bias=bias, norm_bias=bias
    )
    return configured_model(
        fields,
        layers=[layer] * fields.layers(),
        tied=True,
        positions=learned,
        norm_bias=bias,
    )


def build_falcon(fields: Fields) -> Model:
    """Build Falcon from its config: grouped-query or multi-query attention, parallel residual.

    `FalconConfig`: multi_query true, parallel_attn true, bias false, tied.
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
    shape = _attention_shape(fields, alibi=alibi, kv_heads=kv_heads)
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
    """Build Nemotron-4 or Minitron from its config: LayerNorm, squared ReLU, rotary.

    `NemotronConfig`: no biases but the norm's, untied.
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
    """Build StarCoder2 from its config: LayerNorm, ungated feed-forward, rotary, a window.

    `Starcoder2Config`: 2 kv heads, biases, tied.
    """
    bias = fields.flag("use_bias", default=True)
    (window,) = set(windows_of(fields, layers=fields.layers(), on_all_without_types=True))
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
    """Build SantaCoder or StarCoder from its config: GPT-2 with multi-query attention.

    `GPTBigCodeConfig`: multi_query true, n_inner null = 4 x hidden, tied.
    """
    shared = fields.flag("multi_query", default=True)
    return _with_learned_positions(
        fields,
        _attention_shape(fields, kv_heads=fields.kv_heads(default=1 if shared else fields.heads())),
    )
