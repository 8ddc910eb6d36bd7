"""NeMo 25.04 and later: as 24.11, with Transformer Engine's cross-entropy."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import nemo_2411
from shardwright.runtime.facts import cite, derive

RUNTIME: Final = derive(
    nemo_2411.RUNTIME,
    name="nemo-25.04",
    version="25.04",
    released="2025-04",
    loss_bytes=10,
    row_kernels=True,
    facts=(
        *cite(
            "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/595",
            "loss_bytes",
            note="cross_entropy_fusion_impl te: statistics 2, gradient in place of the logits 4, scaled 4 bytes",
        ),
        *cite(
            "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/595",
            "row_kernels",
            note="Triton in Transformer Engine; recipes of mixtures set moe_permute_fusion (from memory)",
        ),
    ),
)
