"""NeMo: Megatron-Core under its own recipes, release by release."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.framework_description import Offer
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ExpertDispatch,
    TpOverlap,
)
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.releases import megatron_core
from shardwright.runtime.releases import (
    megatron_core_loss_and_memory_options as megatron_core_memory,
)
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    stated,
)
from shardwright.units import MIB

_GUIDE: Final = "https://docs.nvidia.com/nemo-framework/user-guide/24.12/nemotoolkit/features/optimizations/communication_overlap.html"
_ATTENTION: Final = "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/attention/attention.html"

_BUCKET: Final = 128 * MIB
_BUCKET_NOTE: Final = (
    "bucket_size is 128 Mi elements where there are replicas; the same in NeMo's"
    " megatron_comm_overlap.py (read)"
)


def _gradient_offers(bucket: int) -> tuple[Offer, ...]:
    """NeMo's offers of the gradient options, with buckets of `bucket` elements (0: one a layer)."""
    return (
        option_offer(
            "grad_dtype",
            "bf16",
            "grad_reduce_in_fp32: false",
            stated(_GUIDE, gradient_dtype=Dtype.BF16, note="grad_sync_dtype bf16"),
            read(megatron_core.OVERLAP, bucket_bytes=2 * bucket, note=_BUCKET_NOTE),
        ),
        option_offer(
            "grad_dtype",
            "fp32",
            "grad_reduce_in_fp32: true",
            stated(_GUIDE, gradient_dtype=Dtype.FP32),
            read(megatron_core.OVERLAP, bucket_bytes=4 * bucket, note=_BUCKET_NOTE),
        ),
        *(offer for offer in megatron_core.GRADIENTS if offer.option != "grad_dtype"),
    )


_LOSSES: Final = megatron_core_memory.loss_offers(
    "cross_entropy_loss_fusion: false",
    "cross_entropy_loss_fusion: true cross_entropy_fusion_impl: native",
    "cross_entropy_loss_fusion: true cross_entropy_fusion_impl: te",
)
_PRECISION: Final = "https://github.com/NVIDIA/NeMo/blob/0a07447c2962ee5b55dea5af0d3fc981a2873ca4/nemo/collections/llm/recipes/precision/mixed_precision.py"
_GATHERS: Final = (
    option_offer(
        "fp8_gather", "on", "fp8_param_gather=true", read(_PRECISION, on="gathers_narrow")
    ),
    option_offer(
        "fp8_gather", "off", "fp8_param_gather=false", read(_PRECISION, off="gathers_narrow")
    ),
)
_ATTENTIONS: Final = (
    option_offer(
        "attention",
        "flash-2",
        "NVTE_FUSED_ATTN=0",
        stated(_ATTENTION, attention_kernel=AttentionKernel.FLASH_2),
    ),
    option_offer(
        "attention",
        "cudnn",
        "NVTE_FUSED_ATTN=1",
        stated(_ATTENTION, attention_kernel=AttentionKernel.CUDNN),
    ),
)

# NeMo 24.07: Megatron-Core with Transformer Engine's userbuffers and bf16 gradient reduction.
NEMO_24_07: Final = derive(
    megatron_core.V0_12,
    identity_fields("nemo-24.07", framework="NeMo", version="24.07", released="2024-07"),
    read(
        _GUIDE,
        on="overlap_grad_reduce overlap_param_gather",
        gradient_dtype=Dtype.BF16,
        bucket_bytes=0,
        note=(
            "gradients are reduced in bf16 (grad_sync_dtype); communication is chunked by"
            " transformer layer"
        ),
    ),
    stated(
        "https://github.com/NVIDIA/NeMo/blob/v2.1.0/scripts/performance/helpers.py",
        off="gradient_passes scales_gradients",
        note=(
            "set_primary_perf_configs: check_for_nan_in_grad False; recipes set"
            " average_in_collective; passes are not counted then"
        ),
    ),
    stated(
        _GUIDE,
        tp_overlap=TpOverlap.FUSED,
        note=(
            "ub_tp_comm_overlap: bulk and pipelined overlap of tensor-parallel collectives with"
            " their GEMMs"
        ),
    ),
    stated(
        _ATTENTION,
        attention_kernel=AttentionKernel.FLASH_2,
        note="flash-attention 2 was preferred before cuDNN became the default on Hopper",
    ),
    stated(
        "https://github.com/NVIDIA/NeMo/blob/v2.0.0/nemo/core/optim/distributed_adam.py",
        off="hybrid_sharding optimizer_offload",
        zero_stages=(0, 1),
        zero_with_pipeline=1,
    ),
    offers=(
        *megatron_core.OVERLAPS,
        *_gradient_offers(0),
        *megatron_core.FP8,
        *megatron_core.GATHERS,
        *_ATTENTIONS,
        *megatron_core_memory.KEPT,
        *megatron_core_memory.RECOMPUTE,
    ),
)

# NeMo 24.09 to 25.05 and Megatron-Bridge: as 24.07, with cuDNN attention and fused cross-entropy.
NEMO_24_11: Final = derive(
    NEMO_24_07,
    identity_fields("nemo-24.11", version="24.11", released="2024-11"),
    read(megatron_core.OVERLAP, bucket_bytes=2 * _BUCKET, note=_BUCKET_NOTE),
    stated(
        _ATTENTION,
        attention_kernel=AttentionKernel.CUDNN,
        note="cuDNN attention is preferred on Hopper",
    ),
    stated(
        "https://github.com/NVIDIA/NeMo/blob/v2.1.0/nemo/collections/llm/gpt/model/base.py",
        on="fused_loss",
        logits_bytes=10,
        loss_bytes=48,
        note=(
            "cross_entropy_loss_fusion is on in the model configurations: Megatron-Core's"
            " fused_cross_entropy, see there"
        ),
    ),
    stated(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/training/megatron-fsdp.md",
        on="hybrid_sharding",
        zero_stages=(0, 1, 2, 3),
        note="stages 2 and 3 are Megatron-FSDP (Megatron-Bridge)",
    ),
    read(
        "https://docs.nvidia.com/nemo/megatron-bridge/nightly/skills/nemo-mbridge-perf-moe-dispatcher-selection/SKILL.html",
        expert_dispatch=ExpertDispatch.DEDUPLICATED,
        note="DeepEP on H100 and B200, HybridEP on GB200 and GB300",
    ),
    read(
        _PRECISION,
        on="gathers_narrow",
        note=(
            "bf16_with_fp8_mixed: delayed scaling with fp8_param_gather; scripts/performance"
            " takes it"
        ),
    ),
    offers=(
        *_LOSSES,
        *megatron_core.OVERLAPS,
        *_gradient_offers(_BUCKET),
        *megatron_core.FP8,
        *_GATHERS,
        *_ATTENTIONS,
        *megatron_core.EXPERTS,
        *megatron_core_memory.KEPT,
        *megatron_core_memory.RECOMPUTE,
    ),
)

# NeMo 25.04 and later: as 24.11, with Transformer Engine's cross-entropy.
NEMO_25_04: Final = derive(
    NEMO_24_11,
    identity_fields("nemo-25.04", version="25.04", released="2025-04"),
    stated(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/595",
        logits_bytes=6,
        loss_bytes=10,
        note=(
            "cross_entropy_fusion_impl te: statistics 2, gradient in place of the logits 4, scaled"
            " 4 bytes"
        ),
    ),
    stated(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/595",
        on="row_kernels",
        note=(
            "Triton in Transformer Engine; recipes of mixtures set moe_permute_fusion (from memory)"
        ),
    ),
    offers=NEMO_24_11.offers,
)
