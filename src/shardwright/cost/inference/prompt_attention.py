"""Seconds of attention over whole prompts."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.cost.kernels.gemm_element_attention_seconds import attention_seconds
from shardwright.model.ir.operator import AttentionShape


def prompt_seconds(
    machine: Machine, shape: AttentionShape, *, heads: int, lengths: IntArray
) -> FloatArray:
    """(p,) seconds of a layer's attention core over whole prompts, without its launch.

    `lengths`: tokens of each prompt; 0 seconds for a prompt of length 0.
    """
    local = np.full(1, heads, dtype=np.int64)
    seconds = [
        float(
            attention_seconds(
                machine, shape, tokens=np.full(1, n), heads=local, context=int(n), backward=False
            )[0]
        )
        if n
        else 0.0
        for n in lengths.tolist()
    ]
    return np.maximum(np.array(seconds) - machine.accelerator.launch_s, 0.0)
