"""MosaicML's llm-foundry on Composer and FSDP1 of 2023: Triton flash attention, eager kernels."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    FullRecompute,
    Scaling,
    SelectiveRecompute,
    TpOverlap,
)
from shardwright.runtime.releases import torchtitan
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    stated,
)

_FOUNDRY: Final = "https://github.com/mosaicml/llm-foundry/blob"
_BENCHMARK: Final = (
    f"{_FOUNDRY}/12a631913c786ac70e33e42047d2eae6f443ee69"
    "/scripts/train/benchmarking/submit_benchmarks.py"
)
_MODEL: Final = f"{_FOUNDRY}/8c8dd48f7216/llmfoundry/models/mpt/modeling_mpt.py"
_API: Final = "https://pytorch.org/docs/2.0/_modules/torch/distributed/fsdp/api.html"
_COMPOSER: Final = "https://github.com/mosaicml/composer/blob/v0.16.0/composer/trainer"

RUNTIME: Final = derive(
    torchtitan.V0_2,
    identity_fields(
        "fsdp1-llm-foundry", framework="llm-foundry", version="0.3", released="2023-09"
    ),
    read(
        "https://github.com/mosaicml/composer/pull/2628",
        gradient_wire=Dtype.BF16,
        note=(
            "until October 2023 DEFAULT set no reduce_dtype, and FSDP takes the parameters' dtype"
            " then; PURE sets bf16"
        ),
    ),
    read(
        "https://github.com/pytorch/pytorch/blob/v2.0.1/torch/distributed/fsdp/_runtime_utils.py",
        off="gather_copy_bytes",
        reduce_copy_bytes=8,
        note=(
            "parameters are views of the gathered flat parameter; gradients of the views are joined"
            " (2 + 2), then pre-divided (2 + 2)"
        ),
    ),
    stated(
        "https://github.com/pytorch/pytorch/blob/v2.0.1/torch/distributed/fsdp/_runtime_utils.py",
        off="sums_replicas_apart",
        note=(
            "the sum over replicas follows in the post-backward stream; a stream of its own came"
            " with 2.1; from memory"
        ),
    ),
    read(
        _BENCHMARK,
        full_recompute=FullRecompute.STOPS_EARLY,
        gather_prefetch=1,
        note=(
            "activation_checkpointing_reentrant is False (such a checkpoint stops early);"
            " limit_all_gathers"
        ),
    ),
    stated(_BENCHMARK, attention_kernel=AttentionKernel.TRITON, note="attn_impl, set to triton"),
    read(
        _API, on="reduce_every_microbatch", zero_stages=(2, 3), note="FULL_SHARD and SHARD_GRAD_OP"
    ),
    stated(
        _API,
        on="hybrid_sharding overlap_grad_reduce overlap_param_gather gathers_from_master",
        off="zero1_broadcasts",
        bucket_bytes=0,
    ),
    stated(
        f"{_COMPOSER}/mosaic_fsdp_utils.py",
        off="main_grad_copy",
        gradient_dtype=Dtype.FP32,
        note="parameters and optimizer in fp32, gathered in bf16",
    ),
    stated(
        f"{_COMPOSER}/dist_strategy.py",
        off=(
            "sequence_parallel context_ring context_gather context_ulysses expert_parallel"
            " overlap_p2p p2p_scatter_gather tp_input_regather optimizer_offload"
        ),
        tp_overlap=TpOverlap.NONE,
        zero_with_pipeline=0,
        schedules=("1f1b",),
        default_recompute="none",
        selective_recompute=SelectiveRecompute.CORE,
        note="data parallel only: no tensor, pipeline, context or expert parallelism",
    ),
    stated(
        "https://github.com/mosaicml/composer/blob/main/composer/core/precision.py",
        off="scales_reduced gathers_narrow gathers_quantized",
        on="saves_quantized",
        scaling=Scaling.DELAYED,
        note=(
            "Transformer Engine's delayed scaling; one autocast round the model: one reduction a"
            " pass, not counted"
        ),
    ),
    stated(_MODEL, element_kernels=ElementKernels.EAGER),
    stated(
        _MODEL,
        on="fused_loss",
        off="loss_bytes fused_weight_gradient adds_gradients",
        logits_bytes=4,
        embedding_gradient_bytes=2,
        note="loss_fn fused_crossentropy: bf16 logits and their gradient",
    ),
)
