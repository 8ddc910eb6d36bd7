"""Megatron-LM as in Narayanan et al., SC21 (arXiv 2104.04473): all-reduce tensor parallelism, unfused attention with dropout."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.facts import cite
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, FullRecompute, Runtime, SelectiveRecompute, TpOverlap
from shardwright.units import MIB

_TREE: Final = "https://github.com/NVIDIA/Megatron-LM/blob/v2.5/megatron"

RUNTIME: Final = Runtime(
    name="megatron-2021",
    framework="Megatron-LM",
    version="2.5",
    released="2021-08",
    gradient_dtype=Dtype.FP16,
    main_grad_copy=False,
    zero_stages=(0,),
    zero_with_pipeline=0,
    hybrid_sharding=False,
    optimizer_offload=False,
    schedules=("1f1b", "interleaved-1f1b"),
    sequence_parallel=False,
    context_ring=False,
    context_gather=False,
    context_ulysses=False,
    expert_parallel=False,
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    overlap_p2p=False,
    bucket_bytes=0,
    gather_prefetch=0,
    reduce_every_microbatch=False,
    tp_overlap=TpOverlap.NONE,
    element_kernels=ElementKernels.FUSED,
    attention_kernel=AttentionKernel.UNFUSED,
    full_recompute=FullRecompute.WHOLE,
    tp_input_regather=False,
    p2p_scatter_gather=True,
    fused_weight_gradient=False,
    fused_loss=False,
    logits_bytes=6,
    embedding_gradient_bytes=2,
    workspace_bytes=32 * MIB,
    allocator_reserve_percent=3,
    default_recompute="none",
    selective_recompute=SelectiveRecompute.CORE,
    gathers_from_master=False,
    zero1_broadcasts=False,
    adds_gradients=True,
    loss_bytes=52,
    facts=(
        *cite(
            f"{_TREE}/model/distributed.py",
            "row_kernels",
            "gradient_passes",
            "scales_gradients",
            note="passes over whole gradients beside the update are not counted here; no such kernels",
        ),
        *cite(f"{_TREE}/arguments.py", "gradient_wire", "gather_copy_bytes", "reduce_copy_bytes", note="no sharded parameters"),
        *cite(
            "https://github.com/NVIDIA/Megatron-LM/blob/01d65bde5000f00889427e3efc52b14ef273bf59/megatron/model/distributed.py",
            "gradient_dtype",
            "main_grad_copy",
            "overlap_grad_reduce",
            "bucket_bytes",
            "reduce_every_microbatch",
            "adds_gradients",
            checked=True,
            note="one contiguous buffer in the parameters' dtype unless fp32 is asked for, all-reduced once after the last backward; a "
            "hook adds each parameter's gradient to it (main_grad.add_)",
        ),
        *cite(
            f"{_TREE}/optimizer/__init__.py",
            "zero_stages",
            "zero_with_pipeline",
            "hybrid_sharding",
            "optimizer_offload",
            "overlap_param_gather",
            "gathers_from_master",
            "zero1_broadcasts",
        ),
        *cite(f"{_TREE}/schedules.py", "schedules", "gather_prefetch"),
        *cite(
            "https://github.com/NVIDIA/Megatron-LM/blob/178beeb45d8f89c926366659900934351aa007e6/megatron/p2p_communication.py",
            "overlap_p2p",
            "p2p_scatter_gather",
            checked=True,
            note="waits and synchronises after each exchange; each tensor-parallel rank sends its 1/tp and gathers (SC21 section 4.1)",
        ),
        *cite(
            f"{_TREE}/mpu/layers.py",
            "tp_overlap",
            "sequence_parallel",
            "tp_input_regather",
            "embedding_gradient_bytes",
            note="copy_to_tensor_model_parallel_region all-reduces the input gradient and waits; the asynchronous all-reduce came with "
            "v2.6 (November 2021), after the paper",
        ),
        *cite(
            f"{_TREE}/model/transformer.py",
            "attention_kernel",
            "element_kernels",
            "rebuilds_norms",
            "fused_chains",
            "fp32_norms",
            "fused_weight_gradient",
        ),
        *cite(f"{_TREE}/mpu/random.py", "full_recompute", "selective_recompute", note="checkpoint runs the whole layer again"),
        *cite(
            "https://github.com/NVIDIA/Megatron-LM/blob/34ed99d1f09d65d9d5eacbe661ba31d2518f6a6f/megatron/mpu/cross_entropy.py",
            "fused_loss",
            "logits_bytes",
            "logits_blocks_bytes",
            "split_logits_bytes",
            "loss_bytes",
            checked=True,
            note="fp16 logits and one fp32 copy that becomes the softmax and then the gradient in place; passes over it: cast 6, max 4, "
            "sub 8, exp 8, sum 4, div 8, gradient 8, cast 6 bytes a logit",
        ),
        *cite("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html", "collective_library"),
        *cite(f"{_TREE}/arguments.py", "expert_dispatch", "saves_quantized", note="neither experts nor fp8"),
        *cite(f"{_TREE}/arguments.py", "default_recompute", "context_ring", "context_gather", "context_ulysses", "expert_parallel"),
        *cite(
            f"{_TREE}/arguments.py",
            "capture",
            "routing_on_host",
            "expert_overlap",
            "fused_experts",
            "attention_eight_bit",
            "rebuilds_latent",
            note="neither graphs nor experts",
        ),
        *cite("https://docs.nvidia.com/cuda/cublas/#cublassetworkspace", "workspace_bytes", note="32 MiB recommended from Hopper on"),
        *cite(
            "https://pytorch.org/docs/stable/notes/cuda.html#memory-management", "allocator_reserve_percent", note="SimuMax prints 3 to 8 %"
        ),
        *cite("https://github.com/NVIDIA/Megatron-LM/tree/v2.0", "scales_reduced", note="16 bits only"),
    ),
    aliases=("megatron-lm-2021", "megatron-sc21"),
)
