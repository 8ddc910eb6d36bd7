"""Accelerators from data sheets: unit conversion, and stated defaults for missing rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import (
    Accelerator,
    AttentionRates,
    Evidence,
    GemmRates,
    Origin,
)
from shardwright.hardware.catalog.achieved_gemm_attention_rates import (
    ATTENTION_KERNELS,
    SUSTAINED_ASSUMED,
    assumed_attention,
    assumed_gemm,
)
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED
from shardwright.units import GIB, GIGA, TERA

ELEMENT_EFFICIENCY: Final = 0.8
LAUNCH_S: Final = 3e-6
OVERLAP_SLOWDOWN: Final = SHIPPED.overlap_slowdown

# 419 unexpected interruptions of 16,384 devices in 54 days.
LLAMA_3_FAILURES: Final = 419 / (54 * 24 * 16384)
_LLAMA_3: Final = (
    "Llama 3 paper (arXiv 2407.21783): 419 unexpected interruptions in 54 days on 16,384 H100"
)
_ASSUMED_FIELDS: Final = ("element_efficiency", "launch_s")


Peaks = tuple[tuple[Dtype, float], ...]


def dense_tflops(
    *,
    bf16: float = 0.0,
    fp16: float = 0.0,
    fp8: float = 0.0,
    fp4: float = 0.0,
    tf32: float = 0.0,
    fp32: float = 0.0,
) -> Peaks:
    """(dtype, dense FLOP/s) pairs from a data sheet's TFLOP/s; dtypes of 0 are left out.

    Dense figures are half of a sheet's sparse figures.
    """
    sheet = (
        (Dtype.BF16, bf16),
        (Dtype.FP16, fp16),
        (Dtype.FP8, fp8),
        (Dtype.FP4, fp4),
        (Dtype.TF32, tf32),
        (Dtype.FP32, fp32),
    )
    return tuple((dtype, value * TERA) for dtype, value in sheet if value > 0)


def accelerator_from_sheet(
    name: str,
    *,
    vendor: str,
    memory_gib: float,
    memory_gb_per_s: float,
    peaks: Peaks,
    reference: str,
    gemm: tuple[GemmRates, ...] = (),
    attention: tuple[AttentionRates, ...] = (),
    aliases: tuple[str, ...] = (),
    evidence: Evidence = Evidence.PUBLISHED,
    gemm_efficiency: float = 0.7,
    sustained: float = SUSTAINED_ASSUMED,
    failures: Mapping[str, float] | None = None,
    kernels: tuple[str, ...] = (),
) -> Accelerator:
    """Build an accelerator from its data sheet, with default rates where no fit is given.

    Args:
        memory_gib: memory that a program may allocate, GiB.
        memory_gb_per_s: peak of the memory, 10^9 bytes/s.
        peaks: see `dense_tflops`.
        reference: source of the sheet's numbers.
        gemm: fitted rates; other dtypes get the assumed default with `gemm_efficiency` of peak and
            `sustained`.
        attention: rates by generation; empty = the assumed curve.
        kernels: fused attention kernels that exist on the device; empty = those of its vendor.
        failures: one entry, reference -> interruptions a device-hour; None = the Llama 3 figure,
            assumed to carry over.

    Element-wise kernels at 0.8 of memory bandwidth and 3 us a launch are the corrections that
    aiconfigurator-core 0.12.0 ships for all its devices, assumed for all; kernels beside a
    collective run longer by a fitted constant (multiprocessors and memory serve the network).
    """
    fitted = {g.dtype for g in gemm}
    defaults = tuple(
        assumed_gemm(dtype, compute=gemm_efficiency, sustained=sustained)
        for dtype, _ in peaks
        if dtype not in fitted
    )
    where, rate = next(
        iter((failures or {f"assumed as for H100: {_LLAMA_3}": LLAMA_3_FAILURES}).items())
    )
    known = failures is not None
    return Accelerator(
        name=name,
        vendor=vendor,
        memory_bytes=round(memory_gib * GIB),
        memory_bandwidth=memory_gb_per_s * GIGA,
        peak_flops=peaks,
        gemm=(*gemm, *defaults),
        attention=attention
        or assumed_attention(kernels or ATTENTION_KERNELS.get(vendor, ("fused",))),
        element_efficiency=ELEMENT_EFFICIENCY,
        launch_s=LAUNCH_S,
        overlap_slowdown=OVERLAP_SLOWDOWN,
        origin=Origin(evidence=evidence, reference=reference),
        aliases=aliases,
        failures_per_device_hour=rate,
        failures_origin=Origin(
            evidence=Evidence.PUBLISHED if known else Evidence.ASSUMED, reference=where
        ),
        assumed=_ASSUMED_FIELDS if known else (*_ASSUMED_FIELDS, "failures_per_device_hour"),
    )


def accelerator_with_aliases(names: str, **facts: Any) -> Accelerator:
    """Build an accelerator from its sheet; `names` has its name and aliases, spaces between.

    See `accelerator_from_sheet`.
    """
    name, *aliases = names.split()
    return accelerator_from_sheet(name, aliases=tuple(aliases), **facts)


HOPPER_FAILURES: Final[Mapping[str, float]] = {_LLAMA_3: LLAMA_3_FAILURES}
# 6.5 failures per 1,000 node-days of 8 devices.
AMPERE_FAILURES: Final[Mapping[str, float]] = {
    "Meta RSC-1 (arXiv 2410.21680): 6.5 failures per 1,000 node-days; from memory": 6.5
    / 1000
    / 24
    / 8
}
