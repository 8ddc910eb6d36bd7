"""Projector of pooled image patches (Gemma 4): mean, norm, and one linear layer."""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.blocks.dense_transformer_operators import (
    hidden_extent,
    linear,
    unary_operator,
)
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Parameter


def pooled_operators(
    *, width: int, hidden: int, source: str, merge: int, mean_factor: float, shift_and_scale: bool
) -> tuple[Operator, ...]:
    """Image projector ``pool norm out``: mean of `merge` patches, RMSNorm, linear to `hidden`.

    Args:
        width: elements of a patch.
        hidden: width of the language model.
        merge: patches that become one image token.
        mean_factor: factor of the patches' mean.
        shift_and_scale: shift and scale the mean by stored, untrained numbers.

    A patch counts 1 / merge of a token's elements (`Operator.folds`), rounded up for the language
    model's width. The norm has no gain.
    """
    if width % merge:
        raise ValueError(
            f"a tower of {width} elements is not a multiple of the {merge} patches of an image"
            " token"
        )
    wide, share, klass = hidden_extent(width), hidden_extent(width // merge), OperatorClass.MLP
    words = ("shift", "scale") if shift_and_scale else ()
    numbers = tuple(
        Parameter(name=f"pool.{word}", extents=(wide,), trainable=False, counted=False)
        for word in words
    )
    pool = unary_operator(
        "pool",
        OperatorKind.ACTIVATION,
        klass,
        source=source,
        reads=(wide,),
        writes=(share,),
        parameters=numbers,
    )
    norm = unary_operator(
        "norm", OperatorKind.NORM, klass, source="pool", reads=(share,), writes=(share,)
    )
    out = linear(
        "out",
        source="norm",
        reads=(replace(wide, quantum=merge),),
        writes=(hidden_extent(hidden),),
        klass=klass,
    )
    return (
        replace(pool, joins=merge, folds=merge, factors=(mean_factor,)),
        replace(norm, folds=merge),
        replace(out, writes=(hidden_extent(-(-hidden // merge)),), folds=merge),
    )
