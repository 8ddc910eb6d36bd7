"""Seconds, FLOPs and bytes of a recurrence in chunks (Mamba-2, gated delta rules)."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.multiprocessors_and_gemm_tiles import MULTIPROCESSORS
from shardwright.model.ir.operator import ScanShape

STATE: Final = (12, 34)
INNER: Final = (6, 22)
SCORES: Final = (8, 24)
SHARED: Final = (8, 24)
"""Bytes an element, forward and backward: see above."""

FLOPS_A_CLOCK: Final = 130.0
"""FLOPs of a chunked scan (`scan_flops`, backward 2.5 of it) that one multiprocessor does in a
clock.

Triton's kernels of Mamba-2 wait for their own small products, exponentials and shared memory: what
they take goes with multiprocessors and clock, not with matrix units or bandwidth. Source: training
of Mamba-2 with 48 layers of width 2048 (64 heads of 64, states of 128, chunks of 256) on 4 x 4096
tokens in bf16 at 102.5, 239.2 and 360.4 TFLOP/s on A100, H200 and GB200 (state-spaces/mamba#904; at
6 FLOPs for each of 1.4e9 parameters and token): what products, other kernels and the update take
here leaves 93, 123 and 132 FLOPs a clock to the scans.
"""
_THIRD: Final = 1 / 3
"""Share of the GEMM rate where multiprocessors are not listed (assumed)."""


def scan_flops(
    shape: ScanShape, *, tokens: IntArray, heads: IntArray, causal: bool = True
) -> FloatArray:
    """FLOPs of a chunked scan's forward over (r,) tokens and heads.

    2 x tokens x (chunk x (groups x state + heads x head_dim) / 2 + 2 x heads x state x head_dim).

    Inside a chunk: scores C B^T, one product a group, and each head's product of them and X (causal
    half; the whole chunk if `causal` is false); across chunks: building and reading the state.

    Args:
        tokens, heads: local, shape (r,); with fewer groups than parts, each part has one.

    Leaves out the recurrence between chunks, the convolution, and a delta rule's triangular solve.
    Source: Dao and Gu 2024 (arXiv 2405.21060), section 6.
    """
    groups = np.maximum(shape.groups * heads // shape.heads, 1)
    inside = shape.chunk * (groups * shape.state + heads * shape.head_dim) / (2 if causal else 1)
    return np.asarray(
        2.0 * tokens * (inside + 2.0 * heads * shape.state * shape.head_dim), dtype=np.float64
    )


def scan_bytes(
    shape: ScanShape, *, tokens: IntArray, heads: IntArray, backward: bool
) -> FloatArray:
    """Bytes that the kernels of a chunked scan read and write in a forward or backward pass.

    See the table above.

    Args:
        tokens, heads: local, shape (r,).
    """
    groups = np.maximum(shape.groups * heads // shape.heads, 1)
    inner = heads * shape.head_dim
    a_token = (
        STATE[backward] * inner * shape.state / shape.chunk
        + INNER[backward] * inner
        + SCORES[backward] * groups * shape.chunk
        + SHARED[backward] * groups * shape.state
    )
    return np.asarray(tokens * a_token, dtype=np.float64)


def scan_seconds(
    machine: Machine, shape: ScanShape, *, tokens: IntArray, heads: IntArray, backward: bool
) -> FloatArray:
    """Seconds of a chunked scan: the larger of compute and memory time, and four launches.

        t = max(FLOPs / (multiprocessors x clock x `FLOPS_A_CLOCK`), bytes / achieved bandwidth)
            + 4 launches

    FLOPs of backward are 2.5 times those of forward. A lower bound of the sum over its kernels,
    each of which takes the longer of the two.
    """
    device = machine.accelerator
    flops = scan_flops(shape, tokens=tokens, heads=heads) * (2.5 if backward else 1.0)
    computing = flops / scan_rate(machine)
    moving = scan_bytes(shape, tokens=tokens, heads=heads, backward=backward) / (
        device.element_efficiency * device.memory_bandwidth
    )
    return np.asarray(np.maximum(computing, moving) + 4 * device.launch_s, dtype=np.float64)


def scan_rate(machine: Machine) -> float:
    """FLOP/s at which the kernels of a chunked scan compute.

    `FLOPS_A_CLOCK` of each multiprocessor at the clock of the device's peak.
    """
    parts = MULTIPROCESSORS.get(machine.accelerator.name)
    if parts is None or not parts.multiplications:
        return _THIRD * machine.gemm.compute_efficiency * machine.attention_peak
    half = machine.accelerator.peak(Dtype.BF16) or machine.accelerator.peak(Dtype.FP16)
    return FLOPS_A_CLOCK * half / (2 * parts.multiplications)
