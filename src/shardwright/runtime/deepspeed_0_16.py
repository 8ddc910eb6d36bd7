"""DeepSpeed 0.16: ZeRO 0-3 with overlap_comm, DeepSpeed pipeline, Ulysses, automatic tensor parallelism."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.facts import cite
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, FullRecompute, Runtime, SelectiveRecompute, TpOverlap
from shardwright.units import MIB

_TREE: Final = "https://github.com/deepspeedai/DeepSpeed/blob/v0.16.0/deepspeed"
_CONFIG: Final = "https://www.deepspeed.ai/docs/config-json/"

RUNTIME: Final = Runtime(
    name="deepspeed-0.16",
    framework="DeepSpeed",
    version="0.16",
    released="2024-11",
    gradient_dtype=Dtype.BF16,
    main_grad_copy=False,
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=1,
    hybrid_sharding=True,
    optimizer_offload=True,
    schedules=("1f1b",),
    sequence_parallel=False,
    context_ring=False,
    context_gather=False,
    context_ulysses=True,
    expert_parallel=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    overlap_p2p=False,
    bucket_bytes=1_000_000_000,
    gather_prefetch=1,
    reduce_every_microbatch=True,
    tp_overlap=TpOverlap.NONE,
    element_kernels=ElementKernels.EAGER,
    attention_kernel=AttentionKernel.FLASH_2,
    full_recompute=FullRecompute.WHOLE,
    tp_input_regather=False,
    p2p_scatter_gather=False,
    fused_weight_gradient=False,
    fused_loss=False,
    logits_bytes=16,
    embedding_gradient_bytes=2,
    workspace_bytes=32 * MIB,
    allocator_reserve_percent=3,
    default_recompute="none",
    selective_recompute=SelectiveRecompute.CORE,
    gathers_from_master=False,
    zero1_broadcasts=False,
    facts=(
        *cite(
            f"{_TREE}/runtime/zero/stage_1_and_2.py",
            "row_kernels",
            "gradient_passes",
            "scales_gradients",
            note="passes over whole gradients beside the update are not counted here; no such kernels",
        ),
        *cite(
            f"{_TREE}/runtime/zero/partition_parameters.py",
            "gradient_wire",
            "gather_copy_bytes",
            "reduce_copy_bytes",
            note="parameters are views of what was gathered; from memory",
        ),
        *cite(
            f"{_TREE}/runtime/zero/config.py",
            "bucket_bytes",
            note="reduce_bucket_size and allgather_bucket_size are 5e8 elements of 2 bytes",
        ),
        *cite(
            _CONFIG,
            "zero_stages",
            "hybrid_sharding",
            "optimizer_offload",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "gather_prefetch",
            "default_recompute",
            "selective_recompute",
            note="overlap_comm is set (its default is on for stage 3 only); zero_hpz_partition_size; stage3_prefetch_bucket_size",
        ),
        *cite(
            f"{_TREE}/runtime/zero/stage_1_and_2.py",
            "gradient_dtype",
            "main_grad_copy",
            "reduce_every_microbatch",
            "zero1_broadcasts",
            note="gradients in the parameters' dtype, reduced into the owner's share; all-gather of parameters after the step",
        ),
        *cite(f"{_TREE}/runtime/zero/partition_parameters.py", "gathers_from_master", note="16-bit shards beside fp32 master shards"),
        *cite(
            f"{_TREE}/runtime/pipe/engine.py", "zero_with_pipeline", "overlap_p2p", "p2p_scatter_gather", note="ZeRO-2 and 3 are refused"
        ),
        *cite(f"{_TREE}/runtime/pipe/schedule.py", "schedules", note="TrainSchedule is 1F1B"),
        *cite(f"{_TREE}/sequence/layer.py", "context_ulysses", "context_ring", "context_gather", "sequence_parallel"),
        *cite(
            f"{_TREE}/moe/layer.py", "expert_parallel", "expert_dispatch", "saves_quantized", note="all-to-all of every routed copy; no fp8"
        ),
        *cite("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html", "collective_library"),
        *cite(f"{_TREE}/module_inject/layers.py", "tp_overlap", "tp_input_regather", note="AutoTP: blocking all-reduce"),
        *cite(
            "https://huggingface.co/docs/transformers/attention_interface",
            "attention_kernel",
            "element_kernels",
            "rebuilds_norms",
            "fused_chains",
            "fp32_norms",
            "fused_weight_gradient",
            "adds_gradients",
            "fused_loss",
            "logits_bytes",
            "logits_blocks_bytes",
            "split_logits_bytes",
            "loss_bytes",
            "embedding_gradient_bytes",
            note="models are Hugging Face's in eager mode with flash-attention 2",
        ),
        *cite(f"{_TREE}/runtime/activation_checkpointing/checkpointing.py", "full_recompute"),
        *cite(
            f"{_TREE}/moe/sharded_moe.py",
            "capture",
            "routing_on_host",
            "expert_overlap",
            "fused_experts",
            "attention_eight_bit",
            "rebuilds_latent",
            note="eager; experts have a fixed capacity",
        ),
        *cite("https://docs.nvidia.com/cuda/cublas/#cublassetworkspace", "workspace_bytes", note="32 MiB recommended from Hopper on"),
        *cite(
            "https://pytorch.org/docs/stable/notes/cuda.html#memory-management", "allocator_reserve_percent", note="SimuMax prints 3 to 8 %"
        ),
        *cite(
            "https://github.com/deepspeedai/DeepSpeed/tree/v0.16.0/deepspeed/runtime", "scales_reduced", note="no 8-bit recipe of its own"
        ),
    ),
    aliases=("deepspeed",),
)
