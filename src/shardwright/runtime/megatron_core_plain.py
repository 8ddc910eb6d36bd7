"""Megatron-Core 0.12 as its command line starts it: overlapped gradients, but no fused tensor-parallel overlap."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import megatron_core_0_12
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import TpOverlap

_TREE: Final = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0/megatron"

RUNTIME: Final = derive(
    megatron_core_0_12.RUNTIME,
    name="megatron-core-0.12-plain",
    tp_overlap=TpOverlap.DGRAD,
    facts=cite(
        f"{_TREE}/training/arguments.py",
        "tp_overlap",
        note="tp-comm-overlap is off by default; the asynchronous input-gradient collective is on",
    ),
    aliases=("megatron-core-plain",),
)
