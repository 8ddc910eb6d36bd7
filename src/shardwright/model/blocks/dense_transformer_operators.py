"""Operators of dense transformer layers: linear, norm, attention, feed-forward, residual addition.

Every function returns operators that chain onto the name `source`, by default the norm of a usual
layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from shardwright.model.ir.config_json_field_access import Fields
from shardwright.model.ir.operator import (
    AttentionShape,
    ExpertShape,
    Operator,
    OperatorClass,
    OperatorKind,
)
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter, ParameterClass


class QkNorm(StrEnum):
    """Span of the gain of a query/key norm: one head, all heads, or no gain."""

    HEAD = "head"
    WIDTH = "width"
    PLAIN = "plain"


def hidden_extent(size: int) -> Extent:
    """Extent of the residual stream with `size` elements."""
    return Extent(dim=Dim.HIDDEN, size=size)


def unary_operator(
    name: str,
    kind: OperatorKind,
    klass: OperatorClass,
    *,
    source: str,
    reads: tuple[Extent, ...],
    writes: tuple[Extent, ...],
    **more: Any,
) -> Operator:
    """An operator with one input tensor, which it saves for its backward."""
    return Operator(
        name=name,
        kind=kind,
        klass=klass,
        inputs=(source,),
        reads=reads,
        writes=writes,
        keeps=(source,),
        **more,
    )


def norm(
    name: str,
    *,
    source: str,
    hidden: int,
    bias: bool = False,
    klass: OperatorClass = OperatorClass.STREAM,
) -> Operator:
    """RMSNorm (one gain) or LayerNorm (with `bias`: gain and bias) over the hidden width."""
    width = hidden_extent(hidden)
    gains = tuple(
        Parameter(name=f"{name}.{n}", extents=(width,))
        for n in (("weight", "bias") if bias else ("weight",))
    )
    return unary_operator(
        name,
        OperatorKind.NORM,
        klass,
        source=source,
        reads=(width,),
        writes=(width,),
        parameters=gains,
    )


def linear(
    name: str,
    *,
    source: str,
    reads: tuple[Extent, ...],
    writes: tuple[Extent, ...],
    klass: OperatorClass,
    bias: bool = False,
    experts: ExpertShape | None = None,
) -> Operator:
    """Linear projection y = x W (+ b), or one for every expert with `experts`.

    W is product(reads) x sum(writes) (several `writes` of one dim are a fused projection).

    With `experts`, y_e = x_e W_e (+ b_e) for every expert e: weights are experts x product(reads) x
    sum(writes), tokens are routed tokens.
    """
    expert_extents = (Extent(dim=Dim.EXPERTS, size=experts.experts),) if experts else ()
    kind, parameter_class = (
        (OperatorKind.GROUPED_LINEAR, ParameterClass.EXPERTS)
        if experts
        else (OperatorKind.LINEAR, ParameterClass.DENSE)
    )
    weights = split_parameters(
        f"{name}.weight", [(*expert_extents, *reads, w) for w in writes], klass=parameter_class
    )
    biases = (
        split_parameters(
            f"{name}.bias", [(*expert_extents, w) for w in writes], klass=parameter_class
        )
        if bias
        else ()
    )
    parameters = (*weights, *biases)
    return unary_operator(
        name,
        kind,
        klass,
        source=source,
        reads=reads,
        writes=writes,
        parameters=parameters,
        experts=experts,
    )


def split_parameters(
    name: str, shapes: Sequence[tuple[Extent, ...]], *, klass: ParameterClass = ParameterClass.DENSE
) -> tuple[Parameter, ...]:
    """One parameter for each shape, named `name`, ``name.1``, ``name.2``."""
    return tuple(
        Parameter(name=f"{name}.{i}" if i else name, extents=shape, klass=klass)
        for i, shape in enumerate(shapes)
    )


def residual(name: str, *, source: str, skip: str, hidden: int) -> Operator:
    """Residual addition y = skip + dropout(x), which saves only the dropout mask."""
    width = hidden_extent(hidden)
    return Operator(
        name=name,
        kind=OperatorKind.RESIDUAL,
        klass=OperatorClass.STREAM,
        inputs=(source, skip),
        reads=(width,),
        writes=(width,),
    )


def grouped_shape(
    fields: Fields, *, head_dim: int, kv_heads: int | None = None, **more: Any
) -> AttentionShape:
    """Shape of grouped-query attention from `fields`, where all heads have the width `head_dim`.

    `kv_heads` counts where the fields name none; `more` are further fields of the shape.
    """
    return AttentionShape(
        heads=fields.heads(),
        kv_heads=fields.kv_heads(default=kv_heads),
        head_dim=head_dim,
        value_dim=head_dim,
        **more,
    )


def head_extents(shape: AttentionShape) -> tuple[Extent, Extent, Extent, Extent]:
    """Extents of query, key, value and output of an attention core, split between heads only."""
    return (
        Extent(dim=Dim.HEADS, size=shape.heads * shape.head_dim, quantum=shape.head_dim),
        Extent(dim=Dim.HEADS, size=shape.kv_heads * shape.head_dim, quantum=shape.head_dim),
        Extent(dim=Dim.HEADS, size=shape.kv_heads * shape.value_dim, quantum=shape.value_dim),
        Extent(dim=Dim.HEADS, size=shape.heads * shape.value_dim, quantum=shape.value_dim),
    )


def qk_norm_operator(
    *, source: str, shape: AttentionShape, width: QkNorm, values: bool = False
) -> Operator:
    """RMSNorm of queries, keys and, with `values`, values; `width` says how wide the gain is.

    The norm of values is by head and has no gain.
    """
    query, key, value, _ = head_extents(shape)
    gain = Extent(dim=Dim.HIDDEN, size=shape.head_dim)
    gains = {QkNorm.HEAD: (gain, gain), QkNorm.WIDTH: (query, key), QkNorm.PLAIN: ()}[width]
    weights = tuple(
        Parameter(name=f"{n}_norm.weight", extents=(e,)) for n, e in zip("qk", gains, strict=False)
    )
    reads, writes = (query, key, value) if values else (query, key), (query, key, value)
    return unary_operator(
        "qk_norm",
        OperatorKind.NORM,
        OperatorClass.ATTN,
        source=source,
        reads=reads,
        writes=writes,
        parameters=weights,
    )


def rotary_operator(*, inputs: tuple[str, ...], shape: AttentionShape) -> Operator:
    """Rotary positions on queries and keys; values pass through, and nothing is saved.

    The transpose of a rotation needs no activation.
    """
    query, key, value, _ = head_extents(shape)
    return Operator(
        name="rotary",
        kind=OperatorKind.ROTARY,
        klass=OperatorClass.ATTN,
        inputs=inputs,
        reads=(query, key),
        writes=(query, key, value),
        local=bool(shape.window),
    )


def distance_table(name: str, *, buckets: int, heads: int, tied_to: str = "") -> Parameter:
    """Parameter with an attention-score bias for each distance bucket and query head."""
    return Parameter(
        name=name,
        extents=(hidden_extent(buckets), Extent(dim=Dim.HEADS, size=heads)),
        tied_to=tied_to,
    )


def core_operator(
    name: str,
    *,
    source: str,
    shape: AttentionShape,
    tempered: bool = False,
    distances: Parameter | None = None,
) -> Operator:
    """Attention core softmax(Q K^T) V of all heads, with learned sinks if the shape has them.

    `tempered`: queries are scaled by position. `distances`: a table of score biases (see
    `distance_table`).
    """
    query, key, value, out = head_extents(shape)
    sinks = (
        (Parameter(name=f"{name}.sinks", extents=(Extent(dim=Dim.HEADS, size=shape.heads),)),)
        if shape.sinks
        else ()
    )
    return Operator(
        name=name,
        kind=OperatorKind.ATTENTION,
        klass=OperatorClass.CORE,
        inputs=(source,),
        reads=(query, key, value),
        writes=(out,),
        parameters=sinks if distances is None else (*sinks, distances),
        keeps=(source, name),
        attention=shape,
        tempered=tempered,
        biased=distances is not None,
    )


def attention_operators(
    *,
    hidden: int,
    shape: AttentionShape,
    bias: bool = False,
    output_bias: bool = False,
    qk_norm: QkNorm | bool = False,
    value_norm: bool = False,
    rotary: bool = True,
    tempered: bool = False,
    distances: Parameter | None = None,
    source: str = "norm1",
) -> tuple[Operator, ...]:
    """Grouped-query attention from the normed input to the projected output, without residual.

    There is no norm before it. `qk_norm` True is a gain per element of a head (`QkNorm.HEAD`);
    with `value_norm` values are normed too, without a gain. `tempered`: queries are scaled by
    position. `distances`: a table of score biases.
    """
    query, key, value, out = head_extents(shape)
    width = hidden_extent(hidden)
    operators = [
        linear(
            "qkv",
            source=source,
            reads=(width,),
            writes=(query, key, value),
            klass=OperatorClass.ATTN,
            bias=bias,
        )
    ]
    if qk_norm:
        kind = qk_norm if isinstance(qk_norm, QkNorm) else QkNorm.HEAD
        operators.append(qk_norm_operator(source="qkv", shape=shape, width=kind, values=value_norm))
    if rotary:
        operators.append(rotary_operator(inputs=(operators[-1].name,), shape=shape))
    operators.append(
        core_operator(
            "core", source=operators[-1].name, shape=shape, tempered=tempered, distances=distances
        )
    )
    return (
        *operators,
        linear(
            "proj",
            source="core",
            reads=(out,),
            writes=(width,),
            klass=OperatorClass.ATTN,
            bias=output_bias,
        ),
    )


def mlp_operators(
    *,
    hidden: int,
    ffn: int,
    gated: bool,
    bias: bool = False,
    klass: OperatorClass = OperatorClass.MLP,
    prefix: str = "",
    experts: ExpertShape | None = None,
    source: str = "norm2",
) -> tuple[Operator, ...]:
    """Feed-forward ``up act down``; gated forms (SwiGLU, GeGLU) fuse gate and up into one GEMM.

    With `experts`, there is one for every expert.
    """
    width = hidden_extent(hidden)
    inner = Extent(dim=Dim.FFN, size=ffn)
    written = (inner, inner) if gated else (inner,)
    up, act, down = f"{prefix}up", f"{prefix}act", f"{prefix}down"
    return (
        linear(
            up,
            source=source,
            reads=(width,),
            writes=written,
            klass=klass,
            bias=bias,
            experts=experts,
        ),
        unary_operator(
            act,
            OperatorKind.ACTIVATION,
            klass,
            source=up,
            reads=written,
            writes=(inner,),
            gated=gated,
            experts=experts,
        ),
        linear(
            down,
            source=act,
            reads=(inner,),
            writes=(width,),
            klass=klass,
            bias=bias,
            experts=experts,
        ),
    )
