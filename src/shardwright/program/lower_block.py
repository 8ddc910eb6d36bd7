"""Lower one block under one structure: operator tasks, derived communication, saved tensors, parameters.

The walk: each operator's class says how its dims are cut; a tensor's layout along an axis follows from the operator that makes it and
the one that reads it; where they differ, `reshard.transition` names the collective, forward and, on cotangents, backward.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.collectives.algorithm import Collective
from shardwright.model.block import MEMORY, Block
from shardwright.model.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.tensor import Dim, Extent, Parameter
from shardwright.program.block import BlockProgram, Exposure, Move, Phase, Stored, Work
from shardwright.program.local_size import (
    TOKEN_DIMS,
    Context,
    dispatched_tokens,
    is_routed,
    local_tokens,
    operator_tokens,
    part,
    per_token,
    resolved,
)
from shardwright.program.reshard import PARTIAL, WHOLE, transition
from shardwright.program.saved import saved_tensors, stream_volume
from shardwright.program.sizes import Factor, Size
from shardwright.program.structure import Structure
from shardwright.program.tasks import TASKS, Local
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, ExpertDispatch, TpOverlap

_GEMMS = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)


@lru_cache(maxsize=4096)
def lower_block(block: Block, structure: Structure, context: Context) -> BlockProgram:
    """The block's program; sizes stay symbolic in the degrees of `structure`'s axes and ``mbs`` (samples a microbatch)."""
    operators = {o.name: o for o in block.operators}
    works: list[Work] = []
    moves: dict[tuple[str, ...], Move] = {}
    for operator in block.operators:
        tasks = TASKS[operator.kind](operator, _local(operator, structure, context))
        works += tasks
        if _sorts_again(operator, structure, context):
            # Whole chunks of tokens: a copy, not a gather of rows.
            works += [replace(w, by_row=False) for w in tasks]
        for name in operator.inputs:
            source = operators.get(name)
            for move in _edge_moves(source, operator, structure, context):
                moves.setdefault((name, move.phase, move.kind, *move.axes), move)
        for move in _own_moves(operator, structure, context):
            moves.setdefault((operator.name, move.phase, move.kind, *move.axes, "own"), move)
    for move in _exit_moves(block.operators[-1], structure, context):
        moves.setdefault((block.operators[-1].name, move.phase, move.kind, *move.axes, "exit"), move)
    return BlockProgram(
        block=block.name,
        works=tuple(works),
        moves=tuple(moves.values()),
        saved=saved_tensors(block, operators, structure, context),
        stored=tuple(_stored(o, p, structure) for o in block.operators for p in o.parameters),
        input_volume=stream_volume(block, structure, context),
        operators=block.operators,
    )


def _sorts_again(operator: Operator, structure: Structure, context: Context) -> bool:
    """Copies that came by all_to_all lie by sender and are sorted by local expert once more (Megatron-Core's sort_chunks_by_idxs)."""
    if operator.kind is not OperatorKind.PERMUTE or operator.experts is None:
        return False
    return structure.routed and context.runtime.expert_dispatch is ExpertDispatch.ALL_TO_ALL


def _routed_tokens(operator: Operator, structure: Structure, context: Context) -> Size:
    """Tokens of one local expert: the routed tokens of its coset over all experts (rounded up), the busiest one's share."""
    klass = OperatorClass.STREAM if structure.routed else OperatorClass.EXPERTS
    axes = local_tokens(klass, structure, context).factors[0].axes
    gathered = ("etp", "ep") if structure.routed else ()
    return Size(scale=("mbs", *gathered), factors=(Factor(runs=_per_expert(context, operator), axes=axes),))


def _per_expert(context: Context, operator: Operator) -> int:
    assert operator.experts is not None
    shape = operator.experts
    return max(-(-context.tokens * shape.topk * context.imbalance_percent // (100 * shape.experts)), 1)


def _local(operator: Operator, structure: Structure, context: Context) -> Local:
    runtime = context.runtime
    routed = operator.kind is OperatorKind.GROUPED_LINEAR
    cross = operator.attention is not None and operator.attention.cross
    heads = None
    if operator.attention is not None:
        heads = part(Extent(dim=Dim.HEADS, size=operator.attention.heads), operator, structure)
    elif operator.scan is not None:
        heads = part(Extent(dim=Dim.HEADS, size=operator.scan.heads), operator, structure)
    expert_tokens = experts = None
    if routed:
        assert operator.experts is not None
        expert_tokens = _routed_tokens(operator, structure, context)
        experts = part(Extent(dim=Dim.EXPERTS, size=operator.experts.experts), operator, structure)
    return Local(
        tokens=operator_tokens(operator, structure, context)
        if not is_routed(operator)
        else dispatched_tokens(operator, structure, context),
        reads=tuple(part(e, operator, structure) for e in per_token(operator.reads, operator)),
        writes=tuple(part(e, operator, structure) for e in per_token(operator.writes, operator)),
        context=context.memory_tokens if cross else context.tokens,
        element=context.element,
        scores_fused=runtime.attention_kernel is not AttentionKernel.UNFUSED,
        keys_passed=not structure.gather,
        dropout=context.dropout,
        fused_accumulate=runtime.fused_weight_gradient,
        loss_bytes=12 if runtime.fused_loss else 24,
        own_sums=runtime.element_kernels is not ElementKernels.FUSED,
        native_loss=runtime.fused_loss,
        loss_traffic=runtime.loss_bytes,
        eager=runtime.element_kernels is ElementKernels.EAGER,
        fused_chains=runtime.fused_chains,
        fp32_norms=runtime.fp32_norms,
        added_bytes=runtime.gradient_dtype.bits // 8 if runtime.adds_gradients else 0,
        # A dispatcher that sends one copy a device gathers rows in kernels of its own.
        by_row=runtime.row_kernels and (operator.kind is OperatorKind.LOSS or runtime.expert_dispatch is ExpertDispatch.ALL_TO_ALL),
        heads=heads,
        experts=experts,
        expert_tokens=expert_tokens,
    )


def _produced(operator: Operator | None, axis: str, dim: Dim) -> str:
    """Layout along `axis` (which cuts `dim` of the operator's class) of what `operator` makes."""
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


def _wanted(operator: Operator, dim: Dim) -> tuple[str, str]:
    """Layout in which `operator` reads along an axis that cuts `dim`, and the layout of the cotangent that it returns."""
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


def _edge_moves(source: Operator | None, target: Operator, structure: Structure, context: Context) -> list[Move]:
    if target.kind is OperatorKind.EMBEDDING:
        return []
    source_class = source.klass if source is not None else OperatorClass.STREAM
    if structure.routed and (source is not None and is_routed(source)) != is_routed(target):
        return _dispatch_moves(source, target, structure, context)
    if is_routed(target) and structure.routed:
        return []
    moves: list[Move] = []
    source_cuts = {c.axis: c.dim for c in structure.cuts(source_class)}
    for cut in structure.cuts(target.klass):
        if cut.axis == "ring":
            continue
        made = _produced(source, cut.axis, source_cuts[cut.axis])
        wanted, cotangent = _wanted(target, cut.dim)
        if made == WHOLE and source is not None and wanted != WHOLE and not any(e.dim.value == wanted for e in source.writes):
            # A whole tensor that every member reads for its own heads: each returns a part of the sum, none a slice.
            wanted, cotangent = WHOLE, PARTIAL
        if source is not None and source.kind is target.kind is OperatorKind.RESIDUAL:
            wanted = made
        moves += _axis_moves(cut.axis, made, wanted, cotangent, (source, target), structure, context)
    return moves


def _axis_moves(
    axis: str,
    made: str,
    wanted: str,
    cotangent: str,
    edge: tuple[Operator | None, Operator],
    structure: Structure,
    context: Context,
) -> list[Move]:
    source, target = edge
    forward = transition(made, wanted)
    wanted_back = WHOLE if made == PARTIAL else made
    backward = transition(cotangent, wanted_back)
    gathered = _tensor_volume(edge, structure, context, whole=True)
    local = _tensor_volume(edge, structure, context, whole=False)
    moves = []
    if forward is not None:
        volume = local if forward is Collective.ALL_TO_ALL else gathered
        move = _move(target, Phase.F, forward, axis, volume, _forward_exposure(forward, source, target, context))
        made_by = source if forward is not Collective.ALL_GATHER else None
        moves.append(replace(move, beside=made_by.name if made_by is not None else ""))
    if backward is not None:
        volume = local if backward is Collective.ALL_TO_ALL else gathered
        move = _move(target, Phase.I, backward, axis, volume, _backward_exposure(backward, source, target, context))
        read_by = source if backward is Collective.ALL_GATHER else None
        moves.append(replace(move, beside=read_by.name if read_by is not None else ""))
    if forward is Collective.ALL_GATHER and target.kind in _GEMMS and context.runtime.tp_input_regather:
        # Userbuffers gathers the kept input in bulk beside the input gradient, as plain Megatron does.
        cut = context.runtime.tp_overlap is TpOverlap.ASYNC
        best = Exposure.BESIDE_GEMM if cut else Exposure.BESIDE_INPUT_GRADIENT
        moves.append(_move(target, Phase.W, Collective.ALL_GATHER, axis, gathered, _overlap(context, best)))
    return moves


def _move(target: Operator, phase: Phase, kind: Collective, axis: str, volume: tuple[Size, ...], exposure: Exposure) -> Move:
    return Move(operator=target.name, phase=phase, kind=kind, axes=(axis,), volume=volume, exposure=exposure)


def _overlap(context: Context, best: Exposure) -> Exposure:
    if context.runtime.tp_overlap in (TpOverlap.FUSED, TpOverlap.ASYNC):
        return best
    if context.runtime.tp_overlap is TpOverlap.DGRAD and best is not Exposure.BESIDE_GEMM:
        return best
    return Exposure.BLOCKING


def _forward_exposure(kind: Collective, source: Operator | None, target: Operator, context: Context) -> Exposure:
    beside = target if kind is Collective.ALL_GATHER else source
    if beside is None or beside.kind not in _GEMMS or kind is Collective.ALL_TO_ALL:
        return Exposure.BLOCKING
    return _overlap(context, Exposure.BESIDE_GEMM)


def _backward_exposure(kind: Collective, source: Operator | None, target: Operator, context: Context) -> Exposure:
    if kind is Collective.ALL_TO_ALL:
        return Exposure.BLOCKING
    if kind in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE) and target.kind in _GEMMS:
        if context.runtime.tp_overlap is TpOverlap.ASYNC:
            # The compiler joins a reduce_scatter with the one product that makes its input; a sum over projections is none.
            return Exposure.BLOCKING if len(target.writes) > 1 else Exposure.BESIDE_GEMM
        return _overlap(context, Exposure.BESIDE_WEIGHT_GRADIENT)
    beside = source is not None and source.kind in _GEMMS
    return _overlap(context, Exposure.BESIDE_GEMM) if beside else Exposure.BLOCKING


def _tensor_volume(edge: tuple[Operator | None, Operator], structure: Structure, context: Context, *, whole: bool) -> tuple[Size, ...]:
    """Bytes of the tensor on an edge: `whole` = the gathered (or still partial) buffer of one group, else one member's part as read."""
    source, target = edge
    extents = source.writes if source is not None else target.reads
    gatherer = _column_side(source, target)
    holder = gatherer if whole else target
    memory = (source or target).inputs == (MEMORY,)
    tokens = local_tokens(holder.klass, structure, replace(context, tokens=context.memory_tokens) if memory else context)
    return tuple(tokens * part(e, holder, structure).scaled(context.element) for e in extents)


def _column_side(source: Operator | None, target: Operator) -> Operator:
    """The end of an edge that holds the gathered tensor: the one outside the stream."""
    if source is None or target.klass not in (OperatorClass.STREAM, OperatorClass.ROUTER):
        return target
    return source


def _dispatch_moves(source: Operator | None, target: Operator, structure: Structure, context: Context) -> list[Move]:
    """Tokens to their experts (or back): all_to_all over ep, and a gather (or reduce) over etp; backward is the mirror image."""
    outward = is_routed(target)
    expert = target if outward else source
    assert expert is not None
    assert expert.experts is not None
    stream = local_tokens(OperatorClass.STREAM, structure, context)
    width = source.writes if source is not None else target.reads
    hidden = next((e for e in width if e.dim is Dim.HIDDEN), width[0])
    # A routed copy of a token carries its own weight, not those of all its copies.
    elements = 1 if hidden.dim is Dim.EXPERTS else hidden.size
    routed = Size(times=expert.experts.topk * context.element * elements, scale=("mbs",), factors=stream.factors)
    gathered = Size(times=routed.times, scale=("mbs", "etp"), factors=stream.factors)
    copies = expert.experts.topk if context.runtime.expert_dispatch is ExpertDispatch.DEDUPLICATED else 0
    spread, back = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) if outward else (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    moves: list[Move] = []
    for phase, inner in ((Phase.F, spread), (Phase.I, back)):
        across = replace(_move(expert, phase, Collective.ALL_TO_ALL, "ep", (routed,), Exposure.BLOCKING), copies=copies)
        inside = _move(expert, phase, inner, "etp", (gathered,), Exposure.BLOCKING)
        moves += (across, inside) if inner is Collective.ALL_GATHER else (inside, across)
    return [replace(move, behind=not outward) for move in moves]


def _exit_moves(last: Operator, structure: Structure, context: Context) -> list[Move]:
    """What brings a block's output into the stream's layout where its last operator is outside it (a vocabulary-parallel lookup)."""
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
    return [replace(move, behind=True) for move in _edge_moves(last, stream, structure, context)]


def _own_moves(operator: Operator, structure: Structure, context: Context) -> list[Move]:
    """Communication inside an operator: keys of a core cut by position, statistics of a loss cut by vocabulary."""
    if operator.kind is OperatorKind.LOSS:
        tokens = local_tokens(operator.klass, structure, context)
        return [replace(_move(operator, Phase.F, Collective.ALL_REDUCE, "tp", (tokens.scaled(3 * 4),), Exposure.BLOCKING), behind=True)]
    if operator.attention is None or len(operator.reads) < 2:
        return []
    own = replace(context, tokens=context.memory_tokens) if operator.attention.cross else context
    tokens = local_tokens(operator.klass, structure, own)
    keys = tuple(tokens * part(e, operator, structure).scaled(context.element) for e in operator.reads[1:])
    if not structure.gather:
        return [_ring(operator, Phase.F, keys), _ring(operator, Phase.I, keys + keys)]
    whole = tuple(Size(times=k.times, scale=(*k.scale, "ring"), factors=k.factors) for k in keys)
    return [
        _move(operator, Phase.F, Collective.ALL_GATHER, "ring", whole, Exposure.BLOCKING),
        replace(_move(operator, Phase.I, Collective.ALL_GATHER, "ring", whole, Exposure.BLOCKING), behind=True),
        _move(operator, Phase.I, Collective.REDUCE_SCATTER, "ring", whole, Exposure.BLOCKING),
    ]


def _ring(operator: Operator, phase: Phase, volume: tuple[Size, ...]) -> Move:
    return Move(
        operator=operator.name,
        phase=phase,
        kind=Collective.SEND,
        axes=("ring",),
        volume=volume,
        exposure=Exposure.BESIDE_CORE,
        hops="ring",
    )


def _stored(operator: Operator, parameter: Parameter, structure: Structure) -> Stored:
    size = Size()
    for extent in parameter.extents:
        size = size * part(extent, operator, structure)
    return Stored(
        parameter=parameter.name,
        elements=size,
        klass=parameter.klass,
        trainable=parameter.trainable,
        tied=bool(parameter.tied_to),
    )
