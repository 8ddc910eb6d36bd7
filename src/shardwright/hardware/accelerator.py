"""Accelerators: peak rates from data sheets and achieved rates, each with its source."""

from __future__ import annotations

from enum import StrEnum

from shardwright.dtype import Dtype as Dtype
from shardwright.lazily_compiled_dataclass import dataclass


class Evidence(StrEnum):
    """Kind of evidence for a number: measured, fitted, published or assumed."""

    MEASURED = "measured"
    FITTED = "fitted"
    PUBLISHED = "published"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Source of a number: the kind of evidence, and the file, page or paper."""

    evidence: Evidence
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRates:
    """Roofline of a GEMM (m, n, k) on one accelerator in one dtype: four numbers.

    t = ((2mnk / (ec P))^q + (bytes / (em BW))^q)^(1/q) + t0, with P and BW the peaks of the data
    sheet.

    Args:
        compute_efficiency: ec.
        memory_efficiency: em.
        overhead_s: t0 in seconds.
        exponent: q.
        sustained: factor >= 1 on the time of long runs against the short measurement (clocks under
            the power limit).
        error: relative half-width of an 80 % interval of this form against measurements.
    """

    dtype: Dtype
    compute_efficiency: float
    memory_efficiency: float
    overhead_s: float
    exponent: float
    sustained: float
    error: float
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """Achieved FLOP/s of one generation of fused attention kernels on one accelerator.

    Shares of peak FLOP/s against context length, piecewise linear in log2(length): (tokens,
    fraction) in rising order.

    Args:
        generation: ``flash-2``, ``flash-3``, ``cudnn``, ``triton`` ...
        forward: points of the forward kernel (only scores that the mask keeps are counted).
        backward_ratio: backward seconds over forward seconds at the same shape.
        reach: highest fraction of peak that the kernel's matrix instructions can issue at; the
            units are busy for fraction / reach.
        long_run: the rates hold in long runs: no sustained clock on top of them.
        backward: (head dim, value dim, fraction of peak at 2.5 x the forward's FLOPs) where the
            backward was measured; else the ratio.
    """

    generation: str
    forward: tuple[tuple[int, float], ...]
    backward_ratio: float
    origin: Origin
    reach: float = 1.0
    long_run: bool = False
    backward: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device: memory, peak and achieved rates. Units: bytes, bytes/s one way, dense FLOP/s.

    Args:
        name: catalog name, such as ``h100-sxm``.
        memory_bytes: memory that a program may allocate.
        memory_bandwidth: peak bytes/s.
        peak_flops: (dtype, dense FLOP/s) pairs.
        element_efficiency: achieved share of memory_bandwidth by streaming (element-wise) kernels.
        launch_s: seconds to launch a kernel when the queue is empty.
        overlap_slowdown: factor >= 1 on kernels that run beside a collective kernel.
        gemm: rates by dtype; a dtype that is missing falls back to the assumed default with a wide
            interval.
        attention: rates by kernel generation.
        failures_per_device_hour: unexpected interruptions, for goodput;
        failures_origin: where that figure comes from.
        assumed: names of the fields above that no measurement of this device backs.
    """

    name: str
    vendor: str
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: tuple[tuple[Dtype, float], ...]
    gemm: tuple[GemmRates, ...]
    attention: tuple[AttentionRates, ...]
    element_efficiency: float
    launch_s: float
    overlap_slowdown: float
    origin: Origin
    aliases: tuple[str, ...] = ()
    failures_per_device_hour: float = 0.0
    failures_origin: Origin | None = None
    assumed: tuple[str, ...] = ()

    def peak(self, dtype: Dtype) -> float:
        """Peak dense FLOP/s of `dtype` by the data sheet; 0.0 if the device has no such units."""
        return dict(self.peak_flops).get(dtype, 0.0)
