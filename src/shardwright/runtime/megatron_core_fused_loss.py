"""Megatron-Core 0.12 with its own fused cross-entropy (``--cross-entropy-loss-fusion``, native implementation)."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import megatron_core_plain
from shardwright.runtime.facts import cite, derive

RUNTIME: Final = derive(
    megatron_core_plain.RUNTIME,
    name="megatron-core-0.12-fused-loss",
    fused_loss=True,
    logits_bytes=10,
    facts=cite(
        "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0/megatron/core/fusions/fused_cross_entropy.py",
        "fused_loss",
        "logits_bytes",
        note="three compiled graphs: bf16 logits, the first graph's fp32 copy, and the second's result, which is not in place",
    ),
)
