"""Communication of a block: between operators, to experts, inside an operator, at its end."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import pairwise
from typing import Final

from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.model.ir.block import MEMORY
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.block.block_program import Exposure, Move, Phase
from shardwright.program.block.local_sizes import LoweringContext, local_tokens, part
from shardwright.program.block.operator_cut_protocol import LayoutChange, Placing, is_routed
from shardwright.program.block.quantised_operators import (
    is_scaled_by_block,
    scaled_width,
    stays_wide,
)
from shardwright.program.block.symbolic_sizes import Size
from shardwright.runtime.framework_feature_kinds import ExpertDispatch, TpOverlap

_GEMMS = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)


def edge_moves(
    source: Operator | None, target: Operator, structure: Placing, context: LoweringContext
) -> list[tuple[Hashable, Move]]:
    """Communication between two operators, each move with the layouts that it changes.

    (`LayoutChange.between`).
    """
    if target.kind is OperatorKind.EMBEDDING:
        return []
    sent: list[tuple[Hashable, Move]] = []
    if structure.routed and (source is not None and is_routed(source)) != is_routed(target):
        sent = [(None, move) for move in _dispatch_moves(source, target, structure, context)]
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
    """A stand-in operator with the layout that tokens have at the router.

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
            _move(target, Phase.F, forward, change.axis, volume, exposure, change.group),
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
            _move(target, Phase.I, backward, change.axis, volume, exposure, change.group),
            narrow=quantised,
        )
        reader = source if backward is Collective.ALL_GATHER else None
        moves.append(replace(move, beside=reader.name if reader is not None else ""))
    if (
        forward is Collective.ALL_GATHER
        and target.kind in _GEMMS
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
            _move(
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
    """True if the operand of `operator` is quantised before its members gather it."""
    quantises = context.runtime.gathers_quantized and 8 * context.element > context.compute_bits
    return (
        quantises and operator is not None and operator.kind in _GEMMS and not stays_wide(operator)
    )


def _quantised_bytes(size: Size, context: LoweringContext, *, forms: int) -> Size:
    """Bytes of `forms` quantised copies, with scales, of a wide tensor of `size` bytes.

    Rounded down.
    """
    bytes_per_element = scaled_width(context.runtime.scaling, context.compute_bits)
    return replace(size, times=int(size.times * forms * bytes_per_element / context.element))


def _move(
    target: Operator,
    phase: Phase,
    kind: Collective,
    axis: str,
    volume: tuple[Size, ...],
    exposure: Exposure,
    group: tuple[int, ...] = (),
) -> Move:
    """A move of `target` in a phase over the process group of one axis."""
    return Move(
        operator=target.name,
        phase=phase,
        kind=kind,
        axes=(axis,),
        volume=volume,
        exposure=exposure,
        group=group,
    )


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
    """Exposure of a forward collective between two operators: the GEMM that may hide it."""
    beside = target if kind is Collective.ALL_GATHER else source
    if beside is None or beside.kind not in _GEMMS or kind is Collective.ALL_TO_ALL:
        return Exposure.BLOCKING
    if kind is Collective.ALL_GATHER and _has_casts_between(beside, context):
        return Exposure.BLOCKING
    return _hidden_if_overlapped(context, Exposure.BESIDE_GEMM)


def _backward_exposure(
    kind: Collective, source: Operator | None, target: Operator, context: LoweringContext
) -> Exposure:
    """Exposure of a backward collective between two operators: the GEMM that may hide it."""
    if kind is Collective.ALL_TO_ALL:
        return Exposure.BLOCKING
    if kind in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE) and target.kind in _GEMMS:
        if context.runtime.tp_overlap is TpOverlap.ASYNC:
            # The compiler joins a reduce_scatter with the one product that makes its input; a sum
            # over projections is none.
            return (
                Exposure.BLOCKING
                if len(target.writes) > 1 or _has_casts_between(target, context)
                else Exposure.BESIDE_GEMM
            )
        return _hidden_if_overlapped(context, Exposure.BESIDE_WEIGHT_GRADIENT)
    beside = source is not None and source.kind in _GEMMS
    if source is None or not beside or _has_casts_between(source, context):
        return Exposure.BLOCKING
    return _hidden_if_overlapped(context, Exposure.BESIDE_GEMM)


def _has_casts_between(operator: Operator, context: LoweringContext) -> bool:
    """True if casts and scales stand between a GEMM and its collectives.

    A compiler joins the two only where nothing does.

    The forward's own product is scaled inside. Source: PyTorch,
    torch/_inductor/fx_passes/micro_pipeline_tp.py (`_find_consumer_matmuls`,
    `_find_producer_matmul`), read.
    """
    quantises = (
        8 * context.element > context.compute_bits
        and operator.kind in _GEMMS
        and not stays_wide(operator)
    )
    return (
        quantises
        and context.runtime.tp_overlap is TpOverlap.ASYNC
        and not context.runtime.gathers_quantized
    )


def _dispatch_moves(
    source: Operator | None, target: Operator, structure: Placing, context: LoweringContext
) -> list[Move]:
    """Communication of tokens to their experts (or back): all-to-all over ep, gather over etp.

    A reduce over etp on the way back; backward is the mirror image.
    """
    outward = is_routed(target)
    expert = target if outward else source
    assert expert is not None
    assert expert.experts is not None
    extents = source.writes if source is not None else target.reads
    hidden = next((e for e in extents if e.dim is Dim.HIDDEN), extents[0])
    # A routed copy of a token carries its own weight, not those of all its copies.
    elements = 1 if hidden.dim is Dim.EXPERTS else hidden.size
    if context.runtime.expert_dispatch is ExpertDispatch.GATHERED:
        return _gathered_moves(
            expert, hidden, outward=outward, structure=structure, context=context
        )
    copies_sent, copies_gathered = (
        structure.sent_copies(expert, context.tokens),
        structure.gathered_copies(expert, context.tokens),
    )
    sent, spread_out = (
        copies.uneven(context.imbalance_percent) for copies in (copies_sent, copies_gathered)
    )
    ep, etp = structure.expert_groups()
    shape, sends_once = (
        expert.experts,
        context.runtime.expert_dispatch is ExpertDispatch.DEDUPLICATED,
    )
    copies, groups = (shape.topk, (shape.groups, shape.of_groups)) if sends_once else (0, (0, 0))
    forward_kind, backward_kind = (
        (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        if outward
        else (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    )
    moves: list[Move] = []
    for phase, etp_kind in ((Phase.F, forward_kind), (Phase.I, backward_kind)):
        width = _sent_bytes(elements, context, to_experts=outward is (phase is Phase.F))
        across = _move(
            expert, phase, Collective.ALL_TO_ALL, "ep", (sent.scaled(width),), Exposure.BLOCKING, ep
        )
        across = replace(
            across, copies=copies, groups=groups, rows=_row_share(shape.experts, elements, context)
        )
        inside = _move(
            expert, phase, etp_kind, "etp", (spread_out.scaled(width),), Exposure.BLOCKING, etp
        )
        moves += (across, inside) if etp_kind is Collective.ALL_GATHER else (inside, across)
    if sends_once and outward and elements > 1 and context.permutes_apart:
        moves = [_map_move(expert, structure=structure, context=context), *moves]
    return [replace(move, behind=not outward) for move in moves]


ROW_BYTES: Final = 4
"""Of each expert's weight in a row that HybridEP sends: fp32."""


def _row_share(experts: int, elements: int, context: LoweringContext) -> int:
    """Bytes that HybridEP sends for each byte of a copy's own routing weight; else 1.

    As many as the rows of all experts have, of which an island sends its part.

    Source: deepseek-ai/DeepEP csrc/hybrid_ep/backend/hybrid_ep_backend.cuh at b24ea354abdd
    (`experts_per_rank x num_of_ranks_per_node` floats beside every token, forward dispatch and
    backward combine), and its buffers (`expert_output_prob`).
    """
    sends_once = context.runtime.expert_dispatch is ExpertDispatch.DEDUPLICATED
    return (
        ROW_BYTES * experts // context.element
        if sends_once and context.permutes_apart and elements == 1
        else 1
    )


def _map_move(expert: Operator, *, structure: Placing, context: LoweringContext) -> Move:
    """All-gather of the routing map before HybridEP sends tokens.

    One byte for each pair of a token and an expert.

    Backward reads the map that forward made. Source: `Executor::allgather_routing_map`,
    csrc/hybrid_ep/executor/executor.cu.
    """
    assert expert.experts is not None
    map_bytes = structure.coset_tokens(context.tokens).scaled(expert.experts.experts)
    return _move(
        expert,
        Phase.F,
        Collective.ALL_GATHER,
        "coset",
        (map_bytes,),
        Exposure.BLOCKING,
        structure.coset(),
    )


def _gathered_moves(
    expert: Operator, hidden: Extent, *, outward: bool, structure: Placing, context: LoweringContext
) -> list[Move]:
    """Moves of an all-gather dispatcher: all tokens to all expert devices, outputs reduced back.

    An all-gather of all tokens of the devices that share experts, and a reduce-scatter of the
    experts' outputs.

    Backward is the mirror image. With the tokens go their scores of all experts, in 32 bits, and
    one byte for each score that says whether the expert was chosen.
    """
    assert expert.experts is not None
    bytes_each = (
        5 * expert.experts.experts if hidden.dim is Dim.EXPERTS else hidden.size * context.element
    )
    volume = structure.coset_tokens(context.tokens).scaled(bytes_each)
    forward_kind, backward_kind = (
        (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        if outward
        else (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    )
    moves = [
        _move(expert, phase, kind, "coset", (volume,), Exposure.BLOCKING, structure.coset())
        for phase, kind in ((Phase.F, forward_kind), (Phase.I, backward_kind))
    ]
    return [replace(move, behind=not outward) for move in moves]


SCALED_ELEMENTS: Final = 128
"""Elements of an 8-bit token that share one fp32 scale on their way (DeepSeek-V3 report, 3.3.2;
DeepEP's scales of 4 bytes)."""


def _sent_bytes(elements: int, context: LoweringContext, *, to_experts: bool) -> int:
    """Bytes of one copy of a token, or of its gradient, on its way to or from its experts.

    Operands of experts may travel in 8 bits; outputs of experts are summed in 16.
    """
    if (
        elements > 1
        and to_experts
        and context.runtime.dispatches_eight_bit
        and context.gemm_element < context.element
    ):
        return elements + 4 * -(-elements // SCALED_ELEMENTS)
    return context.element * elements


def exit_moves(
    last: Operator, structure: Placing, context: LoweringContext
) -> list[tuple[Hashable, Move]]:
    """Communication that brings a block's output into the residual stream's layout.

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


def operator_moves(operator: Operator, structure: Placing, context: LoweringContext) -> list[Move]:
    """Communication inside an operator: attention keys, loss statistics, norm statistics.

    Keys of an attention core cut by position, statistics of a loss cut by vocabulary, and of a
    norm.
    """
    if operator.kind is OperatorKind.LOSS:
        tokens = local_tokens(operator.klass, structure, context)
        group = structure.members(operator, Dim.VOCAB)
        # Maximum, normal sum and the label's logit; beside a teacher maxima and normal sums of
        # both, and the divergence.
        volume = tokens.scaled((5 if operator.reads_teacher_logits else 3) * 4)
        move = _move(
            operator, Phase.F, Collective.ALL_REDUCE, "tp", (volume,), Exposure.BLOCKING, group
        )
        return [replace(move, behind=True)]
    if operator.kind is OperatorKind.NORM:
        return _norm_moves(operator, structure, context)
    if operator.attention is None or len(operator.reads) < 2:
        return []
    # Keys of earlier slices stay with their owners and move again for each slice that looks back on
    # them.
    lengths = (
        (context.memory_tokens,) if operator.attention.cross else (*context.before, context.tokens)
    )
    widths = tuple(part(e, operator, structure).scaled(context.element) for e in operator.reads[1:])
    group = structure.members(operator, Dim.SEQUENCE)
    if not structure.gather:
        return _ring_moves(operator, widths, structure=structure, lengths=lengths, group=group)
    tokens = structure.gathered_tokens(operator, lengths)
    whole = tuple(tokens * width for width in widths)
    gather = _move(
        operator, Phase.F, Collective.ALL_GATHER, "ring", whole, Exposure.BLOCKING, group
    )
    return [
        gather,
        replace(gather, phase=Phase.I, behind=True),
        replace(gather, phase=Phase.I, kind=Collective.REDUCE_SCATTER),
    ]


def _norm_moves(operator: Operator, structure: Placing, context: LoweringContext) -> list[Move]:
    """All-reduces of a norm's sums of squares where several devices hold a token's width.

    And sums, of a LayerNorm; or where they hold heads under one gain.
    """
    gains = [p.extents[0] for p in operator.parameters if not p.name.endswith(".bias")]
    split = structure.members(
        operator, Dim.HEADS if any(g.dim is Dim.HEADS for g in gains) else Dim.HIDDEN
    )
    spanned = sum(
        gain.size == extent.size and extent.runs > 1
        for gain, extent in zip(gains, operator.reads, strict=False)
    )
    if not split or not spanned:
        return []
    sums = spanned * operator.groups * (2 if len(gains) < len(operator.parameters) else 1)
    statistics = local_tokens(operator.klass, structure, context).scaled(sums * 4)
    return [
        _move(operator, phase, Collective.ALL_REDUCE, "tp", (statistics,), Exposure.BLOCKING, split)
        for phase in (Phase.F, Phase.I)
    ]


def _ring_moves(
    operator: Operator,
    widths: tuple[Size, ...],
    *,
    structure: Placing,
    lengths: tuple[int, ...],
    group: tuple[int, ...],
) -> list[Move]:
    """Sends of keys and values round a ring, and in backward of their gradients too.

    Keys travel once more in backward, and behind them their gradients, which end where the keys
    began.
    """
    passed = structure.passed_tokens(operator, lengths)
    if len(passed) == 1:
        keys = tuple(passed[0] * width for width in widths)
        return [_ring(operator, Phase.F, keys, group), _ring(operator, Phase.I, keys + keys, group)]
    hops = [tuple(tokens * width for width in widths) for tokens in passed]
    forward = [_ring(operator, Phase.F, keys, group) for keys in hops[:-1]]
    back = [_ring(operator, Phase.I, keys + before, group) for keys, before in pairwise(hops)]
    return [replace(move, hops="") for move in (*forward, *back)]


def _ring(
    operator: Operator, phase: Phase, volume: tuple[Size, ...], group: tuple[int, ...]
) -> Move:
    """One send round the ring of a context-parallel group, repeated for every hop."""
    return Move(
        operator=operator.name,
        phase=phase,
        kind=Collective.SEND,
        axes=("ring",),
        volume=volume,
        exposure=Exposure.BESIDE_CORE,
        hops="ring",
        group=group,
    )
