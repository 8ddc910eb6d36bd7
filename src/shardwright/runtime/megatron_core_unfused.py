"""Megatron-Core 0.12 with Transformer Engine told to write attention scores to memory (``--attention-backend unfused``)."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import megatron_core_plain
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import AttentionKernel

_TREE: Final = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0"

RUNTIME: Final = derive(
    megatron_core_plain.RUNTIME,
    name="megatron-core-0.12-unfused",
    attention_kernel=AttentionKernel.UNFUSED,
    fused_weight_gradient=False,
    facts=(
        *cite(f"{_TREE}/megatron/core/transformer/enums.py", "attention_kernel", note="AttnBackend.unfused turns NVTE_UNFUSED_ATTN on"),
        *cite(
            f"{_TREE}/tests/functional_tests/test_cases/gpt",
            "fused_weight_gradient",
            note="where the flag is used, in functional tests, no-gradient-accumulation-fusion is set too",
        ),
    ),
)
