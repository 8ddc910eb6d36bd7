"""What a selective recompute runs again of a block: kernels and collectives."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.program.block.block import BlockProgram, BlockWork, Kernel, Move
from shardwright.program.block.selective import named_policy, saved_products
from shardwright.program.block.sizes import Degrees, evaluate_sum
from shardwright.runtime.runtime import Runtime, SelectiveRecompute


def moved_again(program: BlockProgram, runtime: Runtime) -> Callable[[Move], bool]:
    """Whether a selective recompute repeats a forward move.

    A core that runs again exchanges its keys again; a per-operator policy keeps it and what
    reduce_scatter made; under a policy by name an operator that runs again communicates again.
    """
    named = named_policy(program.operators, runtime)
    if named is not None:
        return lambda move: move.operator in named.again
    if runtime.selective_recompute is SelectiveRecompute.CORE:
        return lambda move: move.axes[0] == "ring"
    has_policy = saved_products(program.operators) is not None
    return lambda move: (
        has_policy and move.axes[0] != "ring" and move.kind is not Collective.REDUCE_SCATTER
    )


def redone_share(
    program: BlockProgram, work: BlockWork, degrees: Degrees, runtime: Runtime
) -> FloatArray | float:
    """Share of a forward kernel that a selective recompute runs again: cores; all but cores and the
    products that a per-operator policy keeps; or what a policy by name has run again.
    """
    if runtime.selective_recompute is SelectiveRecompute.NAMED:
        named = named_policy(program.operators, runtime)
        return float(named is not None and work.operator in named.again)
    core = work.attention is not None or work.operator in [
        o.name for o in program.operators if o.attention is not None
    ]
    if runtime.selective_recompute is SelectiveRecompute.CORE:
        return float(core)
    kept = saved_products(program.operators)
    if kept is None or core:
        return 0.0
    parts = kept.get(work.operator, ())
    if work.kernel is not Kernel.GEMM or work.adapter or not any(parts):
        return 1.0
    again = tuple(size for size, saved in zip(work.n, parts, strict=True) if not saved)
    if not again:
        return 0.0
    share: FloatArray = evaluate_sum(again, degrees) / evaluate_sum(work.n, degrees)
    return share
