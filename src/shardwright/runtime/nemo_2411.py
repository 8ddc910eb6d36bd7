"""NeMo 24.09 to 25.05 and Megatron-Bridge: as 24.07, with cuDNN attention and fused cross-entropy."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import nemo_2407
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import AttentionKernel, ExpertDispatch

RUNTIME: Final = derive(
    nemo_2407.RUNTIME,
    name="nemo-24.11",
    version="24.11",
    released="2024-11",
    attention_kernel=AttentionKernel.CUDNN,
    fused_loss=True,
    loss_bytes=36,
    expert_dispatch=ExpertDispatch.DEDUPLICATED,
    zero_stages=(0, 1, 2, 3),
    hybrid_sharding=True,
    facts=(
        *cite(
            "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/attention/attention.html",
            "attention_kernel",
            note="cuDNN attention is preferred on Hopper",
        ),
        *cite(
            "https://github.com/NVIDIA/NeMo/blob/v2.1.0/nemo/collections/llm/gpt/model/base.py",
            "fused_loss",
            "loss_bytes",
            note="cross_entropy_loss_fusion is on in the model configurations: Megatron-Core's fused_cross_entropy, compiled in parts: "
            "cast and max 6, exponentials 12, division 8, gradient 10 bytes a logit",
        ),
        *cite(
            "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/training/megatron-fsdp.md",
            "zero_stages",
            "hybrid_sharding",
            note="stages 2 and 3 are Megatron-FSDP (Megatron-Bridge)",
        ),
        *cite(
            "https://docs.nvidia.com/nemo/megatron-bridge/nightly/skills/nemo-mbridge-perf-moe-dispatcher-selection/SKILL.html",
            "expert_dispatch",
            checked=True,
            note="DeepEP on H100 and B200, HybridEP on GB200 and GB300",
        ),
    ),
    aliases=("nemo", "nemo-2411", "nemo-25.02"),
)
