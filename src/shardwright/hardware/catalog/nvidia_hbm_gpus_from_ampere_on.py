"""Table of NVIDIA GPUs with HBM, from Ampere on. Peaks are dense; memory is the allocatable part.

A program may allocate nvidia-smi's total less 0.6 GiB (81,559 MiB and 79.11 GiB on an H100).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import GemmRates
from shardwright.hardware.catalog.accelerator_from_data_sheet import (
    AMPERE_FAILURES,
    HOPPER_FAILURES,
    accelerator_with_aliases,
    dense_tflops,
)
from shardwright.hardware.catalog.achieved_gemm_attention_rates import (
    SUSTAINED_A100,
    SUSTAINED_B200,
    SUSTAINED_B200_FP8,
    SUSTAINED_H100,
    SUSTAINED_H100_FP8,
    ampere_attention,
    blackwell_attention,
    fitted_gemm,
    gemm_rates_of_similar_device,
    hopper_attention,
)

_TABLES: Final = "aiconfigurator-core 0.12.0 system file"
_SHEET: Final = "NVIDIA data sheet, from memory"


def _fitted_16_bit_gemm(
    *,
    efficiency: tuple[float, float],
    overhead_us: float,
    exponent: float,
    sustained: float,
    p90: float,
) -> tuple[GemmRates, ...]:
    """Fitted GEMM rates of bf16, and the same for fp16."""
    return tuple(
        fitted_gemm(
            dtype,
            efficiency=efficiency,
            overhead_us=overhead_us,
            exponent=exponent,
            sustained=sustained,
            p90=p90,
        )
        for dtype in (Dtype.BF16, Dtype.FP16)
    )


A100_GEMM: Final = _fitted_16_bit_gemm(
    efficiency=(0.849, 0.758), overhead_us=5.6, exponent=1.6, sustained=SUSTAINED_A100, p90=0.19
)
_HOPPER_FP8: Final = fitted_gemm(
    Dtype.FP8,
    efficiency=(0.588, 0.841),
    overhead_us=13.3,
    exponent=1.9,
    sustained=SUSTAINED_H100_FP8,
    p90=0.24,
)
H100_GEMM: Final = (
    *_fitted_16_bit_gemm(
        efficiency=(0.779, 0.830), overhead_us=3.4, exponent=2.9, sustained=SUSTAINED_H100, p90=0.15
    ),
    _HOPPER_FP8,
)
_H200_GEMM: Final = (
    *_fitted_16_bit_gemm(
        efficiency=(0.804, 0.835), overhead_us=3.8, exponent=3.2, sustained=SUSTAINED_H100, p90=0.17
    ),
    gemm_rates_of_similar_device(_HOPPER_FP8, name="h100-sxm", error=0.19),
)
# The fit took 8 TB/s as the peak; the efficiency here is against the 7.7 TB/s of the sheet.
_B200_GEMM: Final = (
    *_fitted_16_bit_gemm(
        efficiency=(0.714, 0.775 * 8.0 / 7.7),
        overhead_us=3.3,
        exponent=2.6,
        sustained=SUSTAINED_B200,
        p90=0.25,
    ),
    fitted_gemm(
        Dtype.FP8,
        efficiency=(0.546, 0.772 * 8.0 / 7.7),
        overhead_us=15.7,
        exponent=1.4,
        sustained=SUSTAINED_B200_FP8,
        p90=0.25,
    ),
    fitted_gemm(
        Dtype.FP4,
        efficiency=(0.384, 0.514 * 8.0 / 7.7),
        overhead_us=10.6,
        exponent=2.8,
        sustained=SUSTAINED_B200_FP8,
        p90=0.50,
    ),
)


_FIXED_POWER: Final = 0.17
"""Share of a device's power limit that no clock of the matrix units changes: leakage and idle units
(70 W of 700 on an idle H100), and HBM under a matrix product, about a third of 150 W at full
traffic (5 to 6 pJ a bit); from memory.
"""


def _rates_at_power_and_peak(
    rates: tuple[GemmRates, ...],
    *,
    name: str,
    power: float = 1.0,
    peak: float = 1.0,
    error: float = 0.25,
) -> tuple[GemmRates, ...]:
    """GEMM rates of a similar device, long runs slowed for `power` x power limit, `peak` x FLOP/s.

    sustained x ((1 - s) peak / (power - s))^(1/3): the part of the limit beside the fixed share s
    supplies units whose power grows with the cube of their clock.
    """
    slower = ((1.0 - _FIXED_POWER) * peak / (power - _FIXED_POWER)) ** (1 / 3)
    return tuple(
        gemm_rates_of_similar_device(
            g, name=name, sustained=max(g.sustained * slower, 1.0), error=error
        )
        for g in rates
    )


_nvidia: Final = partial(accelerator_with_aliases, vendor="NVIDIA")
_ampere: Final = partial(_nvidia, attention=ampere_attention())
_a100: Final = partial(
    _ampere, peaks=dense_tflops(bf16=312, fp16=312, tf32=156, fp32=19.5), failures=AMPERE_FAILURES
)
_hopper: Final = partial(_nvidia, attention=hopper_attention(), failures=HOPPER_FAILURES)
_h100: Final = partial(
    _hopper, peaks=dense_tflops(bf16=989, fp16=989, fp8=1979, tf32=494.5, fp32=67)
)
_blackwell: Final = partial(_nvidia, attention=blackwell_attention())

AMPERE: Final = (
    _a100(
        "a100-sxm-80gb a100 a100-80gb a100-sxm a100-sxm4-80gb",
        memory_gib=79.15,
        memory_gb_per_s=2039,
        reference=f"{_TABLES} a100_sxm; 79.15 GiB allocatable, from memory",
        gemm=A100_GEMM,
    ),
    _a100(
        "a100-sxm-40gb a100-40gb a100-sxm4-40gb a100-40gb-dgx-a100",
        memory_gib=39.39,
        memory_gb_per_s=1555,
        reference=_SHEET,
        gemm=_rates_at_power_and_peak(A100_GEMM, name="a100-sxm-80gb", error=0.15),
    ),
    _a100(
        "a100-pcie-80gb a100-pcie a100-80gb-pcie",
        memory_gib=79.15,
        memory_gb_per_s=1935,
        reference=f"{_TABLES} a100_pcie",
        gemm=_rates_at_power_and_peak(A100_GEMM, name="a100-sxm-80gb", power=300 / 400),
    ),
    _a100(
        "a100-pcie-40gb a100-40gb-pcie",
        memory_gib=39.39,
        memory_gb_per_s=1555,
        reference=_SHEET,
        gemm=_rates_at_power_and_peak(A100_GEMM, name="a100-sxm-80gb", power=250 / 400),
    ),
    _a100(
        "a800-sxm-80gb a800 a800-80gb a800-sxm",
        memory_gib=79.15,
        memory_gb_per_s=2039,
        reference=f"{_SHEET}: an A100 with 200 GB/s of NVLink a direction",
        gemm=_rates_at_power_and_peak(A100_GEMM, name="a100-sxm-80gb", error=0.15),
    ),
    _ampere(
        "a30",
        memory_gib=23.5,
        memory_gb_per_s=933,
        peaks=dense_tflops(bf16=165, fp16=165, tf32=82, fp32=10.3),
        reference=f"{_TABLES} a30",
        gemm=_rates_at_power_and_peak(
            A100_GEMM, name="a100-sxm-80gb", power=165 / 400, peak=165 / 312
        ),
    ),
)


HOPPER: Final = (
    _h100(
        "h100-sxm h100 h100-80gb h100-sxm5 h100-sxm-80gb h100-sxm5-80gb",
        memory_gib=79.11,
        memory_gb_per_s=3350,
        reference=(
            f"{_TABLES} h100_sxm; 79.11 GiB allocatable as PyTorch reports"
            " (vllm-project/vllm#27508)"
        ),
        gemm=H100_GEMM,
    ),
    _h100(
        "h100-sxm-96gb-500w h100-96gb-hbm2e-500w h100-96gb",
        memory_gib=95.04,
        memory_gb_per_s=2400,
        reference=(
            "H100 with 96 GB of HBM2e and a 500 W limit, as in torchtitan's benchmarks; bandwidth"
            " and 95.04 GiB from memory"
        ),
        gemm=_rates_at_power_and_peak(H100_GEMM, name="h100-sxm", power=500 / 700),
    ),
    _hopper(
        "h100-pcie h100-pcie-80gb h100-80gb-pcie",
        memory_gib=79.11,
        memory_gb_per_s=2000,
        reference=f"{_TABLES} h100_pcie",
        gemm=_rates_at_power_and_peak(
            H100_GEMM, name="h100-sxm", power=350 / 700, peak=756.5 / 989
        ),
        peaks=dense_tflops(bf16=756.5, fp16=756.5, fp8=1513, tf32=378, fp32=51),
    ),
    _hopper(
        "h100-nvl h100-nvl-94gb",
        memory_gib=93.0,
        memory_gb_per_s=3938,
        reference=f"{_SHEET}; 93.00 GiB allocatable as PyTorch reports (ali-vilab/VACE#56)",
        gemm=_rates_at_power_and_peak(H100_GEMM, name="h100-sxm", power=400 / 700, peak=835 / 989),
        peaks=dense_tflops(bf16=835, fp16=835, fp8=1671, tf32=417.5, fp32=60),
    ),
    _h100(
        "h200-sxm h200 h200-141gb h200-sxm-141gb",
        memory_gib=139.7,
        memory_gb_per_s=4800,
        reference=f"{_TABLES} h200_sxm; 141 GB is decimal: 139.7 GiB allocatable, from memory",
        gemm=_H200_GEMM,
    ),
    _h100(
        "h800-sxm h800 h800-80gb h800-sxm5-80gb h800-sxm-80gb",
        memory_gib=79.11,
        memory_gb_per_s=3350,
        reference=f"{_SHEET}: an H100 with 200 GB/s of NVLink a direction",
        gemm=_rates_at_power_and_peak(H100_GEMM, name="h100-sxm", error=0.15),
    ),
    _hopper(
        "h20 h20-96gb",
        memory_gib=95.0,
        memory_gb_per_s=4000,
        reference=_SHEET,
        gemm=tuple(
            gemm_rates_of_similar_device(g, name="h100-sxm", sustained=1.0) for g in H100_GEMM
        ),
        peaks=dense_tflops(bf16=148, fp16=148, fp8=296, tf32=74, fp32=44),
    ),
    _h100(
        "gh200-96gb gh200",
        memory_gib=94.5,
        memory_gb_per_s=4000,
        reference=f"{_SHEET}: H100 die beside a Grace CPU",
        gemm=_rates_at_power_and_peak(H100_GEMM, name="h100-sxm", error=0.15),
    ),
)


# Power limits of the sheets, from memory: B200 1000 W, GB200 1200 W, B300 1100 W, GB300 1400 W.
BLACKWELL: Final = (
    _blackwell(
        "b200-sxm b200 b200-180gb b200-sxm-180gb",
        memory_gib=178.35,
        memory_gb_per_s=7700,
        peaks=dense_tflops(bf16=2250, fp16=2250, fp8=4500, fp4=9000, tf32=1125, fp32=75),
        reference=f"{_TABLES} b200_sxm; 178.35 GiB allocatable (pytorch/ao#4002)",
        gemm=_B200_GEMM,
    ),
    _blackwell(
        "gb200-nvl72 gb200",
        memory_gib=184.4,
        memory_gb_per_s=8000,
        peaks=dense_tflops(bf16=2500, fp16=2500, fp8=5000, fp4=10000, tf32=1250, fp32=80),
        reference=f"{_TABLES} gb200; 189,471 MiB in nvidia-smi less 0.6 GiB",
        gemm=_rates_at_power_and_peak(
            _B200_GEMM, name="b200-sxm", power=1200 / 1000, peak=2500 / 2250
        ),
    ),
    _blackwell(
        "b300-sxm b300 b300-sxm-288gb b300-288gb",
        memory_gib=268.0,
        memory_gb_per_s=7750,
        peaks=dense_tflops(bf16=2250, fp16=2250, fp8=4500, fp4=14000, tf32=1125, fp32=75),
        reference=f"{_TABLES} b300_sxm; 275,040 MiB in nvidia-smi less 0.6 GiB",
        gemm=_rates_at_power_and_peak(_B200_GEMM, name="b200-sxm", power=1100 / 1000),
    ),
    _blackwell(
        "gb300-nvl72 gb300",
        memory_gib=276.9,
        memory_gb_per_s=8000,
        peaks=dense_tflops(bf16=2500, fp16=2500, fp8=5000, fp4=15000, tf32=1250, fp32=80),
        reference=f"{_TABLES} gb300; 284,208 MiB in nvidia-smi less 0.6 GiB",
        gemm=_rates_at_power_and_peak(
            _B200_GEMM, name="b200-sxm", power=1400 / 1000, peak=2500 / 2250
        ),
    ),
)

NVIDIA: Final = AMPERE + HOPPER + BLACKWELL
