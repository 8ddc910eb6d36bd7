"""GEMMs of a training step's shapes: (m, k) x (k, n), both operands contiguous as
torch.nn.functional.linear has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Final

import torch

from shardwright.calibrate.kernel_timing import TORCH_DTYPES, Timer
from shardwright.dtype import Dtype
from shardwright.hardware.profile.profile import GemmPoint

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
    """(m, n, k) to measure on ``cpu`` or ``cuda``: forward, both backwards, tensor-parallel shards,
    and few rows.
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
    """Seconds of each shape in `dtype`; `step` is called after each."""
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
    """Seconds of a large GEMM in a run of `seconds` over its short measurement after a rest, at
    least 1.
    """
    with _matmul_precision(dtype):
        kernel = _make_gemm(timer.device, dtype, shape or _LONG[timer.device])
        short = timer.seconds(kernel)
        return max(timer.sustained(kernel, seconds=seconds) / short, 1.0)


def _make_gemm(device: str, dtype: Dtype, shape: Shape) -> Callable[[], torch.Tensor]:
    m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(0)
    # Random values: a GEMM of zeros draws less power and keeps a higher clock.
    a = torch.randn(m, k, device=device, generator=generator).to(TORCH_DTYPES[dtype])
    b = torch.randn(n, k, device=device, generator=generator).to(TORCH_DTYPES[dtype])
    out = torch.empty(m, n, device=device, dtype=TORCH_DTYPES[dtype])
    return lambda: torch.mm(a, b.t(), out=out)


@contextmanager
def _matmul_precision(dtype: Dtype) -> Iterator[None]:
    """fp32 operands in tf32 units, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype is Dtype.TF32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
