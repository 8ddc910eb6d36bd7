"""Communication of a block: between operators, to experts, inside an operator, at its end."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.model.ir.block import MEMORY
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.program.block.block_program import Exposure, Move, Phase, move_on_axis
from shardwright.program.block.communication.expert_dispatch_moves import dispatch_moves
from shardwright.program.block.grid_or_plan_cut_protocol import LayoutChange, Placing, is_routed
from shardwright.program.block.local_token_and_tensor_sizes import GEMM_KINDS, LoweringContext
from shardwright.program.block.operators_quantised_by_recipe import (
    is_scaled_by_block,
    scaled_width,
    stays_wide,
)
from shardwright.program.block.symbolic_sizes import Size
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import TpOverlap


def edge_moves(
    source: Operator | None, target: Operator, structure: Placing, context: LoweringContext
) -> list[tuple[Hashable, Move]]:
    """(key, move) of each communication between operators; key: `LayoutChange.between` or None.

    (`LayoutChange.between`).
    """
    if target.kind is OperatorKind.EMBEDDING:
        return []
    sent: list[tuple[Hashable, Move]] = []
    if structure.routed and (source is not None and is_routed(source)) != is_routed(target):
        sent = [(None, move) for move in dispatch_moves(source, target, structure, context)]
        # Tokens leave from where they are routed, and come back there.
        source = _at_router(source, source) if source is not None and is_routed(source) else source
        target = _at_router(target, source) if is_routed(target) else target
    elif is_routed(target) and structure.routed:
        return []
    memory = (source or target).inputs == (MEMORY,)
    length = context.memory_tokens if memory else context.tokens
    changes = structure.changes(source, target, length=length, element=context.element)
    return sent + [
        (change.between, move)
        for change in changes
        for move in _change_moves(change, source, target, context)
    ]


def _at_router(operator: Operator, source: Operator | None) -> Operator:
    """Stand-in of class ROUTER for an operator, with the layout that tokens have at the router.

    From there tokens go to experts, and there they return.
    """
    extents = source.writes if source is not None else operator.reads
    return replace(
        operator,
        kind=OperatorKind.RESIDUAL,
        klass=OperatorClass.ROUTER,
        reads=extents,
        writes=extents,
        parameters=(),
        experts=None,
    )


def _change_moves(
    change: LayoutChange, source: Operator | None, target: Operator, context: LoweringContext
) -> list[Move]:
    """The moves of one layout change: forward, backward, and a gather for the weight gradient."""
    forward, backward = change.forward, change.backward
    moves = []
    if forward is not None:
        exposure = _forward_exposure(forward, source, target, context)
        quantised = forward is Collective.ALL_GATHER and _gathers_quantised(target, context)
        volume = (
            tuple(_quantised_bytes(size, context, forms=1) for size in change.forward_volume)
            if quantised
            else change.forward_volume
        )
        move = replace(
            move_on_axis(target, Phase.F, forward, change.axis, volume, exposure, change.group),
            narrow=quantised,
        )
        maker = source if forward is not Collective.ALL_GATHER else None
        moves.append(replace(move, beside=maker.name if maker is not None else ""))
    if backward is not None:
        exposure = _backward_exposure(backward, source, target, context)
        quantised = backward is Collective.ALL_GATHER and _gathers_quantised(source, context)
        forms = 2 if is_scaled_by_block(context.runtime.scaling, context.compute_bits) else 1
        volume = (
            tuple(_quantised_bytes(size, context, forms=forms) for size in change.backward_volume)
            if quantised
            else change.backward_volume
        )
        move = replace(
            move_on_axis(target, Phase.I, backward, change.axis, volume, exposure, change.group),
            narrow=quantised,
        )
        reader = source if backward is Collective.ALL_GATHER else None
        moves.append(replace(move, beside=reader.name if reader is not None else ""))
    if (
        forward is Collective.ALL_GATHER
        and target.kind in GEMM_KINDS
        and context.runtime.tp_input_regather
    ):
        # Userbuffers gathers the kept input in bulk beside the input gradient, as plain Megatron
        # does.
        cut = context.runtime.tp_overlap is TpOverlap.ASYNC
        best = Exposure.BESIDE_GEMM if cut else Exposure.BESIDE_INPUT_GRADIENT
        exposure = (
            Exposure.BLOCKING
            if _has_casts_between(target, context)
            else _hidden_if_overlapped(context, best)
        )
        gathered_volume = moves[0].volume
        moves.append(
            move_on_axis(
                target,
                Phase.W,
                Collective.ALL_GATHER,
                change.axis,
                gathered_volume,
                exposure,
                change.group,
            )
        )
    return moves


def _gathers_quantised(operator: Operator | None, context: LoweringContext) -> bool:
    """True if `operator` is a GEMM whose operand the runtime quantises before gathering it."""
    quantises = context.runtime.gathers_quantized and 8 * context.element > context.compute_bits
    return (
        quantises
        and operator is not None
        and operator.kind in GEMM_KINDS
        and not stays_wide(operator)
    )


def _quantised_bytes(size: Size, context: LoweringContext, *, forms: int) -> Size:
    """Bytes of `forms` quantised copies, with scales, of a wide tensor of `size` bytes.

    Rounded down.
    """
    bytes_per_element = scaled_width(context.runtime.scaling, context.compute_bits)
    return replace(size, times=int(size.times * forms * bytes_per_element / context.element))


def _hidden_if_overlapped(context: LoweringContext, wanted: Exposure) -> Exposure:
    """The wanted exposure if the runtime's tensor-parallel overlap allows it, else BLOCKING."""
    if context.runtime.tp_overlap in (TpOverlap.FUSED, TpOverlap.ASYNC):
        return wanted
    if context.runtime.tp_overlap is TpOverlap.DGRAD and wanted is not Exposure.BESIDE_GEMM:
        return wanted
    return Exposure.BLOCKING


def _forward_exposure(
    kind: Collective, source: Operator | None, target: Operator, context: LoweringContext
) -> Exposure:
    """Exposure of a forward collective between two operators: BESIDE_GEMM, else BLOCKING."""
    beside = target if kind is Collective.ALL_GATHER else source
    if beside is None or beside.kind not in GEMM_KINDS or kind is Collective.ALL_TO_ALL:
        return Exposure.BLOCKING
    if kind is Collective.ALL_GATHER and _has_casts_between(beside, context):
        return Exposure.BLOCKING
    return _hidden_if_overlapped(context, Exposure.BESIDE_GEMM)


def _backward_exposure(
    kind: Collective, source: Operator | None, target: Operator, context: LoweringContext
) -> Exposure:
    """Exposure of a backward collective: beside a GEMM or weight gradient, else BLOCKING."""
    if kind is Collective.ALL_TO_ALL:
        return Exposure.BLOCKING
    if kind in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE) and target.kind in GEMM_KINDS:
        if context.runtime.tp_overlap is TpOverlap.ASYNC:
            # The compiler joins a reduce_scatter with the one product that makes its input; a sum
            # over projections is none.
            return (
                Exposure.BLOCKING
                if len(target.writes) > 1 or _has_casts_between(target, context)
                else Exposure.BESIDE_GEMM
            )
        return _hidden_if_overlapped(context, Exposure.BESIDE_WEIGHT_GRADIENT)
    beside = source is not None and source.kind in GEMM_KINDS
    if source is None or not beside or _has_casts_between(source, context):
        return Exposure.BLOCKING
    return _hidden_if_overlapped(context, Exposure.BESIDE_GEMM)


def _has_casts_between(operator: Operator, context: LoweringContext) -> bool:
    """True if casts and scales stand between a GEMM and its collectives under ASYNC overlap.

    A compiler joins the two only where nothing does.

    The forward's own product is scaled inside. Source: PyTorch,
    torch/_inductor/fx_passes/micro_pipeline_tp.py (`_find_consumer_matmuls`,
    `_find_producer_matmul`), read.
    """
    quantises = (
        8 * context.element > context.compute_bits
        and operator.kind in GEMM_KINDS
        and not stays_wide(operator)
    )
    return (
        quantises
        and context.runtime.tp_overlap is TpOverlap.ASYNC
        and not context.runtime.gathers_quantized
    )


def exit_moves(
    last: Operator, structure: Placing, context: LoweringContext
) -> list[tuple[Hashable, Move]]:
    """Moves that bring a block's output into the residual stream's layout; [] if it is in it.

    Where its last operator is outside the stream (a vocabulary-parallel lookup).
    """
    if last.kind is OperatorKind.LOSS or last.klass is OperatorClass.STREAM:
        return []
    stream = replace(
        last,
        kind=OperatorKind.RESIDUAL,
        klass=OperatorClass.STREAM,
        inputs=(last.name,),
        reads=last.writes,
        parameters=(),
        keeps=(),
        attention=None,
        experts=None,
        scan=None,
    )
    return [
        (between, replace(move, behind=True))
        for between, move in edge_moves(last, stream, structure, context)
    ]
