"""Attention and feed-forward sub-blocks of dense decoders, and the embedding and head around them.

The operators follow the usual pre-norm layer: ``norm1 qkv rotary core proj residual1 norm2 up act down residual2``.
Every function returns operators that chain onto the name `source`.
"""

from __future__ import annotations

from enum import StrEnum

from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor import Dim, Extent, Parameter, ParameterClass


class QkNorm(StrEnum):
    """What the gain of a query/key norm spans: one head, all heads, or nothing (a norm without parameters)."""

    HEAD = "head"
    WIDTH = "width"
    PLAIN = "plain"


def hidden_extent(size: int) -> Extent:
    """The residual stream's width."""
    return Extent(dim=Dim.HIDDEN, size=size)


def norm(name: str, *, source: str, hidden: int, bias: bool = False, klass: OperatorClass = OperatorClass.STREAM) -> Operator:
    """RMSNorm (one gain) or LayerNorm (`bias`: gain and bias) over the hidden width."""
    width = hidden_extent(hidden)
    weights = [Parameter(name=f"{name}.weight", extents=(width,))]
    if bias:
        weights.append(Parameter(name=f"{name}.bias", extents=(width,)))
    return Operator(
        name=name,
        kind=OperatorKind.NORM,
        klass=klass,
        inputs=(source,),
        reads=(width,),
        writes=(width,),
        parameters=tuple(weights),
        keeps=(source,),
    )


def linear(
    name: str,
    *,
    source: str,
    reads: tuple[Extent, ...],
    writes: tuple[Extent, ...],
    klass: OperatorClass,
    bias: bool = False,
    parameter_class: ParameterClass = ParameterClass.DENSE,
) -> Operator:
    """y = x W (+ b): W is product(reads) x sum(writes) (several `writes` of one dim are a fused projection)."""
    parts = [(f".{i}" if i else "", w) for i, w in enumerate(writes)]
    weights = [Parameter(name=f"{name}.weight{suffix}", extents=(*reads, w), klass=parameter_class) for suffix, w in parts]
    if bias:
        weights += [Parameter(name=f"{name}.bias{suffix}", extents=(w,), klass=parameter_class) for suffix, w in parts]
    return Operator(
        name=name,
        kind=OperatorKind.LINEAR,
        klass=klass,
        inputs=(source,),
        reads=reads,
        writes=writes,
        parameters=tuple(weights),
        keeps=(source,),
    )


def residual(name: str, *, source: str, skip: str, hidden: int) -> Operator:
    """y = skip + dropout(x): keeps nothing but the dropout's mask."""
    width = hidden_extent(hidden)
    return Operator(
        name=name, kind=OperatorKind.RESIDUAL, klass=OperatorClass.STREAM, inputs=(source, skip), reads=(width,), writes=(width,)
    )


def head_extents(shape: AttentionShape) -> tuple[Extent, Extent, Extent, Extent]:
    """Query, key, value and output of an attention core, each cut between heads only."""
    return (
        Extent(dim=Dim.HEADS, size=shape.heads * shape.head_dim, quantum=shape.head_dim),
        Extent(dim=Dim.HEADS, size=shape.kv_heads * shape.head_dim, quantum=shape.head_dim),
        Extent(dim=Dim.HEADS, size=shape.kv_heads * shape.value_dim, quantum=shape.value_dim),
        Extent(dim=Dim.HEADS, size=shape.heads * shape.value_dim, quantum=shape.value_dim),
    )


def qk_norm_operator(name: str, *, source: str, shape: AttentionShape, width: QkNorm) -> Operator:
    """RMSNorm of queries and keys before the core; values pass through."""
    query, key, value, _ = head_extents(shape)
    gain = Extent(dim=Dim.HIDDEN, size=shape.head_dim)
    gains = {QkNorm.HEAD: (gain, gain), QkNorm.WIDTH: (query, key), QkNorm.PLAIN: ()}[width]
    prefix = name.removesuffix("qk_norm")
    return Operator(
        name=name,
        kind=OperatorKind.NORM,
        klass=OperatorClass.ATTN,
        inputs=(source,),
        reads=(query, key),
        writes=(query, key, value),
        parameters=tuple(Parameter(name=f"{prefix}{n}_norm.weight", extents=(e,)) for n, e in zip("qk", gains, strict=False)),
        keeps=(source,),
    )


def rotary_operator(name: str, *, inputs: tuple[str, ...], shape: AttentionShape) -> Operator:
    """Rotary positions on queries and keys; values pass through. Keeps nothing: the transpose of a rotation needs no activation."""
    query, key, value, _ = head_extents(shape)
    return Operator(
        name=name, kind=OperatorKind.ROTARY, klass=OperatorClass.ATTN, inputs=inputs, reads=(query, key), writes=(query, key, value)
    )


def core_operator(name: str, *, source: str, shape: AttentionShape) -> Operator:
    """softmax(Q K^T) V of all heads, with a learned sink per query head when the shape has them."""
    query, key, value, out = head_extents(shape)
    sinks = (Parameter(name=f"{name}.sinks", extents=(Extent(dim=Dim.HEADS, size=shape.heads),)),) if shape.sinks else ()
    return Operator(
        name=name,
        kind=OperatorKind.ATTENTION,
        klass=OperatorClass.CORE,
        inputs=(source,),
        reads=(query, key, value),
        writes=(out,),
        parameters=sinks,
        keeps=(source, name),
        attention=shape,
    )


def attention_operators(
    *,
    source: str,
    hidden: int,
    shape: AttentionShape,
    bias: bool = False,
    output_bias: bool = False,
    qk_norm: QkNorm | bool = False,
    rotary: bool = True,
    prefix: str = "",
) -> tuple[Operator, ...]:
    """Grouped-query attention from the normed input to the projected output (no norm, no residual).

    `qk_norm` True is a gain per element of a head (`QkNorm.HEAD`).
    """
    query, key, value, out = head_extents(shape)
    width = hidden_extent(hidden)
    operators = [linear(f"{prefix}qkv", source=source, reads=(width,), writes=(query, key, value), klass=OperatorClass.ATTN, bias=bias)]
    if qk_norm:
        kind = qk_norm if isinstance(qk_norm, QkNorm) else QkNorm.HEAD
        operators.append(qk_norm_operator(f"{prefix}qk_norm", source=operators[-1].name, shape=shape, width=kind))
    if rotary:
        operators.append(rotary_operator(f"{prefix}rotary", inputs=(operators[-1].name,), shape=shape))
    core = f"{prefix}core"
    operators.append(core_operator(core, source=operators[-1].name, shape=shape))
    operators.append(linear(f"{prefix}proj", source=core, reads=(out,), writes=(width,), klass=OperatorClass.ATTN, bias=output_bias))
    return tuple(operators)


def mlp_operators(
    *, source: str, hidden: int, ffn: int, gated: bool, bias: bool = False, klass: OperatorClass = OperatorClass.MLP, prefix: str = ""
) -> tuple[Operator, ...]:
    """Feed-forward: ``up act down``; gated forms (SwiGLU, GeGLU) fuse gate and up into one GEMM."""
    width = hidden_extent(hidden)
    inner = Extent(dim=Dim.FFN, size=ffn)
    written = (inner, inner) if gated else (inner,)
    up, act, down = f"{prefix}up", f"{prefix}act", f"{prefix}down"
    return (
        linear(up, source=source, reads=(width,), writes=written, klass=klass, bias=bias),
        Operator(
            name=act, kind=OperatorKind.ACTIVATION, klass=klass, inputs=(up,), reads=written, writes=(inner,), keeps=(up,), gated=gated
        ),
        linear(down, source=act, reads=(inner,), writes=(width,), klass=klass, bias=bias),
    )


def layer_block(
    name: str,
    *,
    hidden: int,
    attention: tuple[Operator, ...],
    feed_forward: tuple[Operator, ...],
    norm_bias: bool = False,
    pre_norms: bool = True,
    post_norms: bool = False,
) -> Block:
    """A residual layer around given sub-blocks: x + attention(norm1 x), then x + feed_forward(norm2 x).

    Args:
        attention: operators whose source is ``norm1`` (`INPUT` without `pre_norms`); the last one's output joins the stream.
        feed_forward: operators whose source is ``norm2`` (``residual1`` without `pre_norms`).
        pre_norms: norms before the sub-blocks. post_norms: norms of their outputs before they join the stream (Gemma 2, GLM-4, OLMo 2).
    """

    def joined(index: int, operators: tuple[Operator, ...], skip: str) -> tuple[Operator, ...]:
        before = (norm(f"norm{index}", source=skip, hidden=hidden, bias=norm_bias),) if pre_norms else ()
        last = operators[-1].name
        after = (norm(f"post_norm{index}", source=last, hidden=hidden, bias=norm_bias),) if post_norms else ()
        added = residual(f"residual{index}", source=after[0].name if after else last, skip=skip, hidden=hidden)
        return (*before, *operators, *after, added)

    return Block(name=name, operators=(*joined(1, attention, INPUT), *joined(2, feed_forward, "residual1")))


def parallel_block(
    name: str, *, hidden: int, attention: tuple[Operator, ...], feed_forward: tuple[Operator, ...], norm_bias: bool = False, norms: int = 2
) -> Block:
    """x + attention(norm1 x) + feed_forward(norm2 x): both read the layer's input (GPT-NeoX, Falcon).

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
            source="norm1", hidden=hidden, shape=attention, bias=attention_bias, output_bias=output_bias, qk_norm=qk_norm, rotary=rotary
        ),
        feed_forward=mlp_operators(source="norm2", hidden=hidden, ffn=ffn, gated=gated, bias=mlp_bias),
        norm_bias=norm_bias,
        post_norms=post_norms,
    )


def embedding_block(*, hidden: int, vocab: int, positions: int = 0, norm_after: bool = False, name: str = "embed") -> Block:
    """Token embedding (and learned positions, if any): a lookup, vocabulary-parallel under a split on t.

    `norm_after`: a LayerNorm with bias of its output (BLOOM).
    """
    rows = Extent(dim=Dim.VOCAB, size=vocab)
    width = hidden_extent(hidden)
    weights = [Parameter(name="embed.weight", extents=(rows, width), klass=ParameterClass.EMBED)]
    if positions:
        weights.append(
            Parameter(name="embed.positions", extents=(Extent(dim=Dim.SEQUENCE, size=positions), width), klass=ParameterClass.EMBED)
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
    return Block(name=name, operators=(lookup, *after))


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
    """Final norm, logits over the vocabulary and the cross-entropy loss (named operators, so a cut may lie between them).

    `tied`: the logits' weight is `tied_to` (``block.parameter``) and is stored there.
    """
    rows = Extent(dim=Dim.VOCAB, size=vocab)
    width = hidden_extent(hidden)
    source = "norm" if final_norm else INPUT
    weights = [Parameter(name="logits.weight", extents=(width, rows), klass=ParameterClass.HEAD, tied_to=tied_to if tied else "")]
    if bias:
        weights.append(Parameter(name="logits.bias", extents=(rows,), klass=ParameterClass.HEAD))
    logits = Operator(
        name="logits",
        kind=OperatorKind.LINEAR,
        klass=OperatorClass.HEAD,
        inputs=(source,),
        reads=(width,),
        writes=(rows,),
        parameters=tuple(weights),
        keeps=(source,),
    )
    loss = Operator(
        name="loss",
        kind=OperatorKind.LOSS,
        klass=OperatorClass.HEAD,
        inputs=("logits",),
        reads=(rows,),
        writes=(Extent(dim=Dim.HIDDEN, size=1),),
        keeps=("logits",),
    )
    before = (norm("norm", source=INPUT, hidden=hidden, bias=norm_bias),) if final_norm else ()
    return Block(name=name, operators=(*before, logits, loss))
