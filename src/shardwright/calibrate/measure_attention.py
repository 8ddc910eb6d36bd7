"""Measurement of causal attention by the backends of torch's scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from shardwright.calibrate.kernel_timing import TORCH_DTYPES, Timer
from shardwright.dtype import Dtype
from shardwright.hardware.profile.measured_rates import AttentionPoint

Shape = tuple[int, int, int, int]

BACKENDS: Final = {"flash-2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
"""Kernel generation -> torch's backend. The math backend has no entry: its time is priced as GEMMs
and softmax traffic.
"""

_PROCESSOR: Final[tuple[Shape, ...]] = tuple(
    (1, heads, 64, length) for length in (128, 256, 512, 1024, 2048) for heads in (4, 8)
)
_ACCELERATOR: Final[tuple[Shape, ...]] = tuple(
    (max(8192 // length, 1), heads, 128, length)
    for length in (512, 1024, 2048, 4096, 8192, 16384)
    for heads in (16, 32)
)
_TINY: Final[tuple[Shape, ...]] = ((1, 2, 16, 32), (1, 2, 16, 64))


def attention_shapes(device: str, *, tiny: bool = False) -> tuple[Shape, ...]:
    """(batch, heads, head_dim, length) of the attentions to measure on ``cpu`` or ``cuda``."""
    if tiny:
        return _TINY
    return _ACCELERATOR if device == "cuda" else _PROCESSOR


def attention_generations(device: str) -> tuple[str, ...]:
    """Attention kernel generations to measure: all that torch has on CUDA, flash-2 on a CPU."""
    return tuple(BACKENDS) if device == "cuda" else ("flash-2",)


def measure_attention(
    timer: Timer,
    generation: str,
    *,
    dtype: Dtype,
    shapes: tuple[Shape, ...],
    step: Callable[[], None] = lambda: None,
) -> tuple[AttentionPoint, ...]:
    """Measure forward and backward seconds of one attention kernel, for each shape.

    Args:
        generation: the kernel, a key of `BACKENDS`, such as flash-2 or cudnn.
        step: called after each shape, for a progress report.

    Raises:
        RuntimeError: torch's, where the device, the dtype or the build lacks this kernel.
    """
    points = []
    with sdpa_kernel(BACKENDS[generation]):
        for batch, heads, head_dim, length in shapes:
            forward, backward = _forward_backward_seconds(
                timer, (batch, heads, length, head_dim), TORCH_DTYPES[dtype]
            )
            points.append(AttentionPoint(batch, heads, head_dim, length, forward, backward))
            step()
    return tuple(points)


def _forward_backward_seconds(
    timer: Timer, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> tuple[float, float]:
    """Median seconds of forward and of backward for one shape."""
    q, k, v = (
        torch.randn(shape, device=timer.device, dtype=dtype, requires_grad=True) for _ in range(3)
    )

    def forward() -> torch.Tensor:
        """Run the attention kernel forward."""
        with torch.no_grad():
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = torch.randn_like(out)

    def backward() -> Any:
        """Run the attention kernel backward, keeping the graph."""
        return torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    return timer.seconds(forward), timer.seconds(backward)
