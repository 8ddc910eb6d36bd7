"""Tensors of a block's forward that its backward needs, with the recompute modes that drop them.

Each once.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.model.tensors_without_gradient import without_gradient
from shardwright.program.block.block_program import Recomputable, SavedTensor
from shardwright.program.block.grid_or_plan_cut_protocol import Placing, is_routed
from shardwright.program.block.local_token_and_tensor_sizes import (
    GEMM_KINDS,
    LoweringContext,
    dispatched_tokens,
    local_tokens,
    output_sizes,
    part,
    stream_share,
    stream_volume,
)
from shardwright.program.block.saved_under_recompute import saved_after_recompute
from shardwright.program.block.symbolic_sizes import Size
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
)

_FEED_FORWARDS = (OperatorClass.MLP, OperatorClass.SHARED, OperatorClass.EXPERTS)


def saved_tensors(
    block: Block, operators: dict[str, Operator], structure: Placing, context: LoweringContext
) -> tuple[SavedTensor, ...]:
    """Tensors of a block saved for backward after the runtime's recompute policy, each once.

    Dropout masks and unfused attention scores included.
    """
    return saved_after_recompute(
        _kept_without_recompute(block, operators, structure, context),
        block,
        operators,
        structure,
        context,
    )


def saved_tensors_of_contexts(
    block: Block,
    operators: dict[str, Operator],
    structure: Placing,
    contexts: Sequence[LoweringContext],
) -> tuple[tuple[SavedTensor, ...], ...]:
    """`saved_tensors` of each of several contexts, which differ only in recomputed modules.

    The modules of their runtimes that run again in backward.
    """
    kept = _kept_without_recompute(block, operators, structure, contexts[0])
    return tuple(
        [saved_after_recompute(kept, block, operators, structure, context) for context in contexts]
    )


def _kept_without_recompute(
    block: Block, operators: dict[str, Operator], structure: Placing, context: LoweringContext
) -> dict[str, SavedTensor]:
    """Tensors that operators keep for backward where nothing is recomputed, by name."""
    kept: dict[str, SavedTensor] = {}
    constant = without_gradient(block)
    for operator in block.operators:
        if (
            operator.kind is OperatorKind.LOSS
            or operator.name in constant
            or not structure.runs(operator)
        ):
            continue
        for name in operator.keeps:
            if name == MEMORY or name in kept:
                continue
            if name == INPUT:
                parked = (
                    stream_share(block, structure, context)
                    if context.runtime.checkpoints_on_host
                    else None
                )
                kept[name] = SavedTensor(
                    tensor=name,
                    volume=stream_volume(block, structure, context),
                    dropped=Recomputable.NEVER,
                    parked=parked,
                )
            else:
                kept |= _saved_output(
                    operators[name],
                    operator,
                    _kept_widths(name, block, context),
                    structure,
                    context,
                )
        kept |= _saved_extra(operator, structure, context)
    return kept


def _saved_output(
    source: Operator,
    reader: Operator,
    quantised: tuple[int, bool],
    structure: Placing,
    context: LoweringContext,
) -> dict[str, SavedTensor]:
    """Outputs of `source` that are kept for backward, wide, quantised or both, by name.

    Args:
        quantised: bytes an element in which some operator keeps the outputs quantised, 0 if none;
            and whether any operator keeps them as they are.
    """
    tensors = {}
    for name, volume in output_sizes(source, reader, structure, context).items():
        quantised_bytes, kept_wide = quantised
        if kept_wide:
            tensors[name] = SavedTensor(
                tensor=name, volume=volume.scaled(context.element), dropped=Recomputable.FULL
            )
        if quantised_bytes:
            copy = f"{name}.quantised" if kept_wide else name
            tensors[copy] = SavedTensor(
                tensor=copy, volume=volume.scaled(quantised_bytes), dropped=Recomputable.FULL
            )
    return tensors


def _kept_widths(name: str, block: Block, context: LoweringContext) -> tuple[int, bool]:
    """(bytes an element of the quantised copy, 0 if none; True if the tensor is kept wide too).

    By a linear operator or an activation; 0 = no operator keeps tensor `name` quantised.
    """
    quantises = context.runtime.saves_quantized and context.gemm_element < context.element
    widths = [0]
    for operator in block.operators:
        if name in operator.keeps and operator.kind is not OperatorKind.LOSS:
            linear = (
                quantises
                and operator.kind in GEMM_KINDS
                and operator.klass is not OperatorClass.HEAD
            )
            gate = (
                context.runtime.saves_gates_eight_bit
                and operator.kind is OperatorKind.ACTIVATION
                and operator.klass in _FEED_FORWARDS
            )
            widths.append(context.gemm_element if linear else 1 if gate else 0)
    return max(widths), 0 in widths[1:]


def _saved_extra(
    operator: Operator, structure: Placing, context: LoweringContext
) -> dict[str, SavedTensor]:
    """Tensors kept beside an operator's output: masks, gates, scores or log-sum-exp, LoRA output.

    By name. Scores are unfused attention's; fused attention keeps their log-sum-exp.
    """
    name, width = operator.name, context.element
    local = local_tokens(operator.klass, structure, context)
    tokens = dispatched_tokens(operator, structure, context) if is_routed(operator) else local
    eager = context.runtime.element_kernels is ElementKernels.EAGER
    fused = context.runtime.element_kernels is ElementKernels.FUSED

    def written() -> Size:
        return tokens * part(operator.writes[0], operator, structure)

    bytes_by_name: dict[str, Size] = {}
    if operator.kind is OperatorKind.RESIDUAL and context.dropout:
        bytes_by_name["mask"] = local * part(operator.writes[0], operator, structure)
    if operator.clamped and fused and not context.runtime.fused_experts:
        # The fused kernel keeps the joined halves, the clamps their inputs.
        bytes_by_name["clamped"] = written().scaled(2 * width)
    if operator.gated and eager:
        # Two kernels, activation and product: the product's backward reads the activation's output.
        bytes_by_name["gate"] = written().scaled(width)
    if is_routed(operator) and operator.kind is OperatorKind.ACTIVATION and not operator.gated:
        # Only the gated form is fused with the product by the router's weights, whose backward
        # reads its other factor.
        bytes_by_name["unweighted"] = written().scaled(width)
    if operator.adapted:
        # Output of the adapter's first factor, for the gradient of the second.
        bytes_by_name["lora"] = (tokens * Size(times=operator.rank)).scaled(width)
    scores_by_name: dict[str, Size] = {}
    if operator.attention is not None:
        heads = part(Extent(dim=Dim.HEADS, size=operator.attention.heads), operator, structure)
        rows = local * heads
        if context.runtime.attention_kernel is AttentionKernel.UNFUSED:
            keys = context.memory_tokens if operator.attention.cross else context.tokens
            scores = rows * Size(times=keys)
            scores_by_name["softmax"] = scores.scaled(width)
            if context.dropout:
                scores_by_name["dropout"] = scores.scaled(width + 1)
        else:
            scores_by_name["lse"] = rows.scaled(4)
    return {
        f"{name}.{suffix}": SavedTensor(tensor=f"{name}.{suffix}", volume=volume, dropped=dropped)
        for volumes, dropped in (
            (bytes_by_name, Recomputable.FULL),
            (scores_by_name, Recomputable.SELECTIVE),
        )
        for suffix, volume in volumes.items()
    }
