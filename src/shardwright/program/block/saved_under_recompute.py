"""Saved tensors that are left under recomputed modules and selective policies."""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.operator import Operator
from shardwright.model.tensors_without_gradient import has_backward
from shardwright.program.block.block_program import Recomputable, SavedTensor
from shardwright.program.block.grid_or_plan_cut_protocol import Placing
from shardwright.program.block.local_token_and_tensor_sizes import (
    LoweringContext,
    output_sizes,
    stream_volume,
)
from shardwright.program.block.operators_rerun_by_runtime_recompute_modules import (
    is_dropped,
    recomputed_operators,
)
from shardwright.program.block.tensors_kept_by_selective_recompute import (
    NamedPolicy,
    named_policy,
    saved_products,
)
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    ElementKernels,
    SelectiveRecompute,
)


def saved_after_recompute(
    kept: dict[str, SavedTensor],
    block: Block,
    operators: dict[str, Operator],
    structure: Placing,
    context: LoweringContext,
) -> tuple[SavedTensor, ...]:
    """Saved tensors left after recomputed modules and the selective policy; () without backward."""
    if not has_backward(block):
        return ()
    dropped = recomputed_operators(block.operators, context.runtime).dropped
    if dropped:
        kept = {name: saved for name, saved in kept.items() if not is_dropped(name, dropped)}
    if context.runtime.selective_recompute is SelectiveRecompute.OPERATORS:
        kept = _under_operator_policy(kept, block, operators, structure, context)
    if context.runtime.selective_recompute is SelectiveRecompute.NAMED:
        policy = named_policy(block.operators, context.runtime)
        kept = (
            _under_named_policy(kept, policy, operators, structure, context)
            if policy
            else {name: _only_dropped_by_full(s) for name, s in kept.items()}
        )
    return tuple(kept.values())


def _under_operator_policy(
    kept: dict[str, SavedTensor],
    block: Block,
    operators: dict[str, Operator],
    structure: Placing,
    context: LoweringContext,
) -> dict[str, SavedTensor]:
    """Mark which recompute modes drop each tensor: half the products and fused cores are saved.

    It drops every tensor but these and the input, and keeps matrix products, whoever reads them.
    """
    products = saved_products(block.operators)
    if products is None:
        return {name: _only_dropped_by_full(s) for name, s in kept.items()}
    cores = {o.name for o in block.operators if o.attention is not None}
    read = _read_by_backward(block, kept)
    tensors: dict[str, SavedTensor] = {}
    for name, saved in kept.items():
        core = name in cores or name.removesuffix(".lse") in cores
        tensors[name] = (
            saved
            if saved.dropped is Recomputable.NEVER
            else replace(saved, dropped=_dropped_by_policy(saved=core))
        )
    for name, parts in products.items():
        outputs = output_sizes(operators[name], operators[name], structure, context)
        for (output, volume), is_kept in zip(outputs.items(), parts, strict=True):
            if is_kept and output in tensors:
                tensors[output] = replace(tensors[output], dropped=Recomputable.FULL)
            elif is_kept and (
                name in read or context.runtime.element_kernels is not ElementKernels.COMPILED
            ):
                # A compiler's partitioner drops what the policy keeps and no backward reads; an
                # eager policy does not look.
                volume_bytes = volume.scaled(context.element)
                tensors[output] = SavedTensor(
                    tensor=output, volume=volume_bytes, dropped=Recomputable.NONE_AND_FULL
                )
        if structure.sequence_parallel and _is_row_parallel(operators[name]):
            # The policy names reduce_scatter among what it keeps.
            scattered = f"{name}.scattered"
            volume = stream_volume(block, structure, context)
            tensors[scattered] = SavedTensor(
                tensor=scattered, volume=volume, dropped=Recomputable.NONE_AND_FULL
            )
    return tensors


def _under_named_policy(
    kept: dict[str, SavedTensor],
    policy: NamedPolicy,
    operators: dict[str, Operator],
    structure: Placing,
    context: LoweringContext,
) -> dict[str, SavedTensor]:
    """`kept`, marked with recompute modes that drop each tensor and offload, by a named policy.

    It has the tensors that the policy drops, and those that it keeps for operators that run again.

    A core's log-sum-exp goes with its output.
    """
    tensors: dict[str, SavedTensor] = {}
    for name, saved in kept.items():
        source = name.removesuffix(".quantised").removesuffix(".lse")
        operator_name = (
            source if source in operators or source == INPUT else source.rsplit(".", 1)[0]
        )
        dropped = (
            saved.dropped
            if saved.dropped is Recomputable.NEVER
            else _dropped_by_policy(saved=operator_name in policy.kept)
        )
        tensors[name] = replace(saved, dropped=dropped, host=operator_name in policy.host)
    for name in sorted(policy.kept - {INPUT} - {n.removesuffix(".quantised") for n in kept}):
        for output, volume in output_sizes(
            operators[name], operators[name], structure, context
        ).items():
            volume_bytes = volume.scaled(context.element)
            tensors[output] = SavedTensor(
                tensor=output,
                volume=volume_bytes,
                dropped=Recomputable.NONE_AND_FULL,
                host=name in policy.host,
            )
    return tensors


def _is_row_parallel(operator: Operator) -> bool:
    """True if a cut of the operator's width cuts its inputs only (row-parallel).

    Members hold parts of a sum.
    """
    width = operator.width()
    return (
        width is not None
        and any(e.dim is width for e in operator.reads)
        and all(e.dim is not width for e in operator.writes)
    )


def _read_by_backward(block: Block, kept: dict[str, SavedTensor]) -> frozenset[str]:
    """Names of operators whose output the backward or a recomputation reads.

    A recomputation on the way to a tensor that backward reads.
    """
    needed = {name.removesuffix(".quantised") for name in kept}
    for operator in reversed(block.operators):
        if operator.name in needed:
            needed.update(operator.inputs)
    return frozenset(needed)


def _dropped_by_policy(*, saved: bool) -> Recomputable:
    """Recomputable of a tensor: FULL if the selective policy saves it, SELECTIVE if not."""
    return Recomputable.FULL if saved else Recomputable.SELECTIVE


def _only_dropped_by_full(saved: SavedTensor) -> SavedTensor:
    """The tensor, dropped by full recompute alone where selective recompute dropped it."""
    return (
        replace(saved, dropped=Recomputable.FULL)
        if saved.dropped is Recomputable.SELECTIVE
        else saved
    )
