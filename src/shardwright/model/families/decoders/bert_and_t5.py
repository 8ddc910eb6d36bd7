"""Builders of BERT and T5 models: encoders, and encoder-decoders as a DAG of runs.

Sequences: a BERT runs over ``text``; a T5's encoder runs over ``encoder``, its decoder over
``text`` with ``encoder`` as the memory of its cross-attention. The runs of T5 are
``encoder_embed``, ``encoder``, ``encoder_norm``, ``embed``, ``decoder``, ``head``; every decoder
layer reads the output of ``encoder_norm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.model.blocks.assemble_decoder_model import decoder_model
from shardwright.model.blocks.dense_blocks import embedding_block, head_block, layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    attention_operators,
    core_operator,
    distance_table,
    head_extents,
    hidden_extent,
    linear,
    mlp_operators,
    norm,
    residual,
    unary_operator,
)
from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.config_json_field_access import (
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    Fields,
)
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import (
    AttentionShape,
    Mask,
    Operator,
    OperatorClass,
    OperatorKind,
)
from shardwright.model.ir.tensor_dims import Parameter, ParameterClass

ENCODER = "encoder"
MAX_TYPES = 2**10
MAX_BUCKETS = 2**16


def build_bert(fields: Fields) -> Model:
    """Build BERT with the masked-language-model head from its config (`BertConfig`).

    Defaults: tied, norms after the sub-blocks, biases everywhere, 2 segment types.

    The transform before the logits is part of the head; pooler and next-sentence head are left out.
    """
    hidden, vocab = fields.hidden(), fields.vocab()
    if fields.flag("is_decoder", default=False) or fields.flag(
        "add_cross_attention", default=False
    ):
        fields.unsupported("is_decoder or add_cross_attention in this family")
    if fields.string("position_embedding_type", default="absolute") != "absolute":
        fields.unsupported("position_embedding_type other than absolute")
    head_dim = fields.even_head_dim()
    heads = fields.heads()
    shape = AttentionShape(
        heads=heads, kv_heads=heads, head_dim=head_dim, value_dim=head_dim, mask=Mask.FULL
    )
    layer = _post_norm_layer(
        attention=attention_operators(
            source=INPUT, hidden=hidden, shape=shape, bias=True, output_bias=True, rotary=False
        ),
        feed_forward=mlp_operators(
            source="norm1", hidden=hidden, ffn=fields.ffn(), gated=False, bias=True
        ),
        hidden=hidden,
    )
    positions = fields.integer("max_position_embeddings", maximum=2**24)
    extents = (
        hidden_extent(fields.integer("type_vocab_size", default=2, maximum=MAX_TYPES)),
        hidden_extent(hidden),
    )
    types = Parameter(name="embed.types", extents=extents, klass=ParameterClass.EMBED)
    return decoder_model(
        embed=_with_parameters(
            embedding_block(hidden=hidden, vocab=vocab, positions=positions, norm_after=True),
            [types],
        ),
        layers=[layer] * fields.layers(),
        head=_masked_head(
            hidden=hidden, vocab=vocab, tied=fields.flag("tie_word_embeddings", default=True)
        ),
        hidden=hidden,
        vocab=vocab,
        max_context=positions,
    )


def _post_norm_layer(
    *, attention: tuple[Operator, ...], feed_forward: tuple[Operator, ...], hidden: int
) -> Block:
    """A post-norm layer as in the original Transformer: norm(x + sub_block(x)), twice."""
    return Block(
        name="layer",
        operators=(
            *attention,
            residual("residual1", source=attention[-1].name, skip=INPUT, hidden=hidden),
            norm("norm1", source="residual1", hidden=hidden, bias=True),
            *feed_forward,
            residual("residual2", source=feed_forward[-1].name, skip="norm1", hidden=hidden),
            norm("norm2", source="residual2", hidden=hidden, bias=True),
        ),
    )


def _masked_head(*, hidden: int, vocab: int, tied: bool) -> Block:
    """The masked-LM head: dense layer, activation, norm, logits (tied if `tied`), loss.

    Operators: ``transform transform_act norm logits loss``.
    """
    width = hidden_extent(hidden)
    transform = linear(
        "transform",
        source=INPUT,
        reads=(width,),
        writes=(width,),
        klass=OperatorClass.STREAM,
        bias=True,
    )
    act = unary_operator(
        "transform_act",
        OperatorKind.ACTIVATION,
        OperatorClass.STREAM,
        source="transform",
        reads=(width,),
        writes=(width,),
    )
    plain = head_block(
        hidden=hidden, vocab=vocab, tied=tied, bias=True, final_norm=True, norm_bias=True
    )
    last = norm("norm", source="transform_act", hidden=hidden, bias=True)
    return Block(name="head", operators=(transform, act, last, *plain.operators[1:]))


def build_t5(fields: Fields) -> Model:
    """Build T5, T5 v1.1 or FLAN-T5 from its config (`T5Config`).

    Defaults: as many decoder as encoder layers, 32 position buckets, tied input embeddings, ReLU.

    Biases of scores by distance are one table for each stack; it is stored by the stack's embedding
    run, and all its layers read it. ``feed_forward_proj`` ``gated-...`` has two input projections.
    T5 v1.1 has untied logits (``tie_word_embeddings`` false).
    """
    return _with_shared_tables(fields, feed_forward="relu")


def build_mt5(fields: Fields) -> Model:
    """Build mT5 from its config (`MT5Config`): T5 with gated feed-forwards by default, tied."""
    return _with_shared_tables(fields, feed_forward="gated-gelu")


def build_umt5(fields: Fields) -> Model:
    """Build UMT5 from its config (`UMT5Config`): T5 with a distance-bias table in every layer.

    Feed-forwards are gated by default.
    """
    table = distance_table(
        "core.distances", buckets=_num_distance_buckets(fields), heads=_num_heads(fields)
    )
    return _two_stacks(fields, tables=[], read=[table, table], feed_forward="gated-gelu")


def _with_shared_tables(fields: Fields, *, feed_forward: str) -> Model:
    """Build a T5 with one distance-bias table a stack; `feed_forward`: default of its field."""
    heads, buckets = _num_heads(fields), _num_distance_buckets(fields)
    tables = [distance_table("position_bias", buckets=buckets, heads=heads)] * 2
    owners = [f"{block}.position_bias" for block in ("encoder_embed", "embed")]
    read = [
        distance_table("core.distances", buckets=buckets, heads=heads, tied_to=owner)
        for owner in owners
    ]
    return _two_stacks(fields, tables=tables, read=read, feed_forward=feed_forward)


def _num_heads(fields: Fields) -> int:
    """Number of attention heads, from ``num_heads`` or ``num_attention_heads``."""
    return fields.integer("num_heads", "num_attention_heads", maximum=MAX_HEADS)


def _num_distance_buckets(fields: Fields) -> int:
    """Number of distance buckets (default 32), which are the rows of a distance-bias table.

    A fourth of the buckets have one distance each; so there must be at least one, and the largest
    distance must be beyond them.
    """
    buckets = fields.integer(
        "relative_attention_num_buckets", default=32, minimum=4, maximum=MAX_BUCKETS
    )
    fields.integer("relative_attention_max_distance", default=128, minimum=buckets // 2 + 1)
    return buckets


def _two_stacks(
    fields: Fields, *, tables: Sequence[Parameter], read: Sequence[Parameter], feed_forward: str
) -> Model:
    """Build an encoder-decoder: embeddings store `tables`, layers of each stack read one of `read`.

    Args:
        tables: tables of biases by distance stored by the embedding runs of encoder and decoder.
        read: tables that the encoder layers and the decoder layers read.
        feed_forward: default form of the feed-forward.
    """
    hidden, vocab = fields.hidden(), fields.vocab()
    heads, head_dim = _num_heads(fields), fields.integer("d_kv", maximum=MAX_HEAD_DIM)
    encoders = fields.integer("num_layers", "num_hidden_layers", maximum=MAX_LAYERS)
    decoders = fields.integer("num_decoder_layers", default=encoders, maximum=MAX_LAYERS)
    tied = fields.flag("tie_word_embeddings", default=True)
    fields.mark_read("scale_decoder_outputs")
    own = AttentionShape(heads=heads, kv_heads=heads, head_dim=head_dim, value_dim=head_dim)
    feed = mlp_operators(
        hidden=hidden,
        ffn=fields.integer("d_ff", maximum=MAX_FFN),
        gated=_has_gated_feed_forward(fields, default=feed_forward),
    )
    seen = attention_operators(
        hidden=hidden, shape=replace(own, mask=Mask.FULL), rotary=False, distances=read[0]
    )
    encoder = layer_block("encoder", hidden=hidden, attention=seen, feed_forward=feed)
    embed = embedding_block(hidden=hidden, vocab=vocab)
    shared = replace(embed.operators[0].parameters[0], tied_to="embed.embed.weight")
    lookup = replace(embed.operators[0], parameters=(shared, *tables[:1]))
    blocks = (
        Block(name="encoder_embed", operators=(lookup,), sequence=ENCODER),
        replace(encoder, sequence=ENCODER),
        Block(
            name="encoder_norm",
            operators=(norm("norm", source=INPUT, hidden=hidden),),
            sequence=ENCODER,
        ),
        _with_parameters(embed, tables[1:]),
        _cross_layer(hidden=hidden, self_shape=own, feed_forward=feed, distances=read[1]),
        head_block(hidden=hidden, vocab=vocab, tied=tied),
    )
    runs = (
        Run(name="encoder_embed", block=0, count=1),
        Run(name="encoder", block=1, count=encoders, inputs=("encoder_embed",)),
        Run(name="encoder_norm", block=2, count=1, inputs=("encoder",)),
        Run(name="embed", block=3, count=1),
        Run(name="decoder", block=4, count=decoders, inputs=("embed", "encoder_norm")),
        Run(name="head", block=5, count=1, inputs=("decoder",)),
    )
    return Model(blocks=blocks, runs=runs, hidden=hidden, vocab=vocab)


def _has_gated_feed_forward(fields: Fields, *, default: str) -> bool:
    """True if ``feed_forward_proj`` is a gated form; ModelError if ``is_gated_act`` disagrees."""
    form = fields.string("feed_forward_proj", default=default)
    if form not in ("relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"):
        fields.fail(
            f"feed_forward_proj = {form[:40]!r} is not supported",
            hint="supported: relu, gelu, gated-gelu, gated-silu, gated-relu",
        )
    gated = form.startswith("gated-")
    if fields.flag("is_gated_act", default=gated) is not gated:
        fields.fail(
            f"is_gated_act is {str(not gated).lower()} beside feed_forward_proj = {form!r}",
            hint="keep the second alone",
        )
    return gated


def _with_parameters(block: Block, parameters: Sequence[Parameter]) -> Block:
    """Add parameters to the first operator of a block."""
    first = block.operators[0]
    return replace(
        block,
        operators=(
            replace(first, parameters=(*first.parameters, *parameters)),
            *block.operators[1:],
        ),
    )


def cross_attention_operators(*, hidden: int, shape: AttentionShape) -> tuple[Operator, ...]:
    """Cross-attention: queries from ``cross.norm``, keys and values from the block's memory.

    Operators: ``cross.q cross.kv cross.core cross.proj``.
    """
    query, key, value, out = head_extents(shape)
    width, klass = hidden_extent(hidden), OperatorClass.ATTN
    core = core_operator(
        "cross.core", source="cross.q", shape=replace(shape, cross=True, mask=Mask.FULL)
    )
    read = ("cross.q", "cross.kv")
    return (
        linear("cross.q", source="cross.norm", reads=(width,), writes=(query,), klass=klass),
        linear("cross.kv", source=MEMORY, reads=(width,), writes=(key, value), klass=klass),
        replace(core, inputs=read, keeps=(*read, core.name)),
        linear("cross.proj", source="cross.core", reads=(out,), writes=(width,), klass=klass),
    )


def _cross_layer(
    *,
    hidden: int,
    self_shape: AttentionShape,
    feed_forward: tuple[Operator, ...],
    distances: Parameter,
) -> Block:
    """A decoder layer: causal self-attention, cross-attention and feed-forward, each pre-norm.

    Self-attention has biases by distance.
    """
    attention = attention_operators(
        hidden=hidden, shape=self_shape, rotary=False, distances=distances
    )
    plain = layer_block("decoder", hidden=hidden, attention=attention, feed_forward=feed_forward)
    operators: list[Operator] = []
    for operator in plain.operators:
        operators.append(operator.reading({"residual1": "cross.residual"}))
        if operator.name == "residual1":
            operators += [
                norm("cross.norm", source="residual1", hidden=hidden),
                *cross_attention_operators(hidden=hidden, shape=self_shape),
                residual("cross.residual", source="cross.proj", skip="residual1", hidden=hidden),
            ]
    return replace(plain, operators=tuple(operators), memory=ENCODER)
