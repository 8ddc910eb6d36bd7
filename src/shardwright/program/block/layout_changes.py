"""Changes of a tensor's layout between two operators, along each axis of a grid."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.collective_for_layout_change_along_axis import (
    PARTIAL,
    WHOLE,
    transition,
)
from shardwright.program.block.grid_or_plan_cut_protocol import TOKEN_DIMS, LayoutChange, resolved
from shardwright.program.block.symbolic_sizes import Size


def output_layout(operator: Operator | None, dim: Dim) -> str:
    """Output layout (dim letter, WHOLE, PARTIAL) along an axis that cuts `dim`; None: sequence cut.

    A dim letter, WHOLE or PARTIAL.
    """
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


def input_layouts(operator: Operator, dim: Dim) -> tuple[str, str]:
    """(layout that the operator reads, layout of the cotangent that it returns) along one axis.

    Along a mesh axis that cuts `dim`: the one in which the operator reads its input, and the one of
    the cotangent that it returns.
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
) -> LayoutChange | None:
    """Forward and backward collectives of a tensor between operators along one axis; else None.

    Forward and backward; None if nothing moves.

    Args:
        axis: name of the mesh axis.
        cut: dim that the axis cuts in the target's operator class.
        source_cut: dim that the axis cuts in the source's operator class.
        volume: bytes of the tensor as one end of the edge holds it.
        shared: every member reads the whole tensor, for its own part of the axis.
    """
    made = output_layout(source, source_cut)
    needed, cotangent = input_layouts(target, cut)
    split = needed not in (WHOLE, Dim.SEQUENCE.value)
    if shared or (
        made == WHOLE
        and source is not None
        and split
        and not any(e.dim.value == needed for e in source.writes)
    ):
        # A whole tensor that every member reads for its own heads: each returns a part of the sum;
        # of its own tokens it returns a slice.
        needed, cotangent = WHOLE, PARTIAL
    if source is not None and source.kind is target.kind is OperatorKind.RESIDUAL:
        needed = made
    forward, backward = (
        transition(made, needed),
        transition(cotangent, WHOLE if made == PARTIAL else made),
    )
    if forward is None and backward is None:
        return None
    gathered, local = volume(_column_side(source, target)), volume(target)
    return LayoutChange(
        axis=axis,
        forward=forward,
        backward=backward,
        forward_volume=local if forward is Collective.ALL_TO_ALL else gathered,
        backward_volume=local if backward is Collective.ALL_TO_ALL else gathered,
    )


def _column_side(source: Operator | None, target: Operator) -> Operator:
    """End with the gathered tensor: `source` (if any) at a STREAM or ROUTER target, else `target`.

    The one outside the residual stream.
    """
    if source is None or target.klass not in (OperatorClass.STREAM, OperatorClass.ROUTER):
        return target
    return source
