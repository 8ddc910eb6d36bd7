"""Measurement of GEMMs of a training step's shapes: (m, k) x (k, n).

Both operands are contiguous, as in torch.nn.functional.linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Final

import torch

from shardwright.calibrate.kernel_timing import TORCH_DTYPES, Timer
from shardwright.dtype import Dtype
from shardwright.hardware.profile.measured_rates import GemmPoint

Shape = tuple[int, int, int]

_PROCESSOR: Final[tuple[Shape, ...]] = (
    *product((64, 256, 1024), (256, 1024), (256, 1024)),
    *product((1, 4, 16), (2048, 4096), (2048,)),
    (2048, 1024, 2048),
    (512, 2048, 2048),
    (128, 4096, 1024),
)
_ACCELERATOR: Final[tuple[Shape, ...]] = (
    *product((128, 512, 2048, 8192), (512, 1024, 4096, 8192), (512, 1024, 4096, 8192)),
    *product((2048, 8192), (14336, 28672), (4096, 8192)),
    *product((4096, 14336), (4096,), (16384, 65536)),
    *product((1, 16, 64), (4096, 14336), (4096,)),
)
_TINY: Final[tuple[Shape, ...]] = (
    (16, 64, 64),
    (64, 64, 64),
    (64, 128, 128),
    (128, 256, 128),
    (1, 512, 512),
)
_LONG: Final[dict[str, Shape]] = {"cpu": (1024, 1024, 1024), "cuda": (8192, 8192, 8192)}


def gemm_shapes(device: str, *, tiny: bool = False) -> tuple[Shape, ...]:
    """(m, n, k) of the GEMMs to measure on ``cpu`` or ``cuda``.

    Forward, both backwards, tensor-parallel shards, and few rows.
    """
    if tiny:
        return _TINY
    return _ACCELERATOR if device == "cuda" else _PROCESSOR


def measure_gemm(
    timer: Timer,
    dtype: Dtype,
    *,
    shapes: tuple[Shape, ...],
    step: Callable[[], None] = lambda: None,
) -> tuple[GemmPoint, ...]:
    """Measure the seconds of each GEMM shape in `dtype`; `step` is called after each."""
    points = []
    with _matmul_precision(dtype):
        for m, n, k in shapes:
            points.append(
                GemmPoint(m, n, k, timer.seconds(_make_gemm(timer.device, dtype, (m, n, k))))
            )
            step()
    return tuple(points)


def measure_sustained(
    timer: Timer, dtype: Dtype, *, seconds: float, shape: Shape | None = None
) -> float:
    """Ratio, at least 1, of a large GEMM's seconds in a long run to those in a short one."""
    with _matmul_precision(dtype):
        kernel = _make_gemm(timer.device, dtype, shape or _LONG[timer.device])
        short = timer.seconds(kernel)
        return max(timer.sustained(kernel, seconds=seconds) / short, 1.0)


def _make_gemm(device: str, dtype: Dtype, shape: Shape) -> Callable[[], torch.Tensor]:
    """Make a function that multiplies two random matrices of a shape."""
    m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(0)
    # Random values: a GEMM of zeros draws less power and keeps a higher clock.
    a = torch.randn(m, k, device=device, generator=generator).to(TORCH_DTYPES[dtype])
    b = torch.randn(n, k, device=device, generator=generator).to(TORCH_DTYPES[dtype])
    out = torch.empty(m, n, device=device, dtype=TORCH_DTYPES[dtype])
    return lambda: torch.mm(a, b.t(), out=out)


@contextmanager
def _matmul_precision(dtype: Dtype) -> Iterator[None]:
    """Context in which fp32 operands use TF32 units for `dtype` TF32, and full fp32 otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype is Dtype.TF32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
