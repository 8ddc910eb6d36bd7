"""Rates of one accelerator for a job and a runtime: GEMMs, attention, memory, launches.

Rates come from the accelerator (measured or fitted tables, or stated defaults); nothing here is
fitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import (
    Accelerator,
    AttentionRates,
    Evidence,
    GemmRates,
    Origin,
)
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED, Constants, clock_ratio
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    Scaling,
)

EIGHT_BIT_ATTENTION = 1.6
"""Speed of fused attention in 8 bits over 16: FlashAttention-3 reaches 1.2 PFLOP/s against 740
TFLOP/s on H100 (arXiv 2407.08608)."""


DEFAULT_GEMM = GemmRates(
    dtype=Dtype.BF16,
    compute_efficiency=0.75,
    memory_efficiency=0.78,
    overhead_s=4e-6,
    exponent=2.5,
    sustained=1.15,
    error=0.25,
    origin=Origin(evidence=Evidence.ASSUMED, reference="mid of the fitted devices"),
)


DEFAULT_ATTENTION = AttentionRates(
    generation="default",
    forward=((512, 0.15), (2048, 0.35), (8192, 0.45)),
    backward_ratio=2.5,
    origin=Origin(evidence=Evidence.ASSUMED, reference="mid of the measured devices"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One accelerator with the rates that a job and a runtime select from it.

    Args:
        compute: dtype of GEMMs.
        gemm: its rates, with the sustained clock of the constants.
        half: rates of 16-bit GEMMs.
        attention: rates of the runtime's kernel.
        attention_seconds: fitted factor on its seconds.
        passes: traffic of element-wise kernels over the minimal bytes.
        native_passes: of those that are one kernel in any framework.
        host_launch_s: seconds of the host a kernel.
        half_bits: width above which nothing is quantised.
        scaling: of 8-bit operands.
        saves_quantised: inputs are kept for the weight gradient as they were quantised.
        free_parts: parts that take no time (`Problem.free_parts`).
    """

    accelerator: Accelerator
    compute: Dtype
    peak: float
    gemm: GemmRates
    half: GemmRates
    attention: AttentionRates
    attention_seconds: float
    attention_peak: float
    passes: float
    native_passes: float
    host_launch_s: float
    half_bits: int = 16
    scaling: Scaling = Scaling.CURRENT
    saves_quantised: bool = True
    free_parts: frozenset[str] = frozenset()


def machine_of(
    accelerator: Accelerator,
    *,
    compute: Dtype,
    attention: AttentionKernel,
    elements: ElementKernels,
    constants: Constants = SHIPPED,
    eight_bit: bool = False,
    scaling: Scaling = Scaling.CURRENT,
    saves_quantised: bool = True,
    free_parts: frozenset[str] = frozenset(),
) -> Machine:
    """Rates of GEMMs, attention and memory that apply to a job on an accelerator.

    A dtype or kernel without rates of its own takes the device's nearest, then a stated default.
    """
    rates = {r.dtype: r for r in accelerator.gemm}
    half = Dtype.BF16 if accelerator.peak(Dtype.BF16) else Dtype.FP16
    dtype = compute if accelerator.peak(compute) else half
    chosen = (
        rates.get(dtype) or (rates.get(Dtype.BF16) if dtype is Dtype.FP16 else None) or DEFAULT_GEMM
    )
    by_generation = {a.generation: a for a in accelerator.attention}
    fused = [a for a in accelerator.attention if a.generation != "unfused"]
    kernel = by_generation.get(attention.value) or (fused[0] if fused else DEFAULT_ATTENTION)
    return Machine(
        accelerator=accelerator,
        compute=dtype,
        peak=accelerator.peak(dtype),
        gemm=_at_clock(chosen, accelerator=accelerator, constants=constants),
        half=_at_clock(rates.get(half) or chosen, accelerator=accelerator, constants=constants),
        attention=kernel,
        attention_seconds=constants.attention_triton if kernel.generation == "triton" else 1.0,
        attention_peak=(accelerator.peak(half) or accelerator.peak(dtype))
        * (EIGHT_BIT_ATTENTION if eight_bit and dtype.bits <= 8 else 1.0),
        passes=constants.passes_eager
        if elements is ElementKernels.EAGER
        else constants.passes_fused,
        native_passes=constants.passes_native
        if elements is ElementKernels.EAGER
        else constants.passes_fused,
        host_launch_s=constants.host_launch,
        scaling=scaling,
        saves_quantised=saves_quantised,
        free_parts=free_parts,
    )


def _at_clock(rates: GemmRates, *, accelerator: Accelerator, constants: Constants) -> GemmRates:
    """GEMM rates with the sustained-clock factor of the fitted constants."""
    ratio = clock_ratio(constants, accelerator=accelerator.name, dtype=rates.dtype)
    return rates if ratio == 1.0 else replace(rates, sustained=rates.sustained * ratio)


def sixteen_bit_machine(machine: Machine) -> Machine:
    """`machine` with 16-bit GEMM rates if it computes in another dtype of as many bits or fewer.

    (`stays_wide`).
    """
    half = Dtype.BF16 if machine.accelerator.peak(Dtype.BF16) else Dtype.FP16
    if machine.compute.bits <= half.bits and machine.compute is not half:
        return replace(
            machine, compute=half, peak=machine.accelerator.peak(half), gemm=machine.half
        )
    return machine


OPERATOR_S: Final = 7.5e-6
"""Host seconds of an operator of PyTorch that no module of a framework wraps: 5 to 10 us (the prior
of `host_launch` has the same range).

DeepSpeed issue 1069 shows 0.13 + 0.25 ms for an all_gather of a list of small parameters, its
Python and debugging included.
"""
