"""Megatron-Core 0.12 without Transformer Engine (``--transformer-impl local``): its own layers and unfused attention."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import megatron_core_unfused
from shardwright.runtime.facts import cite, derive
from shardwright.units import MIB

_CORE: Final = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0/megatron/core"

RUNTIME: Final = derive(
    megatron_core_unfused.RUNTIME,
    name="megatron-core-0.12-local",
    workspace_bytes=32 * MIB,
    saves_quantized=False,
    facts=(
        *cite(f"{_CORE}/transformer/dot_product_attention.py", "attention_kernel", note="baddbmm, softmax, dropout, bmm"),
        *cite(f"{_CORE}/tensor_parallel/layers.py", "saves_quantized", note="no fp8"),
        *cite("https://docs.nvidia.com/cuda/cublas/#cublassetworkspace", "workspace_bytes", note="PyTorch's own 32 MiB"),
    ),
)
