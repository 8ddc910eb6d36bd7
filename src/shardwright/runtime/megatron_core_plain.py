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
    gradient_passes=2,
    scales_gradients=True,
    facts=(
        *cite(
            f"{_TREE}/training/arguments.py",
            "tp_overlap",
            note="tp-comm-overlap is off by default; the asynchronous input-gradient collective is on",
        ),
        *cite(
            "https://github.com/NVIDIA/Megatron-LM/blob/001199898c4badd01eaf0785c212d8ed7ce83042/megatron/core/distributed/param_and_grad_buffer.py",
            "gradient_passes",
            "scales_gradients",
            checked=True,
            note="check_grads takes the norm of every bucket before its collective, start_grad_sync multiplies grad_data by the scaling "
            "factor, and reset zeroes it; the check is on and ddp-average-in-collective off by default (from memory)",
        ),
    ),
    aliases=("megatron-core-plain",),
)
