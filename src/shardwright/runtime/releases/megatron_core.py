"""Megatron-Core 0.12 and 0.16, with the options of its command line."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    ExpertDispatch,
    FullRecompute,
    ScaleGroup,
    Scaling,
    SelectiveRecompute,
    TpOverlap,
)
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.releases.megatron_core_loss_and_memory_options import (
    KEPT,
    LOSS_NOTE,
    RECOMPUTE,
    loss_offers,
)
from shardwright.runtime.releases.pytorch_shared_facts import ALLOCATOR, COLLECTIVES, NCCL
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    runtime,
    stated,
)
from shardwright.units import MIB

_LM: Final = "https://github.com/NVIDIA/Megatron-LM/blob"
_CORE: Final = f"{_LM}/core_v0.12.0/megatron/core"
_SIMUMAX: Final = "https://github.com/MooreThreads/SimuMax/blob"

_LINEAR: Final = "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/module/linear.py"
_WORKSPACE: Final = "https://github.com/NVIDIA/TransformerEngine/blob/v2.4/transformer_engine/pytorch/module/base.py"
_WORKSPACE_NOTE: Final = (
    "get_cublas_workspace_size_bytes: 32 MiB from Hopper on, beside PyTorch's own 32 MiB"
)
_ROWS: Final = (
    f"{_SIMUMAX}/1b8ca90bec07db48005ff04c69c002dc0626484f"
    "/simu_tools/megatron_scripts/scripts/run_pretrain_deepseekv2.sh"
)
_DDP: Final = (
    f"{_LM}/001199898c4badd01eaf0785c212d8ed7ce83042"
    "/megatron/core/distributed/distributed_data_parallel_config.py"
)
_BUCKET_NOTE: Final = "buckets of max(40e6, 1e6 x dp) parameters"
_ARGUMENTS: Final = f"{_LM}/core_v0.12.0/megatron/training/arguments.py"
_ROUTER: Final = (
    f"{_LM}/eb0783b6d35607ef1953eaca60b37b886b1a25d0"
    "/docs/discussions/deepseek-v3-gb200-optimization/deepseek-v3-gb200-optimization.md"
)
_ROUTER_NOTE: Final = (
    "2.1.4: the router part has 72 kernels, 31 of them are left where it is fused"
    " (moe_router_fusion, off by default)"
)
_BUFFER: Final = (
    f"{_LM}/001199898c4badd01eaf0785c212d8ed7ce83042"
    "/megatron/core/distributed/param_and_grad_buffer.py"
)
_CHECK_NOTE: Final = (
    "check_grads takes the norm of every bucket before its collective, and reset zeroes it; the"
    " check is on by default (from memory)"
)
_AVERAGE_NOTE: Final = (
    "start_grad_sync multiplies grad_data by the scaling factor; the default (from memory)"
)
_SCALES: Final = f"{_CORE}/parallel_state.py"
_SCALES_NOTE: Final = (
    "get_amax_reduction_group is the group of tensor, context and data parallelism unless"
    " tp_only_amax_red is set; transformer_block.py opens fp8_autocast with it, and Transformer"
    " Engine's pytorch/fp8.py reduces at exit under delayed scaling only (both read)"
)

OVERLAP: Final = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/0685ff5d5e636e06193291eb13b6bae531e958b4/src/megatron/bridge/training/comm_overlap.py"
_P2P_NOTE: Final = (
    "overlap_p2p_comm where there is a virtual pipeline, else batch_p2p_comm, which is waited for;"
    " the same in NeMo's megatron_comm_overlap.py, and Megatron-LM's arguments.py sets"
    " overlap_p2p_comm False where the schedule is not interleaved (both read)"
)

OVERLAPS: Final = (
    option_offer(
        "grad_overlap", "on", "--overlap-grad-reduce", stated(_ARGUMENTS, on="overlap_grad_reduce")
    ),
    option_offer("grad_overlap", "off", "", stated(_ARGUMENTS, off="overlap_grad_reduce")),
    option_offer(
        "param_overlap",
        "on",
        "--overlap-param-gather",
        stated(_ARGUMENTS, on="overlap_param_gather"),
    ),
    option_offer("param_overlap", "off", "", stated(_ARGUMENTS, off="overlap_param_gather")),
    option_offer(
        "p2p_overlap",
        "interleaved",
        "",
        read(OVERLAP, on="overlap_p2p plain_p2p_blocks", note=_P2P_NOTE),
    ),
    option_offer(
        "p2p_overlap",
        "off",
        "--no-overlap-p2p-communication",
        stated(_ARGUMENTS, off="overlap_p2p plain_p2p_blocks"),
    ),
    option_offer(
        "tp_overlap",
        "userbuffers",
        "--tp-comm-overlap",
        stated(_ARGUMENTS, tp_overlap=TpOverlap.FUSED, note="userbuffers"),
    ),
    option_offer(
        "tp_overlap",
        "dgrad",
        "",
        stated(
            _ARGUMENTS,
            tp_overlap=TpOverlap.DGRAD,
            note="without tp-comm-overlap the asynchronous input-gradient collective is on",
        ),
    ),
    option_offer(
        "tp_overlap",
        "none",
        "--no-async-tensor-model-parallel-allreduce",
        stated(_ARGUMENTS, tp_overlap=TpOverlap.NONE),
    ),
)
_ADDS: Final = stated(
    _ARGUMENTS,
    off="fused_weight_gradient",
    on="adds_gradients",
    note="a hook adds each gradient to main_grad",
)
GRADIENTS: Final = (
    option_offer(
        "grad_dtype",
        "fp32",
        "--accumulate-allreduce-grads-in-fp32",
        stated(_ARGUMENTS, gradient_dtype=Dtype.FP32, note="always with bf16"),
        read(_DDP, bucket_bytes=160_000_000, note=_BUCKET_NOTE),
    ),
    option_offer(
        "grad_dtype",
        "bf16",
        "--grad-reduce-in-bf16",
        stated(_ARGUMENTS, gradient_dtype=Dtype.BF16),
        read(_DDP, bucket_bytes=80_000_000, note=_BUCKET_NOTE),
    ),
    option_offer(
        "grad_check",
        "on",
        "",
        read(_BUFFER, gradient_passes=2, note=_CHECK_NOTE),
    ),
    option_offer(
        "grad_check",
        "off",
        "--no-check-for-nan-in-loss-and-grad",
        stated(_ARGUMENTS, off="gradient_passes"),
    ),
    option_offer(
        "grad_average",
        "buffer",
        "",
        read(_BUFFER, on="scales_gradients", note=_AVERAGE_NOTE),
    ),
    option_offer(
        "grad_average",
        "collective",
        "--ddp-average-in-collective",
        stated(_ARGUMENTS, off="scales_gradients"),
    ),
    option_offer(
        "wgrad_fusion",
        "on",
        "",
        stated(_ARGUMENTS, on="fused_weight_gradient", off="adds_gradients"),
    ),
    option_offer("wgrad_fusion", "off", "--no-gradient-accumulation-fusion", _ADDS),
)
_RECIPE_DOCS: Final = "https://github.com/NVIDIA/TransformerEngine/blob/41f6cbf17263a17f1c0fad7f591bf2d527318891/docs/features/low_precision_training"
_RECIPES: Final = f"{_LM}/core_v0.15.0/megatron/core/fp8_utils.py"
FP8: Final = (
    option_offer(
        "fp8",
        "delayed",
        "--fp8-recipe delayed",
        stated(
            _SCALES,
            scaling=Scaling.DELAYED,
            scales_reduced=ScaleGroup.STAGE,
            note=_SCALES_NOTE,
        ),
    ),
    *(
        option_offer(
            "fp8",
            scaling.value,
            f"--fp8-recipe {flag}",
            stated(_RECIPES, scaling=scaling, off="scales_reduced", note=_SCALES_NOTE),
        )
        for scaling, flag in (
            (Scaling.CURRENT, "tensorwise"),
            (Scaling.MX, "mxfp8"),
            (Scaling.BLOCKWISE, "blockwise"),
        )
    ),
)
GATHERS: Final = (
    option_offer("fp8_gather", "on", "--fp8-param-gather", stated(_ARGUMENTS, on="gathers_narrow")),
    option_offer("fp8_gather", "off", "", stated(_ARGUMENTS, off="gathers_narrow")),
)
EXPERTS: Final = (
    option_offer(
        "dispatcher",
        "allgather",
        "--moe-token-dispatcher-type allgather",
        read(
            f"{_LM}/0014f13713bfa38a8bab4ae11edd6917d35165ce/megatron/core/transformer/moe/token_dispatcher.py",
            expert_dispatch=ExpertDispatch.GATHERED,
            off="hybrid_dispatch",
            note=(
                "MoEAllGatherTokenDispatcher: tokens, probabilities and map are gathered over ep x"
                " etp, outputs are reduce-scattered"
            ),
        ),
    ),
    option_offer(
        "dispatcher",
        "alltoall",
        "--moe-token-dispatcher-type alltoall",
        stated(
            f"{_CORE}/transformer/moe/token_dispatcher.py",
            expert_dispatch=ExpertDispatch.ALL_TO_ALL,
            off="hybrid_dispatch",
            note="a copy for each expert",
        ),
    ),
    option_offer(
        "dispatcher",
        "flex",
        "--moe-token-dispatcher-type flex",
        stated(
            f"{_CORE}/transformer/moe/fused_a2a.py",
            expert_dispatch=ExpertDispatch.DEDUPLICATED,
            off="hybrid_dispatch",
            note="DeepEP: a copy for each device, and for each node on the way",
        ),
    ),
    option_offer(
        "capacity",
        "dropless",
        "",
        stated(
            f"{_CORE}/transformer/moe/token_dispatcher.py", off="fixed_capacity", note="the default"
        ),
    ),
    option_offer(
        "capacity",
        "fixed",
        "--moe-expert-capacity-factor",
        stated(
            f"{_CORE}/transformer/moe/token_dispatcher.py",
            on="fixed_capacity",
            note="counts are known: nothing is copied to the host",
        ),
    ),
    option_offer("router_fusion", "off", "", read(_ROUTER, router_kernels=72, note=_ROUTER_NOTE)),
    option_offer(
        "router_fusion",
        "on",
        "--moe-router-fusion",
        read(_ROUTER, router_kernels=31, note=_ROUTER_NOTE),
    ),
    option_offer(
        "permute_fusion",
        "on",
        "--moe-permute-fusion",
        read(_ROWS, on="row_kernels", note="Transformer Engine's Triton kernels"),
    ),
    option_offer("permute_fusion", "off", "", stated(_ARGUMENTS, off="row_kernels")),
)


_LAYERS: Final = (
    option_offer(
        "transformer",
        "te",
        "--transformer-impl transformer_engine",
        stated(
            _LINEAR,
            on="saves_quantized",
            note="the quantised input is what is saved for the weight gradient",
        ),
        stated(_WORKSPACE, workspace_bytes=64 * MIB, note=_WORKSPACE_NOTE),
    ),
    option_offer(
        "transformer",
        "local",
        "--transformer-impl local",
        stated(f"{_CORE}/tensor_parallel/layers.py", off="saves_quantized", note="no fp8"),
        stated(
            "https://docs.nvidia.com/cuda/cublas/#cublassetworkspace",
            workspace_bytes=32 * MIB,
            note="PyTorch's own 32 MiB",
        ),
    ),
    option_offer(
        "attention",
        "cudnn",
        "",
        stated(
            f"{_CORE}/transformer/enums.py",
            attention_kernel=AttentionKernel.CUDNN,
            note="AttnBackend.auto",
        ),
    ),
    option_offer(
        "attention",
        "flash-2",
        "--attention-backend flash",
        stated(f"{_CORE}/transformer/enums.py", attention_kernel=AttentionKernel.FLASH_2),
    ),
    option_offer(
        "attention",
        "unfused",
        "--attention-backend unfused",
        stated(
            f"{_CORE}/transformer/enums.py",
            attention_kernel=AttentionKernel.UNFUSED,
            note="NVTE_UNFUSED_ATTN; what local layers have",
        ),
    ),
)

# Megatron-Core 0.12 with Transformer Engine: its documented defaults, and of its performance guide
# the overlaps; the default runtime.
V0_12: Final = runtime(
    identity_fields(
        "megatron-core-0.12", framework="Megatron-Core", version="0.12", released="2025-05"
    ),
    stated(
        "https://rocm.docs.amd.com/en/latest/how-to/rocm-for-ai/training/benchmark-docker/megatron-lm.html",
        vendors=("NVIDIA", "AMD", "Huawei", "Intel", "AWS"),
        note=(
            "ports: ROCm/Megatron-LM, Ascend/MindSpeed, HabanaAI/Megatron-LM,"
            " aws-neuron/neuronx-nemo-megatron; from memory"
        ),
    ),
    read(_BUFFER, gradient_passes=2, note=_CHECK_NOTE),
    read(_BUFFER, on="scales_gradients", note=_AVERAGE_NOTE),
    stated(_ARGUMENTS, off="row_kernels", note="moe_permute_fusion is off by default"),
    read(_ROUTER, router_kernels=72, note=_ROUTER_NOTE),
    stated(
        f"{_CORE}/distributed/param_and_grad_buffer.py",
        off=(
            "gradient_wire gather_bucket_bytes gather_copy_bytes listed_collectives"
            " reduce_copy_bytes reuse_elements sums_replicas_apart"
        ),
        note="parameters and gradients are views of contiguous buffers",
    ),
    read(
        _DDP,
        on="overlap_grad_reduce overlap_param_gather hybrid_sharding",
        off="main_grad_copy",
        gradient_dtype=Dtype.FP32,
        bucket_bytes=160_000_000,
        note=(
            "buckets of max(40e6, 1e6 x dp) parameters, 4 bytes each under grad_reduce_in_fp32;"
            " num_distributed_optimizer_instances"
        ),
    ),
    stated(
        f"{_CORE}/distributed/custom_fsdp/fully_sharded_data_parallel.py",
        on="reduce_every_microbatch",
        off="gathers_from_master",
        zero_stages=(0, 1, 2, 3),
        zero_with_pipeline=1,
        gather_prefetch=1,
        note=(
            "stages 2 and 3 are Megatron-FSDP (optim_grads, optim_grads_params); 0 and 1 are DDP"
            " and the distributed optimizer, which reduce with the last microbatch"
        ),
    ),
    stated(
        f"{_CORE}/optimizer/distrib_optimizer.py",
        off="zero1_broadcasts",
        note="parameters come back by all-gather, bucket by bucket",
    ),
    read(
        "https://github.com/NVIDIA/Megatron-LM/blob/0d41ecd8b5388da7e8ea98ff88086e43d3371b30/megatron/core/optimizer/cpu_offloading/"
        "hybrid_optimizer.py",
        on="optimizer_offload",
        off="host_buffer_percent gradients_on_host",
        host_gradient_bytes=4,
        note=(
            "HybridDeviceOptimizer: an fp32 copy of each offloaded parameter, its moments, and its"
            " gradient in that format, pinned"
        ),
    ),
    stated(
        f"{_CORE}/transformer/transformer_config.py",
        on="activation_offload",
        off="checkpoints_on_host parameters_on_host hybrid_dispatch launches_block",
        note="--cpu-offloading-num-layers; refused with a pipeline and with recompute; from memory",
    ),
    stated(
        f"{_CORE}/pipeline_parallel/schedules.py",
        schedules=("1f1b", "interleaved-1f1b"),
        off="fills_pipeline ties_experts",
        note="1F1B without and with interleaving; no GPipe",
    ),
    read(
        "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.13.0/megatron/training/arguments.py",
        off="equal_stages equal_between",
        note=(
            "--pipeline-model-parallel-layout, which exports write: from 0.13 on; before, the ends"
            " alone may differ (docs/decisions/0024)"
        ),
    ),
    stated(
        f"{_CORE}/model_parallel_config.py",
        on="sequence_parallel",
        tp_overlap=TpOverlap.FUSED,
        note="tp_comm_overlap is set",
    ),
    read(OVERLAP, on="overlap_p2p plain_p2p_blocks", note=_P2P_NOTE),
    stated(
        f"{_CORE}/pipeline_parallel/p2p_communication.py",
        off="p2p_scatter_gather",
        note="sends what a rank holds: with SP its own part",
    ),
    stated(
        f"{_CORE}/transformer/transformer_config.py",
        on="context_ring context_gather context_ulysses",
        default_recompute="none",
        selective_recompute=SelectiveRecompute.CORE,
        note=(
            "cp_comm_type p2p, all_gather, a2a, a2a+p2p; recompute_granularity None;"
            " recompute_modules core_attn"
        ),
    ),
    stated(
        f"{_CORE}/transformer/moe/token_dispatcher.py",
        on="expert_parallel",
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
        note="MoEAlltoAllTokenDispatcher; the flex dispatcher is an option",
    ),
    stated(
        _LINEAR,
        on="saves_quantized",
        note="the quantised input is what is saved for the weight gradient",
    ),
    NCCL,
    stated(
        f"{_CORE}/tensor_parallel/layers.py",
        on="tp_input_regather fused_weight_gradient",
        off="adds_gradients tp_synchronises",
        embedding_gradient_bytes=2,
    ),
    stated(
        f"{_CORE}/parallel_state.py",
        scaling=Scaling.DELAYED,
        scales_reduced=ScaleGroup.STAGE,
        note=_SCALES_NOTE,
    ),
    stated(_ARGUMENTS, off="gathers_narrow", note="--fp8-param-gather is off by default"),
    read(
        _RECIPE_DOCS,
        on="gathers_quantized",
        note="quantised all-gather is supported under every recipe",
    ),
    stated(
        f"{_CORE}/extensions/transformer_engine.py",
        off="rebuilds_norms fused_chains fp32_norms",
        attention_kernel=AttentionKernel.CUDNN,
        element_kernels=ElementKernels.FUSED,
    ),
    read(
        f"{_LM}/001199898c4badd01eaf0785c212d8ed7ce83042/megatron/core/model_parallel_config.py",
        on="experts_split_as_layers",
        note="expert_tensor_parallel_size is tensor_model_parallel_size where it is None",
    ),
    stated(f"{_CORE}/tensor_parallel/random.py", full_recompute=FullRecompute.WHOLE),
    stated(
        f"{_CORE}/transformer/moe/token_dispatcher.py",
        on="routing_on_host",
        off=(
            "capture fixed_capacity expert_overlap fused_experts attention_eight_bit"
            " rebuilds_latent dispatches_eight_bit saves_gates_eight_bit moments"
            " reserved_multiprocessors rebuilds_expert_activation rebuilds_mlp"
            " rebuilds_shared_experts rebuilds_experts kept_outputs host_outputs logits_parts"
            " linear_loss"
        ),
        note=(
            "cuda_graph_scope is empty; the dropless dispatcher copies tokens_per_expert to the"
            " host"
        ),
    ),
    stated(
        f"{_CORE}/tensor_parallel/cross_entropy.py",
        off="fused_loss logits_blocks_bytes split_logits_bytes",
        logits_bytes=6,
        loss_bytes=52,
        note=LOSS_NOTE,
    ),
    stated(
        _WORKSPACE,
        workspace_bytes=64 * MIB,
        note=_WORKSPACE_NOTE,
    ),
    ALLOCATOR,
    offers=(
        *_LAYERS,
        *loss_offers(
            "",
            "--cross-entropy-loss-fusion",
            "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
        ),
        *OVERLAPS,
        *GRADIENTS,
        *FP8,
        *GATHERS,
        *EXPERTS,
        *KEPT,
        *RECOMPUTE,
        *COLLECTIVES,
    ),
)

HYBRID: Final = (
    option_offer(
        "dispatcher",
        "hybridep",
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
        stated(
            f"{_LM}/main/megatron/core/transformer/moe/README.md",
            on="hybrid_dispatch",
            expert_dispatch=ExpertDispatch.DEDUPLICATED,
            note="from 0.15 on, for GB200, B200 and H100: HybridEP where flex alone is DeepEP",
        ),
    ),
)

# Megatron-Core 0.16: the features described here are as in 0.12.
V0_16: Final = derive(
    V0_12,
    identity_fields("megatron-core-0.16", version="0.16", released="2026-01"),
    offers=(*V0_12.offers, *HYBRID),
)
