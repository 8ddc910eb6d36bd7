"""Seconds of attention over cached keys: of tokens that decode, and of whole prompts."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.compute import Machine, attention_seconds
from shardwright.model.ir.operator import AttentionShape


def decode_columns(
    machine: Machine, shape: AttentionShape, *, heads: int, element_bytes: float, elements: int, sequences: IntArray, queries: int = 1
) -> tuple[FloatArray, FloatArray]:
    """(start, slope): seconds of a layer's core for D requests with K cached tokens in all, start(D) + slope(D) K, without its launch.

    slope = max(bytes of a cached token / achieved bandwidth, its FLOPs / achieved rate).

    Args:
        heads: local query heads. element_bytes: of a cached element; elements: local ones of a token. sequences: (s,) D. queries: tokens of
            a request.
    """
    device = machine.accelerator
    moving = elements * element_bytes / (device.element_efficiency * device.memory_bandwidth)
    computing = 2.0 * heads * queries * (shape.head_dim + shape.value_dim) / (machine.attention_peak * machine.gemm.compute_efficiency)
    return np.zeros(len(sequences)), np.full(len(sequences), max(moving, computing))


def prompt_seconds(machine: Machine, shape: AttentionShape, *, heads: int, lengths: IntArray) -> FloatArray:
    """(p,) seconds of a layer's core over whole prompts of so many tokens, without its launch; 0 for none."""
    local = np.full(1, heads, dtype=np.int64)
    found = [
        float(attention_seconds(machine, shape, tokens=np.full(1, n), heads=local, context=int(n), backward=False)[0]) if n else 0.0
        for n in lengths.tolist()
    ]
    return np.maximum(np.array(found) - machine.accelerator.launch_s, 0.0)
