"""Megatron-Core 0.12 and what its options change."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.facts import derive, named, read, runtime, stated
from shardwright.runtime.pytorch import ALLOCATOR, NCCL
from shardwright.runtime.runtime import (
    AttentionKernel,
    ElementKernels,
    ExpertDispatch,
    FullRecompute,
    ScaleGroup,
    SelectiveRecompute,
    TpOverlap,
)
from shardwright.units import MIB

_LM: Final = "https://github.com/NVIDIA/Megatron-LM/blob"
_CORE: Final = f"{_LM}/core_v0.12.0/megatron/core"
_SIMUMAX: Final = "https://github.com/MooreThreads/SimuMax/blob"

# Megatron-Core 0.12 with Transformer Engine and the flags of its performance guide: the default runtime.
BASE: Final = runtime(
    named("megatron-core-0.12", framework="Megatron-Core", version="0.12", released="2025-05"),
    stated(
        "https://rocm.docs.amd.com/en/latest/how-to/rocm-for-ai/training/benchmark-docker/megatron-lm.html",
        vendors=("NVIDIA", "AMD", "Huawei", "Intel", "AWS"),
        note="ports: ROCm/Megatron-LM, Ascend/MindSpeed, HabanaAI/Megatron-LM, aws-neuron/neuronx-nemo-megatron; from memory",
    ),
    stated(
        f"{_CORE}/distributed/param_and_grad_buffer.py",
        off="row_kernels gradient_passes scales_gradients",
        note="passes over whole gradients beside the update are not counted here; no such kernels",
    ),
    stated(
        f"{_CORE}/distributed/param_and_grad_buffer.py",
        off="gradient_wire gather_bucket_bytes gather_copy_bytes listed_collectives reduce_copy_bytes reuse_elements sums_replicas_apart",
        note="parameters and gradients are views of contiguous buffers",
    ),
    read(
        f"{_LM}/001199898c4badd01eaf0785c212d8ed7ce83042/megatron/core/distributed/distributed_data_parallel_config.py",
        on="overlap_grad_reduce overlap_param_gather hybrid_sharding",
        off="main_grad_copy",
        gradient_dtype=Dtype.FP32,
        bucket_bytes=160_000_000,
        note="buckets of max(40e6, 1e6 x dp) parameters, 4 bytes each under grad_reduce_in_fp32; num_distributed_optimizer_instances",
    ),
    stated(
        f"{_CORE}/distributed/custom_fsdp/fully_sharded_data_parallel.py",
        on="reduce_every_microbatch",
        off="gathers_from_master",
        zero_stages=(0, 1, 2, 3),
        zero_with_pipeline=1,
        gather_prefetch=1,
        note="stages 2 and 3 are Megatron-FSDP (optim_grads, optim_grads_params); 0 and 1 are DDP and the distributed optimizer, "
        "which reduce with the last microbatch",
    ),
    stated(f"{_CORE}/optimizer/distrib_optimizer.py", off="zero1_broadcasts", note="parameters come back by all-gather, bucket by bucket"),
    stated(f"{_CORE}/optimizer/cpu_offloading/hybrid_optimizer.py", on="optimizer_offload"),
    stated(
        f"{_CORE}/pipeline_parallel/schedules.py",
        schedules=("1f1b", "interleaved-1f1b"),
        note="1F1B without and with interleaving; no GPipe",
    ),
    stated(
        f"{_CORE}/model_parallel_config.py", on="overlap_p2p sequence_parallel", tp_overlap=TpOverlap.FUSED, note="tp_comm_overlap is set"
    ),
    stated(
        f"{_CORE}/pipeline_parallel/p2p_communication.py", off="p2p_scatter_gather", note="sends what a rank holds: with SP its own part"
    ),
    stated(
        f"{_CORE}/transformer/transformer_config.py",
        on="context_ring context_gather context_ulysses",
        default_recompute="none",
        selective_recompute=SelectiveRecompute.CORE,
        note="cp_comm_type p2p, all_gather, a2a, a2a+p2p; recompute_granularity None; recompute_modules core_attn",
    ),
    stated(
        f"{_CORE}/transformer/moe/token_dispatcher.py",
        on="expert_parallel",
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
        note="MoEAlltoAllTokenDispatcher; the flex dispatcher is an option",
    ),
    stated(
        "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/module/linear.py",
        on="saves_quantized",
        note="the quantised input is what is saved for the weight gradient",
    ),
    NCCL,
    stated(
        f"{_CORE}/tensor_parallel/layers.py", on="tp_input_regather fused_weight_gradient", off="adds_gradients", embedding_gradient_bytes=2
    ),
    stated(
        f"{_CORE}/parallel_state.py",
        scales_reduced=ScaleGroup.STAGE,
        note="fp8_recipe delayed and tp_only_amax_red False by default: get_amax_reduction_group is the group of tensor, context and "
        "data parallelism; transformer_block.py opens fp8_autocast with it, and Transformer Engine's pytorch/fp8.py reduces at exit "
        "(both read)",
    ),
    stated(
        f"{_CORE}/extensions/transformer_engine.py",
        off="rebuilds_norms fused_chains fp32_norms",
        attention_kernel=AttentionKernel.CUDNN,
        element_kernels=ElementKernels.FUSED,
    ),
    stated(f"{_CORE}/tensor_parallel/random.py", full_recompute=FullRecompute.WHOLE),
    stated(
        f"{_CORE}/transformer/moe/token_dispatcher.py",
        off="capture routing_on_host expert_overlap fused_experts attention_eight_bit rebuilds_latent",
        note="cuda_graph_scope is empty; the dropless dispatcher copies tokens_per_expert to the host",
    ),
    stated(
        f"{_CORE}/tensor_parallel/cross_entropy.py",
        off="fused_loss logits_blocks_bytes split_logits_bytes",
        logits_bytes=6,
        loss_bytes=52,
        note="bf16 logits and one fp32 copy that becomes the softmax and then the gradient in place; passes over them as in 2021: 52 "
        "bytes a logit",
    ),
    stated(
        "https://github.com/NVIDIA/TransformerEngine/blob/v2.4/transformer_engine/pytorch/module/base.py",
        workspace_bytes=64 * MIB,
        note="get_cublas_workspace_size_bytes: 32 MiB from Hopper on, beside PyTorch's own 32 MiB",
    ),
    ALLOCATOR,
)

# Megatron-Core 0.12 as its command line starts it: overlapped gradients, but no fused tensor-parallel overlap.
PLAIN: Final = derive(
    BASE,
    named("megatron-core-0.12-plain"),
    stated(
        f"{_LM}/core_v0.12.0/megatron/training/arguments.py",
        tp_overlap=TpOverlap.DGRAD,
        note="tp-comm-overlap is off by default; the asynchronous input-gradient collective is on",
    ),
    read(
        f"{_LM}/001199898c4badd01eaf0785c212d8ed7ce83042/megatron/core/distributed/param_and_grad_buffer.py",
        on="scales_gradients",
        gradient_passes=2,
        note="check_grads takes the norm of every bucket before its collective, start_grad_sync multiplies grad_data by the scaling "
        "factor, and reset zeroes it; the check is on and ddp-average-in-collective off by default (from memory)",
    ),
)

# Megatron-Core 0.12 with Transformer Engine told to write attention scores to memory (``--attention-backend unfused``).
UNFUSED: Final = derive(
    PLAIN,
    named("megatron-core-0.12-unfused"),
    stated(
        f"{_CORE}/transformer/enums.py", attention_kernel=AttentionKernel.UNFUSED, note="AttnBackend.unfused turns NVTE_UNFUSED_ATTN on"
    ),
    stated(
        f"{_LM}/core_v0.12.0/tests/functional_tests/test_cases/gpt",
        off="fused_weight_gradient",
        note="where the flag is used, in functional tests, no-gradient-accumulation-fusion is set too",
    ),
)

# Megatron-Core 0.12 without Transformer Engine (``--transformer-impl local``): its own layers and unfused attention.
LOCAL: Final = derive(
    UNFUSED,
    named("megatron-core-0.12-local"),
    stated(
        f"{_CORE}/transformer/dot_product_attention.py", attention_kernel=AttentionKernel.UNFUSED, note="baddbmm, softmax, dropout, bmm"
    ),
    stated(f"{_CORE}/tensor_parallel/layers.py", off="saves_quantized", note="no fp8"),
    stated("https://docs.nvidia.com/cuda/cublas/#cublassetworkspace", workspace_bytes=32 * MIB, note="PyTorch's own 32 MiB"),
)

# Megatron-Core 0.12 with its own fused cross-entropy (``--cross-entropy-loss-fusion``, native implementation).
FUSED_LOSS: Final = derive(
    PLAIN,
    named("megatron-core-0.12-fused-loss"),
    stated(
        f"{_CORE}/fusions/fused_cross_entropy.py",
        on="fused_loss",
        logits_bytes=10,
        note="three compiled graphs: bf16 logits, the first graph's fp32 copy, and the second's result, which is not in place",
    ),
)

# Megatron-Core 0.16 with every overlap switched off: gradients and parameters travel when nothing else runs.
SERIAL: Final = derive(
    PLAIN,
    named("megatron-core-0.16-serial", version="0.16", released="2026-01"),
    read(
        f"{_SIMUMAX}/5c8e4022ab0fa75110a5daed526c89927f37f08d/simu_tools/megatron_scripts/scripts/run_pretrain_llama3.sh",
        off="overlap_grad_reduce overlap_param_gather overlap_p2p",
        note="use-distributed-optimizer and accumulate-allreduce-grads-in-fp32 without overlap-grad-reduce and overlap-param-gather; "
        "no-overlap-p2p-communication by the guide beside it",
    ),
    read(
        f"{_SIMUMAX}/1b8ca90bec07db48005ff04c69c002dc0626484f/docs/b200/b200_real_repro_guide.md",
        on="fused_loss",
        loss_bytes=10,
        note="cross-entropy fusion by Transformer Engine's Triton kernel: statistics 2, gradient in place of the logits 4, scaled 4",
    ),
    read(
        f"{_SIMUMAX}/1b8ca90bec07db48005ff04c69c002dc0626484f/simu_tools/megatron_scripts/scripts/run_pretrain_deepseekv2.sh",
        on="row_kernels",
        note="moe-permute-fusion; the cross-entropy is Transformer Engine's as well",
    ),
)
