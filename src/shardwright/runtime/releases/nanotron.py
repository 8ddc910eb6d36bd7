"""nanotron: PyTorch DDP with fp32 gradient accumulation, ZeRO-1, 1F1B with blocking sends.

Tensor parallelism is as in the first Megatron-LM.
"""

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
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.releases.pytorch_shared_facts import ALLOCATOR, CUBLAS, NCCL
from shardwright.runtime.runtime_from_sourced_statements import (
    identity_fields,
    read,
    runtime,
    stated,
)
from shardwright.units import MIB

_TREE: Final = "https://github.com/huggingface/nanotron/blob"
_LINEAR: Final = (
    f"{_TREE}/00708b80c88ee7c05c89502e80c3201df916d774"
    "/src/nanotron/parallel/tensor_parallel/functional.py"
)
_CONFIG: Final = (
    f"{_TREE}/6b2ff6502c1ed4ef12843642572c10a8e7a5d3df/src/nanotron/config/parallelism_config.py"
)
_MAIN: Final = f"{_TREE}/main/src/nanotron"
_BENCH: Final = "https://github.com/huggingface/bench_cluster/blob/2e2b026345aafe74a03f062ebf10021df468d7e9/bench_cluster/template/base_config.py"

RUNTIME: Final = runtime(
    identity_fields("nanotron", framework="nanotron", version="0.4", released="2024-07"),
    stated(
        "https://github.com/huggingface/nanotron",
        vendors=("NVIDIA", "AMD"),
        note="PyTorch's NCCL and RCCL; from memory",
    ),
    stated(
        f"{_MAIN}/optim/gradient_accumulator.py",
        on="main_grad_copy adds_gradients overlap_grad_reduce",
        off=(
            "gradient_wire reduce_every_microbatch row_kernels gradient_passes scales_gradients"
            " fused_weight_gradient"
        ),
        gradient_dtype=Dtype.FP32,
        note=(
            "FP32GradientAccumulator.backward adds half gradients to fp32 copies after a pass;"
            " DDP's hook reduces those in the last one"
        ),
    ),
    stated(
        f"{_MAIN}/optim/zero.py",
        off=(
            "overlap_param_gather hybrid_sharding optimizer_offload zero1_broadcasts"
            " gathers_from_master sums_replicas_apart"
        ),
        zero_stages=(0, 1),
        zero_with_pipeline=1,
        gather_prefetch=0,
        note="parameters are gathered after the step",
    ),
    read(
        _BENCH,
        bucket_bytes=50 * MIB,
        note="ddp_bucket_cap_mb 25 of bf16 gradients, which travel in fp32",
    ),
    stated(
        f"{_MAIN}/optim/zero.py",
        off=(
            "gather_bucket_bytes gather_copy_bytes listed_collectives reduce_copy_bytes"
            " reuse_elements"
        ),
        note="no stage 3",
    ),
    stated(
        f"{_MAIN}/parallel/pipeline_parallel/engine.py",
        off="overlap_p2p p2p_scatter_gather",
        schedules=("gpipe", "1f1b"),
        note=(
            "AllForwardAllBackward and OneForwardOneBackward; activations are sent and received"
            " where they are needed"
        ),
    ),
    read(
        _LINEAR,
        on="sequence_parallel tp_input_regather",
        off="tp_synchronises",
        tp_overlap=TpOverlap.NONE,
        note=(
            "tp_mode REDUCE_SCATTER; collectives are waited for without"
            " tp_linear_async_communication; tp_recompute_allgather"
        ),
    ),
    stated(
        _CONFIG,
        on="expert_parallel",
        off="context_ring context_gather context_ulysses",
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
    ),
    stated(
        f"{_MAIN}/models/llama.py",
        off=(
            "rebuilds_norms fused_chains fp32_norms saves_quantized scales_reduced gathers_narrow"
            " gathers_quantized"
        ),
        scaling=Scaling.DELAYED,
        attention_kernel=AttentionKernel.FLASH_2,
        element_kernels=ElementKernels.EAGER,
        embedding_gradient_bytes=2,
        note="flash_attn_varlen_func; rotary embedding and gated activation as PyTorch operators",
    ),
    read(
        _LINEAR,
        off="fused_loss logits_blocks_bytes split_logits_bytes",
        logits_bytes=10,
        loss_bytes=52,
        note=(
            "sharded_cross_entropy: bf16 logits 2, their fp32 copy 4, the shifted copy 4,"
            " exponentiated in place and kept; passes: cast 6, max 4, shift 8, exp 8, sum 4,"
            " division 8, gradient 8, cast 6"
        ),
    ),
    stated(
        _CONFIG,
        full_recompute=FullRecompute.WHOLE,
        selective_recompute=SelectiveRecompute.CORE,
        default_recompute="none",
        note="recompute_layer false",
    ),
    stated(
        f"{_MAIN}/nn/moe.py",
        off=(
            "capture routing_on_host router_kernels fixed_capacity expert_overlap fused_experts"
            " attention_eight_bit rebuilds_latent rebuilds_expert_activation rebuilds_mlp"
            " rebuilds_shared_experts rebuilds_experts experts_split_as_layers kept_outputs"
            " host_outputs activation_offload logits_parts linear_loss plain_p2p_blocks"
            " fills_pipeline ties_experts equal_stages equal_between checkpoints_on_host"
            " parameters_on_host hybrid_dispatch launches_block gradients_on_host"
            " host_gradient_bytes host_buffer_percent dispatches_eight_bit saves_gates_eight_bit"
            " moments reserved_multiprocessors"
        ),
        note="eager",
    ),
    NCCL,
    CUBLAS,
    ALLOCATOR,
    offers=(
        option_offer(
            "tp_overlap",
            "none",
            "tp_linear_async_communication: false",
            stated(_CONFIG, tp_overlap=TpOverlap.NONE),
        ),
        option_offer(
            "tp_overlap",
            "dgrad",
            "tp_linear_async_communication: true",
            read(
                _LINEAR,
                tp_overlap=TpOverlap.DGRAD,
                note="the collective of an input gradient beside the weight gradient",
            ),
        ),
    ),
)
