"""MaxText on JAX/XLA: fully sharded parameters, collectives scheduled by the compiler, whole-layer rematerialisation by default."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.facts import derive, named, runtime, stated
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, ExpertDispatch, FullRecompute, SelectiveRecompute, TpOverlap
from shardwright.units import MIB

_TREE: Final = "https://github.com/AI-Hypercomputer/maxtext/blob/e591f30cbbf2/src/maxtext"

RUNTIME: Final = runtime(
    named("maxtext", framework="MaxText", version="2025", released="2025-06"),
    stated(
        "https://github.com/AI-Hypercomputer/maxtext",
        vendors=("Google", "NVIDIA"),
        note="TPUs and GPUs",
    ),
    stated(
        "https://docs.jax.dev/en/latest/sharded-computation.html",
        off="row_kernels gradient_passes scales_gradients",
        note="passes over whole gradients beside the update are not counted here; no such kernels",
    ),
    stated(
        "https://docs.jax.dev/en/latest/gradient-checkpointing.html",
        full_recompute=FullRecompute.STOPS_EARLY,
        note="what backward does not read is not computed again: no use of the last product; from memory",
    ),
    stated(
        "https://docs.jax.dev/en/latest/sharded-computation.html",
        off="gather_bucket_bytes gather_copy_bytes listed_collectives reduce_copy_bytes reuse_elements sums_replicas_apart",
        gradient_wire=Dtype.BF16,
        note="GSPMD sums a product's partial results where they arise, in its bf16, and lays collectives out with users; from memory",
    ),
    stated(
        f"{_TREE}/configs/base.yml",
        on="hybrid_sharding optimizer_offload sequence_parallel context_gather context_ulysses expert_parallel gathers_from_master",
        off="main_grad_copy context_ring",
        gradient_dtype=Dtype.FP32,
        zero_stages=(0, 3),
        zero_with_pipeline=3,
        schedules=("gpipe",),
        default_recompute="full",
        selective_recompute=SelectiveRecompute.OPERATORS,
        attention_kernel=AttentionKernel.CUDNN,
        note="weight_dtype and grad_dtype float32; ici and dcn axes; remat_policy full; attention autoselected (cuDNN on GPUs)",
    ),
    stated(
        "https://openxla.org/xla/flags_guidance",
        on="overlap_grad_reduce overlap_param_gather overlap_p2p reduce_every_microbatch tp_input_regather",
        off="p2p_scatter_gather fused_weight_gradient adds_gradients rebuilds_norms fused_chains fp32_norms zero1_broadcasts "
        "tp_synchronises saves_quantized capture routing_on_host fixed_capacity expert_overlap fused_experts attention_eight_bit "
        "rebuilds_latent rebuilds_expert_activation rebuilds_mlp rebuilds_shared_experts rebuilds_experts experts_split_as_layers",
        bucket_bytes=0,
        gather_prefetch=1,
        tp_overlap=TpOverlap.ASYNC,
        element_kernels=ElementKernels.COMPILED,
        collective_library="any",
        expert_dispatch=ExpertDispatch.ALL_TO_ALL,
        note="latency-hiding scheduler, collective matmul, compiler fusion; the compiler launches the whole step",
    ),
    stated(
        f"{_TREE}/utils/max_utils.py",
        off="fused_loss logits_blocks_bytes split_logits_bytes loss_bytes",
        logits_bytes=8,
        embedding_gradient_bytes=4,
        note="fp32 logits and their gradient; cross_entropy_with_logits",
    ),
    stated(
        "https://docs.jax.dev/en/latest/gpu_memory_allocation.html",
        workspace_bytes=256 * MIB,
        allocator_reserve_percent=10,
        note="JAX preallocates a share of the memory; from memory",
    ),
    stated(
        "https://github.com/AI-Hypercomputer/maxtext",
        off="scales_reduced",
        note="XLA reduces the magnitude of each sharded operand with the operator itself: not counted",
    ),
)

# Paxml on GPUs, as NVIDIA's benchmarks launch it: XLA again, a layer's gathers in one loop over layers, Transformer Engine's attention.
PAXML: Final = derive(
    RUNTIME,
    named("paxml", framework="Paxml", version="2024", released="2024-03"),
    stated(
        "https://github.com/NVIDIA/dgxc-benchmarking/blob/143b90dd91f9be958fed4773ae95d941a3356a82/paxml/configure.sh",
        checked=True,
        vendors=("NVIDIA",),
        attention_kernel=AttentionKernel.CUDNN,
        tp_overlap=TpOverlap.NONE,
        note="NVTE_FUSED_ATTN=1, asynchronous collectives and XLA's latency-hiding scheduler; no collective matmul among its flags",
    ),
    stated(
        "https://github.com/google/paxml/blob/04516ac858bbd5143aed2262bbd1e505f6679e28/paxml/contrib/gpu/scripts_gpu/configs.py",
        checked=True,
        default_recompute="selective",
        note="CHECKPOINT_POLICY SAVE_DOT_WITH_NO_BATCH_DIM; ICI and DCN meshes of replicas, data and model axes",
    ),
)
