"""MosaicML's llm-foundry on Composer and FSDP1, as benchmarked in 2023: Triton flash attention, eager kernels."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime import torchtitan_0_2
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, FullRecompute, SelectiveRecompute, TpOverlap

_BENCHMARK: Final = (
    "https://github.com/mosaicml/llm-foundry/blob/12a631913c786ac70e33e42047d2eae6f443ee69/scripts/train/benchmarking/submit_benchmarks.py"
)
_API: Final = "https://pytorch.org/docs/2.0/_modules/torch/distributed/fsdp/api.html"
_COMPOSER: Final = "https://github.com/mosaicml/composer/blob/v0.16.0/composer/trainer"

RUNTIME: Final = derive(
    torchtitan_0_2.RUNTIME,
    name="fsdp1-llm-foundry",
    framework="llm-foundry",
    version="0.3",
    released="2023-09",
    gradient_dtype=Dtype.FP32,
    zero_stages=(2, 3),
    zero_with_pipeline=0,
    hybrid_sharding=True,
    schedules=("1f1b",),
    sequence_parallel=False,
    context_ring=False,
    context_gather=False,
    context_ulysses=False,
    expert_parallel=False,
    overlap_p2p=False,
    gather_prefetch=1,
    tp_overlap=TpOverlap.NONE,
    element_kernels=ElementKernels.EAGER,
    attention_kernel=AttentionKernel.TRITON,
    full_recompute=FullRecompute.STOPS_EARLY,
    selective_recompute=SelectiveRecompute.CORE,
    fused_loss=True,
    logits_bytes=4,
    default_recompute="none",
    gathers_from_master=True,
    gradient_wire=Dtype.BF16,
    gather_copy_bytes=0,
    reduce_copy_bytes=8,
    facts=(
        *cite(
            "https://github.com/mosaicml/composer/pull/2628",
            "gradient_wire",
            checked=True,
            note="until October 2023 DEFAULT set no reduce_dtype, and FSDP takes the parameters' dtype then; PURE sets bf16",
        ),
        *cite(
            "https://github.com/pytorch/pytorch/blob/v2.0.1/torch/distributed/fsdp/_runtime_utils.py",
            "gather_copy_bytes",
            "reduce_copy_bytes",
            checked=True,
            note="parameters are views of the gathered flat parameter; gradients of the views are joined (2 + 2), then pre-divided (2 + 2)",
        ),
        *cite(
            _BENCHMARK,
            "full_recompute",
            "gather_prefetch",
            checked=True,
            note="activation_checkpointing_reentrant is False (such a checkpoint stops early); limit_all_gathers",
        ),
        *cite(_BENCHMARK, "attention_kernel", note="attn_impl, set to triton"),
        *cite(_API, "zero_stages", "reduce_every_microbatch", checked=True, note="FULL_SHARD and SHARD_GRAD_OP"),
        *cite(
            _API,
            "hybrid_sharding",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "bucket_bytes",
            "gathers_from_master",
            "zero1_broadcasts",
        ),
        *cite(
            f"{_COMPOSER}/mosaic_fsdp_utils.py",
            "gradient_dtype",
            "main_grad_copy",
            note="parameters and optimizer in fp32, gathered in bf16",
        ),
        *cite(
            f"{_COMPOSER}/dist_strategy.py",
            "zero_with_pipeline",
            "schedules",
            "sequence_parallel",
            "context_ring",
            "context_gather",
            "context_ulysses",
            "expert_parallel",
            "overlap_p2p",
            "p2p_scatter_gather",
            "tp_overlap",
            "tp_input_regather",
            "default_recompute",
            "selective_recompute",
            "optimizer_offload",
            note="data parallel only: no tensor, pipeline, context or expert parallelism",
        ),
        *cite(
            "https://github.com/mosaicml/composer/blob/main/composer/core/precision.py",
            "scales_reduced",
            note="one autocast round the model: one reduction a pass, not counted",
        ),
        *cite("https://github.com/mosaicml/llm-foundry/blob/8c8dd48f7216/llmfoundry/models/mpt/modeling_mpt.py", "element_kernels"),
        *cite(
            "https://github.com/mosaicml/llm-foundry/blob/8c8dd48f7216/llmfoundry/models/mpt/modeling_mpt.py",
            "fused_loss",
            "logits_bytes",
            "loss_bytes",
            "embedding_gradient_bytes",
            "fused_weight_gradient",
            "adds_gradients",
            note="loss_fn fused_crossentropy: bf16 logits and their gradient",
        ),
    ),
    aliases=("mosaic", "llm-foundry", "fsdp1"),
)
