"""NeMo 24.07: Megatron-Core with Transformer Engine's userbuffers and bf16 gradient reduction."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime import megatron_core_0_12
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import AttentionKernel, TpOverlap

_GUIDE: Final = "https://docs.nvidia.com/nemo-framework/user-guide/24.12/nemotoolkit/features/optimizations/communication_overlap.html"

RUNTIME: Final = derive(
    megatron_core_0_12.RUNTIME,
    name="nemo-24.07",
    framework="NeMo",
    version="24.07",
    released="2024-07",
    gradient_dtype=Dtype.BF16,
    bucket_bytes=0,
    tp_overlap=TpOverlap.FUSED,
    attention_kernel=AttentionKernel.FLASH_2,
    zero_stages=(0, 1),
    zero_with_pipeline=1,
    hybrid_sharding=False,
    optimizer_offload=False,
    facts=(
        *cite(
            _GUIDE,
            "gradient_dtype",
            "bucket_bytes",
            "overlap_grad_reduce",
            "overlap_param_gather",
            checked=True,
            note="gradients are reduced in bf16 (grad_sync_dtype); communication is chunked by transformer layer",
        ),
        *cite(_GUIDE, "tp_overlap", note="ub_tp_comm_overlap: bulk and pipelined overlap of tensor-parallel collectives with their GEMMs"),
        *cite(
            "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/attention/attention.html",
            "attention_kernel",
            note="flash-attention 2 was preferred before cuDNN became the default on Hopper",
        ),
        *cite(
            "https://github.com/NVIDIA/NeMo/blob/v2.0.0/nemo/core/optim/distributed_adam.py",
            "zero_stages",
            "zero_with_pipeline",
            "hybrid_sharding",
            "optimizer_offload",
        ),
    ),
    aliases=("nemo-2407",),
)
