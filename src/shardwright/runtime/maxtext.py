"""MaxText on JAX/XLA: fully sharded parameters, collectives scheduled by the compiler, whole-layer rematerialisation by default."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.facts import cite
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, FullRecompute, Runtime, SelectiveRecompute, TpOverlap
from shardwright.units import MIB

_BASE: Final = "https://github.com/AI-Hypercomputer/maxtext/blob/e591f30cbbf2/src/maxtext/configs/base.yml"
_XLA: Final = "https://openxla.org/xla/flags_guidance"

RUNTIME: Final = Runtime(
    name="maxtext",
    framework="MaxText",
    version="2025",
    released="2025-06",
    gradient_dtype=Dtype.FP32,
    main_grad_copy=False,
    zero_stages=(0, 3),
    zero_with_pipeline=3,
    hybrid_sharding=True,
    optimizer_offload=True,
    schedules=("gpipe",),
    sequence_parallel=True,
    context_ring=False,
    context_gather=True,
    context_ulysses=True,
    expert_parallel=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    overlap_p2p=True,
    bucket_bytes=0,
    gather_prefetch=1,
    reduce_every_microbatch=True,
    tp_overlap=TpOverlap.ASYNC,
    element_kernels=ElementKernels.COMPILED,
    attention_kernel=AttentionKernel.CUDNN,
    full_recompute=FullRecompute.WHOLE,
    tp_input_regather=True,
    p2p_scatter_gather=False,
    fused_weight_gradient=False,
    fused_loss=False,
    logits_bytes=8,
    embedding_gradient_bytes=4,
    workspace_bytes=256 * MIB,
    allocator_reserve_percent=10,
    default_recompute="full",
    selective_recompute=SelectiveRecompute.OPERATORS,
    gathers_from_master=True,
    zero1_broadcasts=False,
    facts=(
        *cite(
            _BASE,
            "gradient_dtype",
            "main_grad_copy",
            "zero_stages",
            "zero_with_pipeline",
            "hybrid_sharding",
            "optimizer_offload",
            "schedules",
            "sequence_parallel",
            "context_ring",
            "context_gather",
            "context_ulysses",
            "expert_parallel",
            "default_recompute",
            "selective_recompute",
            "full_recompute",
            "attention_kernel",
            "gathers_from_master",
            note="weight_dtype and grad_dtype float32; ici and dcn axes; remat_policy full; attention autoselected (cuDNN on GPUs)",
        ),
        *cite(
            _XLA,
            "overlap_grad_reduce",
            "overlap_param_gather",
            "overlap_p2p",
            "bucket_bytes",
            "gather_prefetch",
            "reduce_every_microbatch",
            "tp_overlap",
            "tp_input_regather",
            "p2p_scatter_gather",
            "fused_weight_gradient",
            "element_kernels",
            "zero1_broadcasts",
            note="latency-hiding scheduler, collective matmul, compiler fusion",
        ),
        *cite(
            "https://github.com/AI-Hypercomputer/maxtext/blob/e591f30cbbf2/src/maxtext/utils/max_utils.py",
            "fused_loss",
            "logits_bytes",
            "embedding_gradient_bytes",
            note="fp32 logits and their gradient; cross_entropy_with_logits",
        ),
        *cite(
            "https://docs.jax.dev/en/latest/gpu_memory_allocation.html",
            "workspace_bytes",
            "allocator_reserve_percent",
            note="JAX preallocates a share of the memory; from memory",
        ),
    ),
    aliases=("jax-maxtext", "jax"),
)
