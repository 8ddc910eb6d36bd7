"""Moves of tokens to their experts and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.block.block_program import Exposure, Move, Phase, move_on_axis
from shardwright.program.block.grid_or_plan_cut_protocol import Placing, is_routed
from shardwright.program.block.local_token_and_tensor_sizes import LoweringContext
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ExpertDispatch


def dispatch_moves(
    source: Operator | None, target: Operator, structure: Placing, context: LoweringContext
) -> list[Move]:
    """Moves in F and I that send tokens to experts or back: all-to-all over ep, gather over etp.

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
        across = move_on_axis(
            expert, phase, Collective.ALL_TO_ALL, "ep", (sent.scaled(width),), Exposure.BLOCKING, ep
        )
        across = replace(
            across, copies=copies, groups=groups, rows=_row_share(shape.experts, elements, context)
        )
        inside = move_on_axis(
            expert, phase, etp_kind, "etp", (spread_out.scaled(width),), Exposure.BLOCKING, etp
        )
        moves += (across, inside) if etp_kind is Collective.ALL_GATHER else (inside, across)
    if sends_once and outward and elements > 1 and context.permutes_apart:
        moves = [_map_move(expert, structure=structure, context=context), *moves]
    return [replace(move, behind=not outward) for move in moves]


ROW_BYTES: Final = 4
"""Of each expert's weight in a row that HybridEP sends: fp32."""


def _row_share(experts: int, elements: int, context: LoweringContext) -> int:
    """Bytes HybridEP sends for each byte of a copy's routing weight (all experts' fp32), or 1.

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
    """All-gather of the routing map (1 byte a token and expert) in F over devices sharing experts.

    One byte for each pair of a token and an expert.

    Backward reads the map that forward made. Source: `Executor::allgather_routing_map`,
    csrc/hybrid_ep/executor/executor.cu.
    """
    assert expert.experts is not None
    map_bytes = structure.coset_tokens(context.tokens).scaled(expert.experts.experts)
    return move_on_axis(
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
    """Moves in F and I of an all-gather dispatcher: all tokens to all experts, outputs summed.

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
        move_on_axis(expert, phase, kind, "coset", (volume,), Exposure.BLOCKING, structure.coset())
        for phase, kind in ((Phase.F, forward_kind), (Phase.I, backward_kind))
    ]
    return [replace(move, behind=not outward) for move in moves]


SCALED_ELEMENTS: Final = 128
"""Elements of an 8-bit token that share one fp32 scale on their way (DeepSeek-V3 report, 3.3.2;
DeepEP's scales of 4 bytes)."""


def _sent_bytes(elements: int, context: LoweringContext, *, to_experts: bool) -> int:
    """Bytes of a copy of a token (or gradient) of `elements`; to experts in 8 bits if so set.

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
