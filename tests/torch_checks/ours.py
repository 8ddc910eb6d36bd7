"""The same configurations as this package reads them: a Problem, its lowered blocks, and their
counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from shardwright.cost.kernels.gemm_element_attention_seconds import attention_flops
from shardwright.cost.kernels.state_space_scan import scan_flops
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job import SequenceLength, TrainingJob
from shardwright.model.families.huggingface_config import model_from_config
from shardwright.program.block.block_program import BlockProgram, KernelKind, Phase, Recomputable
from shardwright.program.block.symbolic_sizes import Degrees, evaluate
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
)
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.structures import structure_of
from tests.program.unfold import gemm_flops

# The references stand in for fused kernels operator by operator: no compiler looks at what a
# recompute policy keeps, and the loss over a part of the vocabulary is a local one, without the
# copy that a split loss makes.
FUSED: Final = replace(
    load_runtime("torchtitan-0.1"),
    name="torchtitan-0.1-uncompiled",
    element_kernels=ElementKernels.FUSED,
    split_logits_bytes=0,
)
EAGER: Final = load_runtime("torchtitan-0.2 kernels=eager")
OUTSIDE: Final = frozenset({"workspace", "fragmentation", "communication", "context"})
"""Items of a device's memory that are no tensors."""
UNFUSED: Final = replace(
    FUSED, name="torchtitan-0.2-unfused", attention_kernel=AttentionKernel.UNFUSED
)

BATCH, TOKENS, ENCODER_TOKENS = 2, 32, 48

GPT: Final = MappingProxyType(
    {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "vocab_size": 200,
        "n_positions": 64,
    }
)
LLAMA: Final = MappingProxyType(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "intermediate_size": 160,
        "vocab_size": 256,
        "max_position_embeddings": 64,
    }
)
MIXTRAL: Final = MappingProxyType(
    {
        **LLAMA,
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    }
)
DEEPSEEK: Final = MappingProxyType(
    {
        "architectures": ["DeepseekV2ForCausalLM"],
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 160,
        "moe_intermediate_size": 48,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "vocab_size": 200,
        "max_position_embeddings": 64,
    }
)
MAMBA: Final = MappingProxyType(
    {
        "architectures": ["Mamba2ForCausalLM"],
        "hidden_size": 64,
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 24,
        "n_groups": 2,
        "chunk_size": 8,
        "expand": 2,
        "conv_kernel": 4,
        "num_hidden_layers": 2,
        "vocab_size": 200,
    }
)
T5: Final = MappingProxyType(
    {
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 64,
        "d_kv": 12,
        "d_ff": 96,
        "num_heads": 8,
        "num_layers": 2,
        "vocab_size": 200,
        "feed_forward_proj": "gated-silu",
    }
)


def problem_for(
    config: Mapping[str, Any], *, runtime: Runtime, tokens: int = TOKENS, batch: int = 64
) -> Problem:
    job = TrainingJob(
        sequences=(
            SequenceLength(name="text", tokens=tokens),
            SequenceLength(name="encoder", tokens=ENCODER_TOKENS),
        ),
        global_batch=batch,
    )
    model = model_from_config(config, name="reference")
    return Problem(model=model, cluster=parse_cluster("h100-sxm:64"), job=job, runtime=runtime)


def lowered(problem: Problem, block: str, grid: Grid) -> tuple[BlockProgram, Degrees]:
    """The block of that name under `grid`, and the degrees to read it with."""
    programs = programs_of(problem, structure_of(sp=grid.sp, gather=grid.gather, tp=grid.tp))
    (program,) = (p for p in programs if p.block == block)
    owner = next(b for b in problem.model.blocks if b.name == block)
    degrees = dict(rows_of([grid]).degrees())
    degrees["positions"] = np.array([problem.job.tokens(owner.sequence)]) // degrees["ring"]
    return program, degrees


def matmul_flops(program: BlockProgram, degrees: Degrees, phase: Phase) -> dict[str, int]:
    """FLOPs of matrix products of each operator in `phase` on one device; every query meets every
    key.

    A fused core or a scan has one count, its forward's: each of its products has two in backward,
    as a GEMM's.
    """
    result: dict[str, int] = {}
    for work in program.works:
        count = 0
        if work.phase is phase:
            if work.kernel is KernelKind.ATTENTION:
                assert work.tokens is not None
                assert work.heads is not None
                assert work.attention is not None
                tokens, heads = evaluate(work.tokens, degrees), evaluate(work.heads, degrees)
                count = int(
                    attention_flops(
                        work.attention,
                        tokens=tokens,
                        heads=heads,
                        context=work.context,
                        causal=False,
                    )[0]
                )
            elif work.kernel is KernelKind.SCAN:
                assert work.tokens is not None
                assert work.heads is not None
                assert work.scan is not None
                tokens, heads = evaluate(work.tokens, degrees), evaluate(work.heads, degrees)
                count = int(scan_flops(work.scan, tokens=tokens, heads=heads, causal=False)[0])
            else:
                count = gemm_flops(work, degrees)
            if phase is not Phase.F and work.kernel in (KernelKind.ATTENTION, KernelKind.SCAN):
                count *= 2
        if count:
            result[work.operator] = result.get(work.operator, 0) + count
    return result


MODES: Final = {
    "none": (Recomputable.NONE_AND_FULL,),
    "selective": (Recomputable.SELECTIVE,),
    "full": (Recomputable.SELECTIVE, Recomputable.FULL, Recomputable.NONE_AND_FULL),
}
"""What each recompute mode does not keep."""


def kept(program: BlockProgram, degrees: Degrees, *, mode: str = "none") -> dict[str, int]:
    """Bytes of each tensor that one microbatch keeps."""
    return {
        s.tensor: int(evaluate(s.volume, degrees)[0])
        for s in program.saved
        if s.dropped not in MODES[mode]
    }
