"""The blocks of a problem lowered under one structure, with the context that lowering reads."""

from __future__ import annotations

from shardwright.cost.reduce_problem_to_relevant_runtime_fields import block_problem
from shardwright.model.ir.block import Block
from shardwright.program.block.block_program import BlockProgram
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.local_token_and_tensor_sizes import LoweringContext, is_hybrid
from shardwright.program.block.lower_block import lower_block
from shardwright.program.training_problem import Problem


def block_context(problem: Problem, block: Block) -> LoweringContext:
    """Lengths, number formats and runtime choices with which `block` is lowered."""
    job = problem.job
    return LoweringContext(
        tokens=job.tokens(block.sequence) or job.sequence_length,
        memory_tokens=job.tokens(block.memory) if block.memory else 0,
        element=job.activation.bits // 8,
        # A 4-bit operand carries scales and is kept beside its transpose: a byte.
        gemm_element=max(job.compute.bits // 8, 1),
        compute_bits=job.compute.bits,
        runtime=problem.runtime,
        dropout=job.dropout,
        imbalance_percent=round(100 * job.expert_imbalance),
        permutes_apart=is_hybrid(problem.runtime, island=problem.cluster.node.island),
    )


def programs_of(problem: Problem, structure: Structure) -> tuple[BlockProgram, ...]:
    """Lower every block of the model under `structure`."""
    return tuple(
        lower_block(b, structure, block_context(block_problem(problem, b), b))
        for b in problem.model.blocks
    )
