"""Lower one block under one structure: kernels, communication, saved tensors, parameters.

Each operator's class says how its dims are cut; a tensor's layout along an axis follows from the
operator that makes it and the one that reads it. Where the two differ,
`collective_for_layout_change_along_axis.transition` names the collective, forward and, on
cotangents, backward. Operators before the first trained parameter have no backward
(`model.tensors_without_gradient`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter
from shardwright.model.tensors_without_gradient import (
    computes_input_gradient,
    runs_backward,
    without_gradient,
)
from shardwright.program.block.block_program import (
    BlockProgram,
    BlockWork,
    LocalParameter,
    Move,
    Phase,
)
from shardwright.program.block.communication.moves_between_operators import edge_moves, exit_moves
from shardwright.program.block.communication.moves_inside_operators import operator_moves
from shardwright.program.block.grid_or_plan_cut_protocol import Placing, is_routed
from shardwright.program.block.kernels.linear_kernels import adapter_works
from shardwright.program.block.kernels.local_operator_sizes import Local
from shardwright.program.block.kernels.operator_kernels import KERNELS_OF, chunk_sort_works
from shardwright.program.block.local_token_and_tensor_sizes import (
    LoweringContext,
    dispatched_tokens,
    operator_tokens,
    output_volume,
    part,
    per_token,
    router_kernels,
)
from shardwright.program.block.operators_quantised_by_recipe import is_narrow
from shardwright.program.block.saved_tensors import saved_tensors
from shardwright.program.block.symbolic_sizes import Size
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    ExpertDispatch,
    LinearLoss,
)

LINEAR_LOSS_TRAFFIC: Final = {LinearLoss.LIGER: 6, LinearLoss.CUT: 2}
"""Bytes a logit of a loss that takes the head's product with it: two reads and a write in 16 bits;
or none, counted as a byte each way."""


@lru_cache(maxsize=4096)
def lower_block(block: Block, structure: Placing, context: LoweringContext) -> BlockProgram:
    """Lower one block under `structure` to kernels, moves, saved tensors and parameters.

    Sizes stay symbolic in the degrees of the structure's axes and ``mbs`` (samples a microbatch).
    """
    operators = {o.name: o for o in block.operators}
    works: list[BlockWork] = []
    moves: dict[tuple[object, ...], Move] = {}
    local_operators = [o for o in block.operators if structure.runs(o)]
    constant = without_gradient(block)
    for operator in block.operators:
        if structure.runs(operator):
            local = _local_sizes(operator, structure, context)
            needs_input_gradient = computes_input_gradient(operator, constant)
            sort_kernels = (
                chunk_sort_works(operator, local)
                if _sorts_by_expert(operator, structure, context)
                else ()
            )
            works += _without_unread_input_gradient(
                (*_kernels_of(operator, local), *sort_kernels),
                operator,
                needs_input_gradient=needs_input_gradient,
            )
            for number, move in enumerate(operator_moves(operator, structure, context)):
                if needs_input_gradient or move.phase is not Phase.I:
                    moves[operator.name, "own", number] = move
        for name in operator.inputs:
            source = operators.get(name)
            if source is None or structure.runs(operator) or structure.runs(source):
                sent = edge_moves(source, operator, structure, context)
                for between, move in (
                    _without_cotangents(sent)
                    if name in constant or operator.name in constant
                    else sent
                ):
                    moves.setdefault(
                        (name, move.phase, move.kind, *move.axes, *move.group, between), move
                    )
    last = block.operators[-1]
    exit_steps = exit_moves(last, structure, context)
    for between, move in _without_cotangents(exit_steps) if last.name in constant else exit_steps:
        moves.setdefault(
            (last.name, move.phase, move.kind, *move.axes, *move.group, between, "exit"), move
        )
    works = _mark_quantised_gathers(works, tuple(moves.values()))
    with_weight_gradient = {w.operator for w in works if w.phase is Phase.W}
    moves = {
        key: move
        for key, move in moves.items()
        if move.phase is not Phase.W or move.operator in with_weight_gradient
    }
    return BlockProgram(
        block=block.name,
        works=tuple(works),
        moves=tuple(moves.values()),
        saved=saved_tensors(block, operators, structure, context),
        stored=tuple(
            _local_parameter(o, p, structure, backward=runs_backward(o, constant))
            for o in local_operators
            for p in o.parameters
        ),
        output_volume=output_volume(block, structure, context),
        operators=tuple(
            o
            for o in block.operators
            if structure.runs(o) or any(m.operator == o.name for m in moves.values())
        ),
        constant=constant,
    )


def _without_cotangents(moves: list[tuple[Hashable, Move]]) -> list[tuple[Hashable, Move]]:
    """The moves that are not of the input-gradient phase (Phase.I)."""
    return [(between, move) for between, move in moves if move.phase is not Phase.I]


def _without_unread_input_gradient(
    works: tuple[BlockWork, ...], operator: Operator, *, needs_input_gradient: bool
) -> tuple[BlockWork, ...]:
    """Kernels, less those of an unneeded input gradient, unless they make the weight gradient too.

    One kernel makes both gradients of a norm, a convolution or a scan: it runs for either.
    """
    if needs_input_gradient or (
        operator.trains_weights and all(work.phase is not Phase.W for work in works)
    ):
        return works
    return tuple(work for work in works if work.phase is not Phase.I)


def _mark_quantised_gathers(works: list[BlockWork], moves: tuple[Move, ...]) -> list[BlockWork]:
    """Works, `gathered` set to (axis, members) where an operand is quantised before all-gather."""
    gathered_operands: dict[tuple[str, Phase], tuple[str, int]] = {
        (m.beside or m.operator, m.phase): (m.axes[0], len(m.group) or 1)
        for m in moves
        if m.narrow and m.phase is not Phase.W and m.kind is Collective.ALL_GATHER
    }
    if not gathered_operands:
        return works
    operand_phase = {Phase.W: Phase.F}
    return [
        replace(
            w,
            gathered=gathered_operands.get(
                (w.operator, operand_phase.get(w.phase, w.phase)), w.gathered
            ),
        )
        for w in works
    ]


def _kernels_of(operator: Operator, local: Local) -> tuple[BlockWork, ...]:
    """Kernels of an operator in F, I and W, its adapter's first; no W where its weights are frozen.

    Frozen parameters have no weight gradient.
    """
    kernels = KERNELS_OF[operator.kind](operator, local)
    if operator.parameters and not operator.trains_weights:
        kernels = tuple(work for work in kernels if work.phase is not Phase.W)
    return (*(adapter_works(operator, local) if operator.adapted else ()), *kernels)


def _sorts_by_expert(operator: Operator, structure: Placing, context: LoweringContext) -> bool:
    """True if routed copies that came by all-to-all are sorted by local expert once more.

    They lie by sender (Megatron-Core's sort_chunks_by_idxs).
    """
    if operator.kind is not OperatorKind.PERMUTE or operator.experts is None:
        return False
    return structure.routed and context.runtime.expert_dispatch is ExpertDispatch.ALL_TO_ALL


def _routed_tokens(operator: Operator, structure: Placing, context: LoweringContext) -> Size:
    """Tokens of one local expert on the busiest device, as a symbolic size that rounds up.

        ceil(ceil(served x each / positions) x imbalance)

    `served`: tokens that the device's experts serve. `each`: one expert's tokens of a whole sample,
    rounded up. The members of a context group split samples, not experts' shares: rounding each
    member's part of a share would count up to one token a member and sample too many.
    """
    served = structure.served_tokens(context.tokens).scaled(_tokens_of_expert(context, operator))
    return served.divided(context.tokens).uneven(context.imbalance_percent)


def _tokens_of_expert(context: LoweringContext, operator: Operator) -> int:
    """Tokens of one sample that one expert serves if all serve alike, rounded up, at least 1."""
    assert operator.experts is not None
    shape = operator.experts
    return max(-(-context.tokens * shape.topk // shape.experts), 1)


def _local_sizes(operator: Operator, structure: Placing, context: LoweringContext) -> Local:
    """Local sizes of an operator on one device, and the runtime choices that decide its kernels."""
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
        # Each of a slice's queries sees as many keys in the mean as in a causal sequence with the
        # tokens before it twice.
        context=context.memory_tokens if cross else context.tokens + 2 * sum(context.before),
        element=context.element,
        scores_fused=runtime.attention_kernel is not AttentionKernel.UNFUSED,
        keys_passed=not structure.gather,
        dropout=context.dropout,
        fused_accumulate=runtime.fused_weight_gradient,
        loss_bytes=12 if runtime.fused_loss else 24,
        own_sums=runtime.element_kernels is not ElementKernels.FUSED,
        native_loss=runtime.fused_loss,
        loss_traffic=LINEAR_LOSS_TRAFFIC.get(runtime.linear_loss, runtime.loss_bytes),
        eager=runtime.element_kernels is ElementKernels.EAGER,
        fused_chains=runtime.fused_chains,
        fp32_norms=runtime.fp32_norms,
        added_bytes=runtime.gradient_dtype.bits // 8 if runtime.adds_gradients else 0,
        # HybridEP gathers rows in kernels of its own; behind DeepEP's dispatch it is the
        # framework's permutation.
        by_row=runtime.row_kernels
        and (
            operator.kind is OperatorKind.LOSS
            or runtime.expert_dispatch is not ExpertDispatch.DEDUPLICATED
            or not context.permutes_apart
        ),
        # A compiler makes kernels of its own; where nothing else is said, frameworks on PyTorch
        # have PyTorch's.
        indexed=not runtime.row_kernels and runtime.element_kernels is not ElementKernels.COMPILED,
        apart=runtime.element_kernels is ElementKernels.FUSED and not runtime.fused_experts,
        router_kernels=router_kernels(runtime),
        heads=heads,
        experts=experts,
        expert_tokens=expert_tokens,
    )


def _local_parameter(
    operator: Operator, parameter: Parameter, structure: Placing, *, backward: bool
) -> LocalParameter:
    """A parameter's local elements on one device, and the axes its gradient is summed along."""
    size = Size()
    for extent in parameter.extents:
        size = size * part(extent, operator, structure)
    return LocalParameter(
        parameter=parameter.name,
        elements=size,
        klass=parameter.klass,
        trainable=parameter.trainable,
        tied=bool(parameter.tied_to),
        summed_along=structure.summed_along(operator, parameter),
        coarse=tuple((f.runs, f.axes) for f in size.factors if f.axes),
        narrow=is_narrow(operator, parameter),
        backward=backward,
    )
