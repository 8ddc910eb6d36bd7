"""Megatron-LM before Megatron-Core, as in its papers of 2021 and 2022."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    ExpertDispatch,
    FullRecompute,
    Scaling,
    SelectiveRecompute,
    TpOverlap,
)
from shardwright.runtime.releases.pytorch_shared_facts import ALLOCATOR, CUBLAS
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    runtime,
    stated,
)

_LM: Final = "https://github.com/NVIDIA/Megatron-LM/blob"

# Megatron-LM as in Narayanan et al., SC21 (arXiv 2104.04473): all-reduce tensor parallelism,
# unfused attention with dropout.
Y2021: Final = runtime(
    identity_fields("megatron-2021", framework="Megatron-LM", version="2.5", released="2021-08"),
    stated(
        "https://github.com/NVIDIA/Megatron-LM",
        vendors=("NVIDIA", "AMD"),
        note="CUDA kernels, which ROCm builds too; from memory",
    ),
    stated(
        f"{_LM}/v2.5/megatron/model/distributed.py",
        off="row_kernels gradient_passes scales_gradients",
        note="passes over whole gradients beside the update are not counted here; no such kernels",
    ),
    stated(
        f"{_LM}/v2.5/megatron/arguments.py",
        off=(
            "gradient_wire gather_bucket_bytes gather_copy_bytes listed_collectives"
            " reduce_copy_bytes reuse_elements sums_replicas_apart"
        ),
        note="no sharded parameters",
    ),
    read(
        f"{_LM}/01d65bde5000f00889427e3efc52b14ef273bf59/megatron/model/distributed.py",
        on="adds_gradients",
        off="main_grad_copy overlap_grad_reduce reduce_every_microbatch",
        gradient_dtype=Dtype.FP16,
        bucket_bytes=0,
        note=(
            "one contiguous buffer in the parameters' dtype unless fp32 is asked for, all-reduced"
            " once after the last backward; a hook adds each parameter's gradient to it"
            " (main_grad.add_)"
        ),
    ),
    stated(
        f"{_LM}/v2.5/megatron/optimizer/__init__.py",
        off=(
            "hybrid_sharding optimizer_offload overlap_param_gather gathers_from_master"
            " zero1_broadcasts"
        ),
        zero_stages=(0,),
        zero_with_pipeline=0,
    ),
    stated(
        f"{_LM}/v2.5/megatron/schedules.py",
        schedules=("1f1b", "interleaved-1f1b"),
        gather_prefetch=0,
    ),
    read(
        f"{_LM}/178beeb45d8f89c926366659900934351aa007e6/megatron/p2p_communication.py",
        on="p2p_scatter_gather",
        off="overlap_p2p",
        note=(
            "waits and synchronises after each exchange; each tensor-parallel rank sends its 1/tp"
            " and gathers (SC21 section 4.1)"
        ),
    ),
    stated(
        f"{_LM}/v2.5/megatron/mpu/layers.py",
        off="sequence_parallel tp_input_regather tp_synchronises",
        tp_overlap=TpOverlap.NONE,
        embedding_gradient_bytes=2,
        note=(
            "copy_to_tensor_model_parallel_region all-reduces the input gradient and waits; the"
            " asynchronous all-reduce came with v2.6 (November 2021), after the paper"
        ),
    ),
    stated(
        f"{_LM}/v2.5/megatron/model/transformer.py",
        off="rebuilds_norms fused_chains fp32_norms fused_weight_gradient",
        attention_kernel=AttentionKernel.UNFUSED,
        element_kernels=ElementKernels.FUSED,
    ),
    stated(
        f"{_LM}/v2.5/megatron/mpu/random.py",
        full_recompute=FullRecompute.WHOLE,
        selective_recompute=SelectiveRecompute.CORE,
        note="checkpoint runs the whole layer again",
    ),
    read(
        f"{_LM}/34ed99d1f09d65d9d5eacbe661ba31d2518f6a6f/megatron/mpu/cross_entropy.py",
        off="fused_loss logits_blocks_bytes split_logits_bytes",
        logits_bytes=6,
        loss_bytes=52,
        note=(
            "fp16 logits and one fp32 copy that becomes the softmax and then the gradient in place;"
            " passes over it: cast 6, max 4, sub 8, exp 8, sum 4, div 8, gradient 8, cast 6 bytes a"
            " logit"
        ),
    ),
    stated(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html",
        collective_library="nccl",
    ),
    stated(
        f"{_LM}/v2.5/megatron/arguments.py",
        off="saves_quantized",
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
        note="neither experts nor fp8",
    ),
    stated(
        f"{_LM}/v2.5/megatron/arguments.py",
        off="context_ring context_gather context_ulysses expert_parallel",
        default_recompute="none",
    ),
    stated(
        f"{_LM}/v2.5/megatron/arguments.py",
        off=(
            "capture routing_on_host router_kernels fixed_capacity expert_overlap fused_experts"
            " attention_eight_bit rebuilds_latent rebuilds_expert_activation rebuilds_mlp"
            " rebuilds_shared_experts rebuilds_experts dispatches_eight_bit saves_gates_eight_bit"
            " moments reserved_multiprocessors kept_outputs host_outputs activation_offload"
            " logits_parts linear_loss experts_split_as_layers plain_p2p_blocks fills_pipeline"
            " ties_experts equal_stages equal_between checkpoints_on_host parameters_on_host"
            " hybrid_dispatch launches_block gradients_on_host host_gradient_bytes"
            " host_buffer_percent"
        ),
        note="neither graphs nor experts",
    ),
    CUBLAS,
    ALLOCATOR,
    stated(
        "https://github.com/NVIDIA/Megatron-LM/tree/v2.0",
        off="scales_reduced gathers_narrow gathers_quantized",
        scaling=Scaling.CURRENT,
        note="16 bits only",
    ),
)

# Megatron-LM as in Korthikanti et al. 2022 (arXiv 2205.05198): sequence parallelism and selective
# recompute, attention still unfused.
Y2022: Final = derive(
    Y2021,
    identity_fields("megatron-2022", version="3.0", released="2022-05"),
    stated(
        f"{_LM}/v3.0/megatron/optimizer/distrib_optimizer.py",
        zero_stages=(0, 1),
        zero_with_pipeline=1,
        note="use-distributed-optimizer, off by default",
    ),
    stated(
        f"{_LM}/v3.0/megatron/model/transformer.py",
        selective_recompute=SelectiveRecompute.CORE,
        note="the attention core: scores, softmax, dropout and values",
    ),
    stated(
        f"{_LM}/v3.0/megatron/mpu/layers.py",
        on="sequence_parallel tp_input_regather fused_weight_gradient",
        off="adds_gradients",
        note=(
            "paper section 4.2.2: inputs are kept sharded and gathered again for the weight"
            " gradient; gradient-accumulation-fusion"
        ),
    ),
    read(
        f"{_LM}/02bb1f5c86fc8c36d4a96a2b7ebcf63d53219369/megatron/mpu/layers.py",
        tp_overlap=TpOverlap.DGRAD,
        note=(
            "backward gathers the kept input beside the input gradient's GEMM and reduces the input"
            " gradient beside the weight gradient's"
        ),
    ),
)
