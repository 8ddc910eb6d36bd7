"""Timing of a kernel: CUDA events or the processor's clock; warm-up, repetitions, median."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import torch

from shardwright.dtype import Dtype
from shardwright.lazily_compiled_dataclass import dataclass

TORCH_DTYPES: Final = {
    Dtype.FP32: torch.float32,
    Dtype.TF32: torch.float32,
    Dtype.BF16: torch.bfloat16,
    Dtype.FP16: torch.float16,
}
"""Number formats that are measured. fp8 and fp4 GEMMs need scales and layouts of their own and are
not measured.
"""

_MAX_INNER: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """Timer of kernels on one device: repetitions, warm-up, and shortest timing.

    Args:
        device: ``cpu`` or ``cuda``.
        repetitions: number of timings, of which the median is taken.
        warm_up: number of runs before them.
        shortest_s: shortest timing; a kernel is repeated until it lasts so long, so that the
            resolution of the clock and the cost of events do not matter.
    """

    device: str
    repetitions: int = 5
    warm_up: int = 2
    shortest_s: float = 1e-3

    def seconds(self, kernel: Callable[[], Any]) -> float:
        """Median seconds of one call of a kernel, after warm-up."""
        for _ in range(max(self.warm_up, 1)):
            kernel()
        once = self.span(kernel, 1)
        inner = min(max(int(self.shortest_s / max(once, 1e-7)), 1), _MAX_INNER)
        return median(self.span(kernel, inner) / inner for _ in range(self.repetitions))

    def span(self, kernel: Callable[[], Any], times: int) -> float:
        """Total seconds of `times` calls of a kernel in a row."""
        if self.device != "cuda":
            start = time.perf_counter()
            for _ in range(times):
                kernel()
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(times):
            kernel()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def sustained(self, kernel: Callable[[], Any], *, seconds: float) -> float:
        """Mean seconds of one call in the second half of a run that lasts at least `seconds`.

        Clocks have settled under the power limit by then.
        """
        once = max(self.seconds(kernel), 1e-7)
        chunk = max(int(seconds / 20 / once), 1)
        spans: list[float] = []
        while sum(spans) < seconds:
            spans.append(self.span(kernel, chunk))
        late = spans[len(spans) // 2 :]
        return sum(late) / len(late) / chunk


def native_dtypes(device: str) -> tuple[Dtype, ...]:
    """GEMM formats to measure: BF16, FP16, TF32 on GPUs from 8.0, FP16, FP32 older, FP32 on CPU."""
    if device == "cuda":
        major = torch.cuda.get_device_capability()[0]
        return (Dtype.BF16, Dtype.FP16, Dtype.TF32) if major >= 8 else (Dtype.FP16, Dtype.FP32)
    return (Dtype.FP32,)
