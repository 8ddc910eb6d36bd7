"""Changes of layout along the axes of a grid."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor import Dim
from shardwright.program.block.placement import TOKEN_DIMS, Change, resolved
from shardwright.program.block.reshard import PARTIAL, WHOLE, transition
from shardwright.program.block.sizes import Size


def produced(operator: Operator | None, dim: Dim) -> str:
    """Layout along an axis (which cuts `dim` of the operator's class) of what `operator` makes."""
    if dim is Dim.REPLICATE:
        return WHOLE
    if dim in TOKEN_DIMS or operator is None:
        return Dim.SEQUENCE.value
    cut = resolved(dim, operator)
    if cut is None:
        return WHOLE
    if any(e.dim is cut for e in operator.writes):
        return cut.value
    return PARTIAL if any(e.dim is cut for e in operator.reads) else WHOLE


def wanted(operator: Operator, dim: Dim) -> tuple[str, str]:
    """Layout in which `operator` reads along an axis that cuts `dim`, and the layout of the
    cotangent that it returns.
    """
    if dim is Dim.REPLICATE:
        return WHOLE, WHOLE
    if dim in TOKEN_DIMS:
        return Dim.SEQUENCE.value, Dim.SEQUENCE.value
    cut = resolved(dim, operator)
    if cut is None:
        return WHOLE, WHOLE
    if any(e.dim is cut for e in operator.reads):
        return cut.value, cut.value
    return (WHOLE, PARTIAL) if any(e.dim is cut for e in operator.writes) else (WHOLE, WHOLE)


def axis_change(
    axis: str,
    *,
    cut: Dim,
    source: Operator | None,
    source_cut: Dim,
    target: Operator,
    volume: Callable[[Operator], tuple[Size, ...]],
    shared: bool = False,
) -> Change | None:
    """The change along one axis that cuts `cut` of the target's class and `source_cut` of the
    source's; None if nothing moves.

    Args:
        volume: bytes of the tensor as one of its ends holds it.
        shared: every member reads all of it, for its own part of the axis.
    """
    made = produced(source, source_cut)
    need, cotangent = wanted(target, cut)
    split = need not in (WHOLE, Dim.SEQUENCE.value)
    if shared or (
        made == WHOLE
        and source is not None
        and split
        and not any(e.dim.value == need for e in source.writes)
    ):
        # A whole tensor that every member reads for its own heads: each returns a part of the sum;
        # of its own tokens it returns a slice.
        need, cotangent = WHOLE, PARTIAL
    if source is not None and source.kind is target.kind is OperatorKind.RESIDUAL:
        need = made
    forward, backward = (
        transition(made, need),
        transition(cotangent, WHOLE if made == PARTIAL else made),
    )
    if forward is None and backward is None:
        return None
    gathered, local = volume(_column_side(source, target)), volume(target)
    return Change(
        axis=axis,
        forward=forward,
        backward=backward,
        forward_volume=local if forward is Collective.ALL_TO_ALL else gathered,
        backward_volume=local if backward is Collective.ALL_TO_ALL else gathered,
    )


def _column_side(source: Operator | None, target: Operator) -> Operator:
    """The end of an edge that holds the gathered tensor: the one outside the stream."""
    if source is None or target.klass not in (OperatorClass.STREAM, OperatorClass.ROUTER):
        return target
    return source
