"""Megatron-Core 0.12 with Transformer Engine and the flags of its performance guide: the default runtime."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.facts import cite
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, FullRecompute, Runtime, ScaleGroup, SelectiveRecompute, TpOverlap
from shardwright.units import MIB

_TREE: Final = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0/megatron"
_CORE: Final = f"{_TREE}/core"

RUNTIME: Final = Runtime(
    name="megatron-core-0.12",
    framework="Megatron-Core",
    version="0.12",
    released="2025-05",
    gradient_dtype=Dtype.FP32,
    main_grad_copy=False,
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=1,
    hybrid_sharding=True,
    optimizer_offload=True,
    schedules=("1f1b", "interleaved-1f1b"),
    sequence_parallel=True,
    context_ring=True,
    context_gather=True,
    context_ulysses=True,
    expert_parallel=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    overlap_p2p=True,
    bucket_bytes=160_000_000,
    gather_prefetch=1,
    reduce_every_microbatch=True,
    tp_overlap=TpOverlap.FUSED,
    element_kernels=ElementKernels.FUSED,
    attention_kernel=AttentionKernel.CUDNN,
    full_recompute=FullRecompute.WHOLE,
    tp_input_regather=True,
    p2p_scatter_gather=False,
    fused_weight_gradient=True,
    fused_loss=False,
    logits_bytes=6,
    embedding_gradient_bytes=2,
    workspace_bytes=64 * MIB,
    allocator_reserve_percent=3,
    default_recompute="none",
    selective_recompute=SelectiveRecompute.CORE,
    gathers_from_master=False,
    zero1_broadcasts=False,
    saves_quantized=True,
    loss_bytes=52,
    scales_reduced=ScaleGroup.STAGE,
    facts=(
        *cite(
            f"{_CORE}/distributed/param_and_grad_buffer.py",
            "row_kernels",
            "gradient_passes",
            "scales_gradients",
            note="passes over whole gradients beside the update are not counted here; no such kernels",
        ),
        *cite(
            f"{_CORE}/distributed/param_and_grad_buffer.py",
            "gradient_wire",
            "gather_copy_bytes",
            "reduce_copy_bytes",
            note="parameters and gradients are views of contiguous buffers",
        ),
        *cite(
            "https://github.com/NVIDIA/Megatron-LM/blob/001199898c4badd01eaf0785c212d8ed7ce83042/megatron/core/distributed/distributed_data_parallel_config.py",
            "gradient_dtype",
            "main_grad_copy",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "bucket_bytes",
            "hybrid_sharding",
            checked=True,
            note="buckets of max(40e6, 1e6 x dp) parameters, 4 bytes each under grad_reduce_in_fp32; num_distributed_optimizer_instances",
        ),
        *cite(
            f"{_CORE}/distributed/custom_fsdp/fully_sharded_data_parallel.py",
            "zero_stages",
            "zero_with_pipeline",
            "gather_prefetch",
            "reduce_every_microbatch",
            "gathers_from_master",
            note="stages 2 and 3 are Megatron-FSDP (optim_grads, optim_grads_params); 0 and 1 are DDP and the distributed optimizer, "
            "which reduce with the last microbatch",
        ),
        *cite(f"{_CORE}/optimizer/distrib_optimizer.py", "zero1_broadcasts", note="parameters come back by all-gather, bucket by bucket"),
        *cite(f"{_CORE}/optimizer/cpu_offloading/hybrid_optimizer.py", "optimizer_offload"),
        *cite(f"{_CORE}/pipeline_parallel/schedules.py", "schedules", note="1F1B without and with interleaving; no GPipe"),
        *cite(f"{_CORE}/model_parallel_config.py", "overlap_p2p", "tp_overlap", "sequence_parallel", note="tp_comm_overlap is set"),
        *cite(
            f"{_CORE}/pipeline_parallel/p2p_communication.py", "p2p_scatter_gather", note="sends what a rank holds: with SP its own part"
        ),
        *cite(
            f"{_CORE}/transformer/transformer_config.py",
            "context_ring",
            "context_gather",
            "context_ulysses",
            "default_recompute",
            "selective_recompute",
            note="cp_comm_type p2p, all_gather, a2a, a2a+p2p; recompute_granularity None; recompute_modules core_attn",
        ),
        *cite(
            f"{_CORE}/transformer/moe/token_dispatcher.py",
            "expert_parallel",
            "expert_dispatch",
            note="MoEAlltoAllTokenDispatcher; the flex dispatcher is an option",
        ),
        *cite(
            "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/module/linear.py",
            "saves_quantized",
            note="the quantised input is what is saved for the weight gradient",
        ),
        *cite(
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html",
            "collective_library",
            note="torch.distributed's nccl backend",
        ),
        *cite(
            f"{_CORE}/tensor_parallel/layers.py", "tp_input_regather", "fused_weight_gradient", "adds_gradients", "embedding_gradient_bytes"
        ),
        *cite(
            f"{_CORE}/parallel_state.py",
            "scales_reduced",
            note="fp8_recipe delayed and tp_only_amax_red False by default: get_amax_reduction_group is the group of tensor, context and "
            "data parallelism; transformer_block.py opens fp8_autocast with it, and Transformer Engine's pytorch/fp8.py reduces at exit "
            "(both read)",
        ),
        *cite(
            f"{_CORE}/extensions/transformer_engine.py",
            "attention_kernel",
            "element_kernels",
            "rebuilds_norms",
            "fused_chains",
            "fp32_norms",
        ),
        *cite(f"{_CORE}/tensor_parallel/random.py", "full_recompute"),
        *cite(
            f"{_CORE}/transformer/moe/token_dispatcher.py",
            "capture",
            "routing_on_host",
            "expert_overlap",
            "fused_experts",
            "attention_eight_bit",
            "rebuilds_latent",
            note="cuda_graph_scope is empty; the dropless dispatcher copies tokens_per_expert to the host",
        ),
        *cite(
            f"{_CORE}/tensor_parallel/cross_entropy.py",
            "fused_loss",
            "logits_bytes",
            "logits_blocks_bytes",
            "split_logits_bytes",
            "loss_bytes",
            note="bf16 logits and one fp32 copy that becomes the softmax and then the gradient in place; passes over them as in 2021: 52 "
            "bytes a logit",
        ),
        *cite(
            "https://github.com/NVIDIA/TransformerEngine/blob/v2.4/transformer_engine/pytorch/module/base.py",
            "workspace_bytes",
            note="get_cublas_workspace_size_bytes: 32 MiB from Hopper on, beside PyTorch's own 32 MiB",
        ),
        *cite(
            "https://pytorch.org/docs/stable/notes/cuda.html#memory-management", "allocator_reserve_percent", note="SimuMax prints 3 to 8 %"
        ),
    ),
    aliases=("megatron-core", "megatron", "mcore"),
)
