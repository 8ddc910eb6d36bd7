"""A projector of pooled patches (Gemma 4): their mean, a norm of it, and one product to the width
of the language model.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.blocks.dense_blocks import hidden_extent, linear, step
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Parameter


def pooled_operators(
    *, width: int, hidden: int, source: str, merge: int, factor: float, standard: bool
) -> tuple[Operator, ...]:
    """``pool norm out`` from patches to image tokens of the language model's width.

    Args:
        width: elements of a patch.
        hidden: of the language model.
        merge: patches that become one image token.
        factor: of their mean.
        standard: it is moved and scaled by stored numbers that nobody trains.

    What a patch has of a token is 1 / merge of its elements (`Operator.folds`), of the language
    model's rounded up. The norm has no gain.
    """
    if width % merge:
        raise ValueError(
            f"a tower of {width} elements is not a multiple of the {merge} patches of an image"
            " token"
        )
    wide, share, klass = hidden_extent(width), hidden_extent(width // merge), OperatorClass.MLP
    words = ("shift", "scale") if standard else ()
    numbers = tuple(
        Parameter(name=f"pool.{word}", extents=(wide,), trainable=False, counted=False)
        for word in words
    )
    pool = step(
        "pool",
        OperatorKind.ACTIVATION,
        klass,
        source=source,
        reads=(wide,),
        writes=(share,),
        parameters=numbers,
    )
    norm = step("norm", OperatorKind.NORM, klass, source="pool", reads=(share,), writes=(share,))
    out = linear(
        "out",
        source="norm",
        reads=(replace(wide, quantum=merge),),
        writes=(hidden_extent(hidden),),
        klass=klass,
    )
    return (
        replace(pool, joins=merge, folds=merge, factors=(factor,)),
        replace(norm, folds=merge),
        replace(out, writes=(hidden_extent(-(-hidden // merge)),), folds=merge),
    )
