"""Kernels and collectives of a block that a selective recompute runs again."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.program.block.block_program import BlockProgram, BlockWork, KernelKind, Move
from shardwright.program.block.symbolic_sizes import Degrees, evaluate_sum
from shardwright.program.block.tensors_kept_by_selective_recompute import (
    named_policy,
    saved_products,
)
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import SelectiveRecompute


def repeats_move(program: BlockProgram, runtime: Runtime) -> Callable[[Move], bool]:
    """Predicate: True for forward collectives that the runtime's selective recompute runs again.

    A core that runs again exchanges its keys again; a per-operator policy keeps it and the outputs
    of reduce_scatter; under a policy by name an operator that runs again communicates again.
    """
    policy = named_policy(program.operators, runtime)
    if policy is not None:
        return lambda move: move.operator in policy.again
    if runtime.selective_recompute is SelectiveRecompute.CORE:
        return lambda move: move.axes[0] == "ring"
    has_policy = saved_products(program.operators) is not None
    return lambda move: (
        has_policy and move.axes[0] != "ring" and move.kind is not Collective.REDUCE_SCATTER
    )


def recomputed_share(
    program: BlockProgram, work: BlockWork, degrees: Degrees, runtime: Runtime
) -> FloatArray | float:
    """Share of a forward kernel that a selective recompute runs again.

    It is cores; all but cores and the products that a per-operator policy keeps; or the operators
    that a policy by name runs again.
    """
    if runtime.selective_recompute is SelectiveRecompute.NAMED:
        policy = named_policy(program.operators, runtime)
        return float(policy is not None and work.operator in policy.again)
    core = work.attention is not None or work.operator in [
        o.name for o in program.operators if o.attention is not None
    ]
    if runtime.selective_recompute is SelectiveRecompute.CORE:
        return float(core)
    kept_products = saved_products(program.operators)
    if kept_products is None or core:
        return 0.0
    parts = kept_products.get(work.operator, ())
    if work.kernel is not KernelKind.GEMM or work.adapter or not any(parts):
        return 1.0
    recomputed_outputs = tuple(size for size, saved in zip(work.n, parts, strict=True) if not saved)
    if not recomputed_outputs:
        return 0.0
    share: FloatArray = evaluate_sum(recomputed_outputs, degrees) / evaluate_sum(work.n, degrees)
    return share
