"""Blocks of dense transformers: decoder layers, embedding and head.

The operators of a usual pre-norm layer are ``norm1 qkv rotary core proj residual1 norm2 up act down
residual2``.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.blocks.dense_transformer_operators import (
    QkNorm,
    attention_operators,
    hidden_extent,
    mlp_operators,
    norm,
    residual,
    unary_operator,
)
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.operator import (
    AttentionShape,
    Operator,
    OperatorClass,
    OperatorKind,
)
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter, ParameterClass


def layer_block(
    name: str,
    *,
    hidden: int,
    attention: tuple[Operator, ...],
    feed_forward: tuple[Operator, ...],
    norm_bias: bool = False,
    pre_norms: bool = True,
    post_norms: bool = False,
    scaled: bool = False,
) -> Block:
    """A residual layer: x + attention(norm1 x), then x + feed_forward(norm2 x).

    Args:
        attention: operators whose source is ``norm1`` (`INPUT` without `pre_norms`); the output of
            the last operator is added to the residual stream.
        feed_forward: operators whose source is ``norm2`` (``residual1`` without `pre_norms`).
        pre_norms: add norms before the sub-blocks.
        post_norms: add norms of their outputs before the residual sum (Gemma 2, GLM-4, OLMo 2).
        scaled: multiply the layer's output by a stored, untrained number (Gemma 4).
    """

    def with_residual(
        index: int, operators: tuple[Operator, ...], skip: str
    ) -> tuple[Operator, ...]:
        """A sub-block with its norms and its residual addition."""
        before = (
            (norm(f"norm{index}", source=skip, hidden=hidden, bias=norm_bias),) if pre_norms else ()
        )
        last = operators[-1].name
        after = (
            (norm(f"post_norm{index}", source=last, hidden=hidden, bias=norm_bias),)
            if post_norms
            else ()
        )
        added = residual(
            f"residual{index}", source=after[0].name if after else last, skip=skip, hidden=hidden
        )
        return (*before, *operators, *after, added)

    *operators, last = (
        *with_residual(1, attention, INPUT),
        *with_residual(2, feed_forward, "residual1"),
    )
    if scaled:
        number = Parameter(
            name=f"{last.name}.weight", extents=(hidden_extent(1),), trainable=False, counted=False
        )
        last = replace(last, parameters=(number,))
    return Block(name=name, operators=(*operators, last))


def parallel_block(
    name: str,
    *,
    hidden: int,
    attention: tuple[Operator, ...],
    feed_forward: tuple[Operator, ...],
    norm_bias: bool = False,
    norms: int = 2,
) -> Block:
    """A layer x + attention(norm1 x) + feed_forward(norm2 x), as in GPT-NeoX and Falcon.

    Args:
        attention: operators whose source is ``norm1``.
        feed_forward: operators whose source is ``norm2``, or ``norm1`` when `norms` is 1.
    """
    names = ("norm1", "norm2")[:norms]
    return Block(
        name=name,
        operators=(
            *(norm(n, source=INPUT, hidden=hidden, bias=norm_bias) for n in names),
            *attention,
            *feed_forward,
            residual("residual1", source=attention[-1].name, skip=INPUT, hidden=hidden),
            residual("residual2", source=feed_forward[-1].name, skip="residual1", hidden=hidden),
        ),
    )


def decoder_block(
    name: str,
    *,
    hidden: int,
    attention: AttentionShape,
    ffn: int,
    gated: bool,
    norm_bias: bool = False,
    attention_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: QkNorm | bool = False,
    rotary: bool = True,
    post_norms: bool = False,
) -> Block:
    """A pre-norm decoder layer: norm, attention, residual, norm, feed-forward, residual."""
    return layer_block(
        name,
        hidden=hidden,
        attention=attention_operators(
            hidden=hidden,
            shape=attention,
            bias=attention_bias,
            output_bias=output_bias,
            qk_norm=qk_norm,
            rotary=rotary,
        ),
        feed_forward=mlp_operators(hidden=hidden, ffn=ffn, gated=gated, bias=mlp_bias),
        norm_bias=norm_bias,
        post_norms=post_norms,
    )


def embedding_block(
    *, hidden: int, vocab: int, positions: int = 0, norm_after: bool = False
) -> Block:
    """Token embedding, with learned positions if any; vocabulary-parallel under tensor parallelism.

    `norm_after`: a LayerNorm with bias of its output (BLOOM).
    """
    rows = Extent(dim=Dim.VOCAB, size=vocab)
    width = hidden_extent(hidden)
    weights = [Parameter(name="embed.weight", extents=(rows, width), klass=ParameterClass.EMBED)]
    if positions:
        weights.append(
            Parameter(
                name="embed.positions",
                extents=(Extent(dim=Dim.SEQUENCE, size=positions), width),
                klass=ParameterClass.EMBED,
            )
        )
    lookup = Operator(
        name="lookup",
        kind=OperatorKind.EMBEDDING,
        klass=OperatorClass.EMBED,
        inputs=(INPUT,),
        reads=(rows,),
        writes=(width,),
        parameters=tuple(weights),
    )
    after = (norm("embed_norm", source="lookup", hidden=hidden, bias=True),) if norm_after else ()
    return Block(name="embed", operators=(lookup, *after))


def head_block(
    *,
    hidden: int,
    vocab: int,
    tied: bool,
    norm_bias: bool = False,
    bias: bool = False,
    final_norm: bool = True,
    tied_to: str = "embed.embed.weight",
    name: str = "head",
) -> Block:
    """Final norm, logits over the vocabulary and cross-entropy loss, as separate operators.

    A pipeline cut may lie between them. `tied`: the logits' weight is `tied_to`
    (``block.parameter``) and is stored there.
    """
    rows = Extent(dim=Dim.VOCAB, size=vocab)
    width = hidden_extent(hidden)
    source = "norm" if final_norm else INPUT
    weights = [
        Parameter(
            name="logits.weight",
            extents=(width, rows),
            klass=ParameterClass.HEAD,
            tied_to=tied_to if tied else "",
        )
    ]
    if bias:
        weights.append(Parameter(name="logits.bias", extents=(rows,), klass=ParameterClass.HEAD))
    klass, held = OperatorClass.HEAD, tuple(weights)
    logits = unary_operator(
        "logits",
        OperatorKind.LINEAR,
        klass,
        source=source,
        reads=(width,),
        writes=(rows,),
        parameters=held,
    )
    loss = unary_operator(
        "loss", OperatorKind.LOSS, klass, source="logits", reads=(rows,), writes=(hidden_extent(1),)
    )
    before = (norm("norm", source=INPUT, hidden=hidden, bias=norm_bias),) if final_norm else ()
    return Block(name=name, operators=(*before, logits, loss))
