"""InternEvo (InternLM) 2023-24: eager kernels, flash attention, ZeRO-1 with a shard group that may be one node."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime import deepspeed_0_16
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import ElementKernels, TpOverlap
from shardwright.units import MIB

_CONFIG: Final = "https://github.com/InternLM/InternEvo/blob/00de61348f53850e5aea5ed5003996220cc64116/configs/7B_sft.py"
_SOLVER: Final = "https://github.com/InternLM/InternEvo/blob/main/internlm/solver/optimizer/hybrid_zero_optim.py"

RUNTIME: Final = derive(
    deepspeed_0_16.RUNTIME,
    name="internevo",
    framework="InternEvo",
    version="0.3",
    released="2024-02",
    gradient_dtype=Dtype.BF16,
    zero_stages=(0, 1, 3),
    zero_with_pipeline=1,
    hybrid_sharding=True,
    optimizer_offload=False,
    schedules=("1f1b", "interleaved-1f1b"),
    sequence_parallel=True,
    context_ulysses=False,
    expert_parallel=False,
    overlap_param_gather=False,
    bucket_bytes=512 * MIB,
    reduce_every_microbatch=False,
    tp_overlap=TpOverlap.DGRAD,
    element_kernels=ElementKernels.EAGER,
    logits_bytes=6,
    zero1_broadcasts=True,
    facts=(
        *cite(
            _CONFIG,
            "overlap_grad_reduce",
            "overlap_param_gather",
            "bucket_bytes",
            "hybrid_sharding",
            "sequence_parallel",
            "default_recompute",
            "attention_kernel",
            "zero_stages",
            checked=True,
            note="overlap_sync_grad on, overlap_sync_param off, reduce_bucket_size 512 MiB, tensor modes mtp and msp, checkpoint off",
        ),
        *cite(
            _SOLVER,
            "gradient_dtype",
            "main_grad_copy",
            "zero_with_pipeline",
            "optimizer_offload",
            "reduce_every_microbatch",
            "zero1_broadcasts",
            "gathers_from_master",
            note="each owner broadcasts its updated parameters in turn",
        ),
        *cite(
            "https://github.com/InternLM/InternEvo/blob/main/internlm/core/scheduler/pipeline_scheduler.py",
            "schedules",
            "overlap_p2p",
            "context_ulysses",
            "expert_parallel",
        ),
        *cite("https://github.com/InternLM/InternEvo/blob/main/internlm/model/modeling_internlm.py", "element_kernels", "tp_overlap"),
        *cite("https://github.com/InternLM/InternEvo/blob/main/internlm/model/losses/ce_loss.py", "fused_loss", "logits_bytes"),
    ),
    aliases=("internlm",),
)
