"""Moves inside an operator: keys of attention, statistics of a loss and of norms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.block_program import Exposure, Move, Phase, move_on_axis
from shardwright.program.block.grid_or_plan_cut_protocol import Placing
from shardwright.program.block.local_token_and_tensor_sizes import (
    LoweringContext,
    local_tokens,
    part,
)
from shardwright.program.block.symbolic_sizes import Size


def operator_moves(operator: Operator, structure: Placing, context: LoweringContext) -> list[Move]:
    """Moves inside one operator: of attention keys, loss statistics or norm statistics; else [].

    Keys of an attention core cut by position, statistics of a loss cut by vocabulary, and of a
    norm.
    """
    if operator.kind is OperatorKind.LOSS:
        tokens = local_tokens(operator.klass, structure, context)
        group = structure.members(operator, Dim.VOCAB)
        # Maximum, normal sum and the label's logit; beside a teacher maxima and normal sums of
        # both, and the divergence.
        volume = tokens.scaled((5 if operator.reads_teacher_logits else 3) * 4)
        move = move_on_axis(
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
    gather = move_on_axis(
        operator, Phase.F, Collective.ALL_GATHER, "ring", whole, Exposure.BLOCKING, group
    )
    return [
        gather,
        replace(gather, phase=Phase.I, behind=True),
        replace(gather, phase=Phase.I, kind=Collective.REDUCE_SCATTER),
    ]


def _norm_moves(operator: Operator, structure: Placing, context: LoweringContext) -> list[Move]:
    """All-reduces in F and I of a norm's sums of squares where devices share a width; else [].

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
        move_on_axis(
            operator, phase, Collective.ALL_REDUCE, "tp", (statistics,), Exposure.BLOCKING, split
        )
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
    """Sends of keys and values round a ring, in backward with their gradients; bytes a token.

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
