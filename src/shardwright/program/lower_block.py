"""Lower one block under one structure: operator tasks, derived communication, saved tensors, parameters.

The walk: each operator's class says how its dims are cut; a tensor's layout along an axis follows from the operator that makes it and
the one that reads it; where they differ, `reshard.transition` names the collective, forward and, on cotangents, backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shardwright.collectives.algorithm import Collective
from shardwright.model.block import INPUT, MEMORY, Block
from shardwright.model.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.tensor import Dim, Extent, Parameter
from shardwright.program.block import BlockProgram, Exposure, Move, Phase, Recomputable, Saved, Stored, Work
from shardwright.program.reshard import PARTIAL, WHOLE, transition
from shardwright.program.sizes import Factor, Size
from shardwright.program.structure import Structure
from shardwright.program.tasks import TASKS, Local
from shardwright.runtime.runtime import AttentionKernel, Runtime, TpOverlap

_TOKEN_DIMS = (Dim.BATCH, Dim.SEQUENCE, Dim.CONTEXT)
_GEMMS = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What lowering needs beside the block: lengths, number formats, and what the runtime does.

    Args:
        tokens: positions of the block's sequence a sample. memory_tokens: of its memory sequence.
        element: bytes of an activation element. runtime: of the problem. dropout: of the job.
        imbalance_percent: tokens of the busiest expert over the mean, in percent.
    """

    tokens: int
    memory_tokens: int
    element: int
    runtime: Runtime
    dropout: bool
    imbalance_percent: int


@lru_cache(maxsize=4096)
def lower_block(block: Block, structure: Structure, context: Context) -> BlockProgram:
    """The block's program; sizes stay symbolic in the degrees of `structure`'s axes and ``mbs`` (samples a microbatch)."""
    operators = {o.name: o for o in block.operators}
    works: list[Work] = []
    moves: dict[tuple[str, ...], Move] = {}
    for operator in block.operators:
        works += TASKS[operator.kind](operator, _local(operator, structure, context))
        for name in operator.inputs:
            source = operators.get(name)
            for move in _edge_moves(source, operator, structure, context):
                moves.setdefault((name, move.phase, move.kind, *move.axes), move)
        for move in _own_moves(operator, structure, context):
            moves.setdefault((operator.name, move.phase, move.kind, *move.axes, "own"), move)
    return BlockProgram(
        block=block.name,
        works=tuple(works),
        moves=tuple(moves.values()),
        saved=_saved(block, operators, structure, context),
        stored=tuple(_stored(o, p, structure) for o in block.operators for p in o.parameters),
        input_volume=_stream_volume(block, structure, context),
        operators=block.operators,
    )


def _tokens(klass: OperatorClass, structure: Structure, context: Context) -> Size:
    axes = tuple(c.axis for c in structure.cuts(klass) if c.dim in _TOKEN_DIMS)
    return Size(scale=("mbs",), factors=(Factor(runs=context.tokens, axes=axes),))


def _resolved(cut_dim: Dim, operator: Operator) -> Dim | None:
    return operator.width() if cut_dim is Dim.WIDTH else cut_dim


def _part(extent: Extent, operator: Operator, structure: Structure) -> Size:
    axes = tuple(c.axis for c in structure.cuts(operator.klass) if _resolved(c.dim, operator) is extent.dim)
    return Size(factors=(Factor(runs=extent.runs, quantum=extent.quantum, axes=axes),))


def _routed_tokens(operator: Operator, structure: Structure, context: Context) -> Size:
    """Tokens of one local expert: the routed tokens of its coset over all experts (rounded up), the busiest one's share."""
    klass = OperatorClass.STREAM if structure.routed else OperatorClass.EXPERTS
    axes = _tokens(klass, structure, context).factors[0].axes
    gathered = ("etp", "ep") if structure.routed else ()
    return Size(scale=("mbs", *gathered), factors=(Factor(runs=_per_expert(context, operator), axes=axes),))


def _per_expert(context: Context, operator: Operator) -> int:
    assert operator.experts is not None
    shape = operator.experts
    return max(-(-context.tokens * shape.topk * context.imbalance_percent // (100 * shape.experts)), 1)


def _per_token(extents: tuple[Extent, ...], operator: Operator) -> tuple[Extent, ...]:
    """Extents of one token: an expert's own GEMM sees one expert."""
    return tuple(e for e in extents if e.dim is not Dim.EXPERTS) if _is_routed(operator) else extents


def _local(operator: Operator, structure: Structure, context: Context) -> Local:
    runtime = context.runtime
    routed = operator.kind is OperatorKind.GROUPED_LINEAR
    cross = operator.attention is not None and operator.attention.cross
    heads = None
    if operator.attention is not None:
        heads = _part(Extent(dim=Dim.HEADS, size=operator.attention.heads), operator, structure)
    elif operator.scan is not None:
        heads = _part(Extent(dim=Dim.HEADS, size=operator.scan.heads), operator, structure)
    expert_tokens = experts = None
    if routed:
        assert operator.experts is not None
        expert_tokens = _routed_tokens(operator, structure, context)
        experts = _part(Extent(dim=Dim.EXPERTS, size=operator.experts.experts), operator, structure)
    return Local(
        tokens=_tokens(operator.klass, structure, context) if not _is_routed(operator) else _dispatched(operator, structure, context),
        reads=tuple(_part(e, operator, structure) for e in _per_token(operator.reads, operator)),
        writes=tuple(_part(e, operator, structure) for e in _per_token(operator.writes, operator)),
        context=context.memory_tokens if cross else context.tokens,
        element=context.element,
        scores_fused=runtime.attention_kernel is not AttentionKernel.UNFUSED,
        dropout=context.dropout,
        fused_accumulate=runtime.fused_weight_gradient,
        loss_bytes=12 if runtime.fused_loss else 24,
        heads=heads,
        experts=experts,
        expert_tokens=expert_tokens,
    )


def _is_routed(operator: Operator) -> bool:
    return operator.klass is OperatorClass.EXPERTS and operator.experts is not None


def _dispatched(operator: Operator, structure: Structure, context: Context) -> Size:
    """Routed tokens on one device in all: topk copies of each token of its expert coset's share."""
    assert operator.experts is not None
    if not structure.routed:
        return _tokens(operator.klass, structure, context).scaled(operator.experts.topk)
    stream = _tokens(OperatorClass.STREAM, structure, context)
    return Size(times=operator.experts.topk, scale=("mbs", "etp"), factors=stream.factors)


def _produced(operator: Operator | None, axis: str, dim: Dim) -> str:
    """Layout along `axis` (which cuts `dim` of the operator's class) of what `operator` makes."""
    if dim is Dim.REPLICATE:
        return WHOLE
    if dim in _TOKEN_DIMS or operator is None:
        return Dim.SEQUENCE.value
    cut = _resolved(dim, operator)
    if cut is None:
        return WHOLE
    if any(e.dim is cut for e in operator.writes):
        return cut.value
    return PARTIAL if any(e.dim is cut for e in operator.reads) else WHOLE


def _wanted(operator: Operator, dim: Dim) -> tuple[str, str]:
    """Layout in which `operator` reads along an axis that cuts `dim`, and the layout of the cotangent that it returns."""
    if dim is Dim.REPLICATE:
        return WHOLE, WHOLE
    if dim in _TOKEN_DIMS:
        return Dim.SEQUENCE.value, Dim.SEQUENCE.value
    cut = _resolved(dim, operator)
    if cut is None:
        return WHOLE, WHOLE
    if any(e.dim is cut for e in operator.reads):
        return cut.value, cut.value
    return (WHOLE, PARTIAL) if any(e.dim is cut for e in operator.writes) else (WHOLE, WHOLE)


def _edge_moves(source: Operator | None, target: Operator, structure: Structure, context: Context) -> list[Move]:
    if target.kind is OperatorKind.EMBEDDING:
        return []
    source_class = source.klass if source is not None else OperatorClass.STREAM
    if structure.routed and (source is not None and _is_routed(source)) != _is_routed(target):
        return _dispatch_moves(source, target, structure, context)
    if _is_routed(target) and structure.routed:
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
        moves.append(_move(target, Phase.F, forward, axis, volume, _forward_exposure(forward, source, target, context)))
    if backward is not None:
        volume = local if backward is Collective.ALL_TO_ALL else gathered
        moves.append(_move(target, Phase.I, backward, axis, volume, _backward_exposure(backward, source, target, context)))
    if forward is Collective.ALL_GATHER and target.kind in _GEMMS and context.runtime.tp_input_regather:
        moves.append(_move(target, Phase.W, Collective.ALL_GATHER, axis, gathered, _overlap(context, Exposure.BESIDE_GEMM)))
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
        return _overlap(context, Exposure.BESIDE_WEIGHT_GRADIENT)
    beside = source is not None and source.kind in _GEMMS
    return _overlap(context, Exposure.BESIDE_GEMM) if beside else Exposure.BLOCKING


def _tensor_volume(
    edge: tuple[Operator | None, Operator], structure: Structure, context: Context, *, whole: bool
) -> tuple[Size, ...]:
    """Bytes of the tensor on an edge: `whole` = the gathered (or still partial) buffer of one group, else one member's part as read."""
    source, target = edge
    extents = source.writes if source is not None else target.reads
    gatherer = _column_side(source, target)
    klass = gatherer.klass if whole else target.klass
    tokens = _tokens(klass, structure, context)
    holder = target if not whole else gatherer
    return tuple(tokens * _part(e, holder, structure).scaled(context.element) for e in extents)


def _column_side(source: Operator | None, target: Operator) -> Operator:
    """The end of an edge that holds the gathered tensor: the one outside the stream."""
    if source is None or target.klass not in (OperatorClass.STREAM, OperatorClass.ROUTER):
        return target
    return source


def _dispatch_moves(source: Operator | None, target: Operator, structure: Structure, context: Context) -> list[Move]:
    """Tokens to their experts (or back): all_to_all over ep, and a gather (or reduce) over etp; backward is the mirror image."""
    outward = _is_routed(target)
    expert = target if outward else source
    assert expert is not None and expert.experts is not None
    stream = _tokens(OperatorClass.STREAM, structure, context)
    width = source.writes if source is not None else target.reads
    hidden = next((e for e in width if e.dim is Dim.HIDDEN), width[0])
    routed = Size(times=expert.experts.topk * context.element * hidden.size, scale=("mbs",), factors=stream.factors)
    gathered = Size(times=routed.times, scale=("mbs", "etp"), factors=stream.factors)
    spread, back = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) if outward else (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    moves = []
    for phase, inner in ((Phase.F, spread), (Phase.I, back)):
        moves.append(_move(expert, phase, Collective.ALL_TO_ALL, "ep", (routed,), Exposure.BLOCKING))
        moves.append(_move(expert, phase, inner, "etp", (gathered,), Exposure.BLOCKING))
    return moves


def _own_moves(operator: Operator, structure: Structure, context: Context) -> list[Move]:
    """Communication inside an operator: keys of a core cut by position, statistics of a loss cut by vocabulary."""
    if operator.kind is OperatorKind.LOSS:
        tokens = _tokens(operator.klass, structure, context)
        return [_move(operator, Phase.F, Collective.ALL_REDUCE, "tp", (tokens.scaled(3 * 4),), Exposure.BLOCKING)]
    if operator.attention is None or len(operator.reads) < 2:
        return []
    tokens = _tokens(operator.klass, structure, context)
    keys = tuple(tokens * _part(e, operator, structure).scaled(context.element) for e in operator.reads[1:])
    if not structure.gather:
        passed = [_ring(operator, Phase.F, keys), _ring(operator, Phase.I, keys + keys)]
        return passed
    whole = tuple(Size(times=k.times, scale=(*k.scale, "ring"), factors=k.factors) for k in keys)
    return [
        _move(operator, Phase.F, Collective.ALL_GATHER, "ring", whole, Exposure.BLOCKING),
        _move(operator, Phase.I, Collective.ALL_GATHER, "ring", whole, Exposure.BLOCKING),
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


def _stream_volume(block: Block, structure: Structure, context: Context) -> Size:
    hidden = next((e.size for o in block.operators for e in (*o.reads, *o.writes) if e.dim is Dim.HIDDEN and e.size > 1), 1)
    return _tokens(OperatorClass.STREAM, structure, context).scaled(context.element * hidden)


def _saved(block: Block, operators: dict[str, Operator], structure: Structure, context: Context) -> tuple[Saved, ...]:
    """Every tensor that some operator keeps, once; masks and unfused scores beside them."""
    kept: dict[str, Saved] = {}
    for operator in block.operators:
        if operator.kind is OperatorKind.LOSS:
            continue
        for name in operator.keeps:
            if name == MEMORY or name in kept:
                continue
            if name == INPUT:
                kept[name] = Saved(tensor=name, volume=_stream_volume(block, structure, context), dropped=Recomputable.NEVER)
            else:
                kept |= _saved_output(operators[name], operator, structure, context)
        kept |= _saved_extra(operator, structure, context)
    return tuple(kept.values())


def _saved_output(
    source: Operator, reader: Operator, structure: Structure, context: Context
) -> dict[str, Saved]:
    holder = source
    if not context.runtime.tp_input_regather and source.klass is OperatorClass.STREAM and reader.kind in _GEMMS:
        holder = reader
    tokens = _dispatched(source, structure, context) if _is_routed(source) else _tokens(holder.klass, structure, context)
    result = {}
    for index, extent in enumerate(_per_token(source.writes, source)):
        name = f"{source.name}.{index}" if index else source.name
        volume = tokens * _part(extent, source, structure).scaled(context.element)
        result[name] = Saved(tensor=name, volume=volume, dropped=Recomputable.FULL)
    return result


def _saved_extra(operator: Operator, structure: Structure, context: Context) -> dict[str, Saved]:
    """Dropout masks, attention scores (unfused) or their log-sum-exp (fused)."""
    tokens = _tokens(operator.klass, structure, context)
    result: dict[str, Saved] = {}
    if operator.kind is OperatorKind.RESIDUAL and context.dropout:
        volume = tokens * _part(operator.writes[0], operator, structure)
        result[f"{operator.name}.mask"] = Saved(tensor=f"{operator.name}.mask", volume=volume, dropped=Recomputable.FULL)
    if operator.attention is None:
        return result
    heads = _part(Extent(dim=Dim.HEADS, size=operator.attention.heads), operator, structure)
    name = operator.name
    if context.runtime.attention_kernel is AttentionKernel.UNFUSED:
        keys = context.memory_tokens if operator.attention.cross else context.tokens
        scores = tokens * heads * Size(times=keys)
        result[f"{name}.softmax"] = Saved(
            tensor=f"{name}.softmax", volume=scores.scaled(context.element), dropped=Recomputable.SELECTIVE
        )
        if context.dropout:
            dropped = scores.scaled(context.element + 1)
            result[f"{name}.dropout"] = Saved(tensor=f"{name}.dropout", volume=dropped, dropped=Recomputable.SELECTIVE)
    else:
        result[f"{name}.lse"] = Saved(tensor=f"{name}.lse", volume=(tokens * heads).scaled(4), dropped=Recomputable.SELECTIVE)
    return result


def _stored(operator: Operator, parameter: Parameter, structure: Structure) -> Stored:
    size = Size()
    for extent in parameter.extents:
        size = size * _part(extent, operator, structure)
    return Stored(
        parameter=parameter.name,
        elements=size,
        klass=parameter.klass,
        trainable=parameter.trainable,
        tied=bool(parameter.tied_to),
    )
