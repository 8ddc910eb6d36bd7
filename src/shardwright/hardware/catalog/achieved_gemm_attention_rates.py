"""Achieved rates of GEMM and fused attention: fitted from tables, or defaults with a wide error.

GEMM rates with Evidence.FITTED are least-squares fits of the four-number roofline to the GEMM
tables of aiconfigurator-core 0.12.0 (Apache-2.0, shapes with n, k >= 512). Their `error` is 0.78 of
the fit's 90th percentile error: the 80th percentile of a half-normal.

`sustained` is a factor on short measurements, from power physics: dynamic power grows with about
the cube of the clock, so a device whose matrix units draw more than its power limit lowers its
clock in long runs. The factors of A100, H100 and B200 are fitted constants
(`hardware.catalog.fitted_training_constants`). A part of the same die with another power limit P'
takes (P/P')^(1/3) more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import AttentionRates, Evidence, GemmRates, Origin
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED

FITTED: Final = Origin(
    evidence=Evidence.FITTED,
    reference="four-number roofline fitted to the GEMM tables of aiconfigurator-core 0.12.0",
)
SAME_UNITS: Final = Origin(
    evidence=Evidence.FITTED,
    reference=(
        "bf16 fit of aiconfigurator-core 0.12.0 GEMM tables; fp16 runs on the same units at the"
        " same rate"
    ),
)
SUSTAINED_A100: Final = SHIPPED.clock_ampere
SUSTAINED_H100: Final = SHIPPED.clock_hopper
SUSTAINED_H100_FP8: Final = SHIPPED.clock_hopper_fp8
SUSTAINED_B200: Final = SHIPPED.clock_blackwell
SUSTAINED_B200_FP8: Final = SHIPPED.clock_blackwell_fp8
SUSTAINED_ASSUMED: Final = 1.15

# Kernels without Hopper's asynchronous instructions issue at no more than this share of peak: 0.629
# (arXiv 2402.13499, mma on H800), "two thirds" (FlashAttention-3 paper); both from memory.
_MMA_REACH: Final = 0.63
_LENGTHS: Final = (512, 1024, 2048, 4096, 8192, 16384)
_FLASH_3_HOPPER: Final = (0.10, 0.24, 0.39, 0.53, 0.61, 0.67)
_FLASH_2_AMPERE: Final = (0.29, 0.40, 0.49, 0.55, 0.59, 0.61)
_FLASH_2_HOPPER: Final = (0.10, 0.20, 0.28, 0.32, 0.34, 0.35)
_CUDNN_BLACKWELL: Final = (0.08, 0.18, 0.32, 0.45, 0.55, 0.62)
_ASSUMED_CURVE: Final = (0.08, 0.18, 0.30, 0.40, 0.47, 0.50)
_TRITON_AMPERE: Final = (0.24, 0.29, 0.33, 0.36, 0.38, 0.38)
_FLASH_1_AMPERE: Final = (0.20, 0.25, 0.28, 0.30, 0.30, 0.30)

# (SMs x clock) of H100 over A100, 132 x 1.98 GHz over 108 x 1.41 GHz, over the ratio of peaks:
# kernels that use no Hopper instruction. 1.98 and 1.41 GHz are the highest clocks (nvidia-smi):
# kernels that keep the matrix units a fifth busy stay below the power limit.
_OLD_KERNEL_ON_HOPPER: Final = (132 * 1.98) / (108 * 1.41) / (989 / 312)


def fitted_gemm(
    dtype: Dtype,
    *,
    efficiency: tuple[float, float],
    overhead_us: float,
    exponent: float,
    sustained: float,
    p90: float,
) -> GemmRates:
    """GEMM rates of a roofline fit: `efficiency` is (compute, memory), the error 0.78 x `p90`.

    Args:
        efficiency: (ec, em), the achieved shares of peak FLOP/s and bytes/s.
        overhead_us: t0 in microseconds.
        exponent: q.
        p90: 90th percentile relative error of the fit.
    """
    return GemmRates(
        dtype=dtype,
        compute_efficiency=efficiency[0],
        memory_efficiency=efficiency[1],
        overhead_s=round(overhead_us * 1e-6, 12),
        exponent=exponent,
        sustained=sustained,
        error=round(0.78 * p90, 3),
        origin=SAME_UNITS if dtype is Dtype.FP16 else FITTED,
    )


def assumed_gemm(dtype: Dtype, *, compute: float, sustained: float) -> GemmRates:
    """Default GEMM rates of a dtype without tables: `compute` is its share of peak; error 0.35.

    0.75 of memory bandwidth, 5 us, q = 2.
    """
    return GemmRates(
        dtype=dtype,
        compute_efficiency=compute,
        memory_efficiency=0.75,
        overhead_s=5e-6,
        exponent=2.0,
        sustained=sustained,
        error=0.35,
        origin=Origin(evidence=Evidence.ASSUMED, reference="assumed: middle of the fitted devices"),
    )


def gemm_rates_of_similar_device(
    rates: GemmRates, *, name: str, sustained: float | None = None, error: float = 0.25
) -> GemmRates:
    """Copy GEMM rates fitted for `name` as assumed ones of a similar device, at least `error`."""
    origin = Origin(
        evidence=Evidence.ASSUMED, reference=f"assumed: efficiencies as fitted for {name}"
    )
    clock = rates.sustained if sustained is None else sustained
    return replace(rates, sustained=clock, error=max(error, rates.error), origin=origin)


def _attention_rates(
    generation: str,
    fractions: tuple[float, ...],
    *,
    ratio: float,
    evidence: Evidence,
    reference: str,
    reach: float = 1.0,
) -> AttentionRates:
    """Attention rates: forward `fractions` of peak at `_LENGTHS`, backward / forward seconds."""
    return AttentionRates(
        generation=generation,
        forward=tuple(zip(_LENGTHS, fractions, strict=True)),
        backward_ratio=ratio,
        origin=Origin(evidence=evidence, reference=reference),
        reach=reach,
    )


def _scaled_fractions(fractions: tuple[float, ...], factor: float) -> tuple[float, ...]:
    """Fractions multiplied by a factor, rounded to four digits."""
    return tuple(round(f * factor, 4) for f in fractions)


_FA2_PAPER = (
    "FlashAttention-2 paper (arXiv 2307.08691), causal, head dim 128, about 190 TFLOP/s forward at"
    " 8-16k on A100; points from memory"
)
_FA3_TABLE = (
    "vLLM context-attention table of aiconfigurator-core 0.12.0 on H100 (32 query and 8 KV heads,"
    " head dim 128, bf16, causal)"
)
_FA2_ON_HOPPER = (
    "FlashAttention-3 paper (arXiv 2407.08608): flash-2 reaches about 35 % of an H100's peak;"
    " points from memory"
)
_OLD_KERNEL = "FlashAttention-2 paper's A100 figures from memory"
_BY_SM = f"{_OLD_KERNEL}, scaled by multiprocessors x clock (no Hopper instructions)"
_UNFUSED = (
    "assumed: batched GEMMs of the scores at about half the rate of large GEMMs; softmax traffic is"
    " counted apart"
)


def ampere_attention() -> tuple[AttentionRates, ...]:
    """Attention rates of every kernel generation on A100-class devices.

    flash-3 and cuDNN run as flash-2 there. Backward: 5 GEMMs against 2 is 2.5 x the FLOPs, at a
    slightly lower rate: 2.8 x the seconds (old kernels 3.0 to 3.3).
    """
    published, assumed = Evidence.PUBLISHED, Evidence.ASSUMED
    return (
        _attention_rates(
            "flash-2", _FLASH_2_AMPERE, ratio=2.8, evidence=published, reference=_FA2_PAPER
        ),
        _attention_rates(
            "flash-3",
            _FLASH_2_AMPERE,
            ratio=2.8,
            evidence=assumed,
            reference=f"assumed: runs as flash-2; {_FA2_PAPER}",
        ),
        _attention_rates(
            "cudnn",
            _FLASH_2_AMPERE,
            ratio=2.8,
            evidence=assumed,
            reference=f"assumed: as flash-2; {_FA2_PAPER}",
        ),
        _attention_rates(
            "triton", _TRITON_AMPERE, ratio=3.3, evidence=assumed, reference=_OLD_KERNEL
        ),
        _attention_rates(
            "flash-1", _FLASH_1_AMPERE, ratio=3.0, evidence=assumed, reference=_OLD_KERNEL
        ),
        _attention_rates("unfused", (0.40,) * 6, ratio=2.0, evidence=assumed, reference=_UNFUSED),
    )


def hopper_attention() -> tuple[AttentionRates, ...]:
    """Attention rates of every kernel generation on H100-class devices.

    flash-3 is from tables, cuDNN equals it, and older kernels scale by multiprocessors x clock.
    """
    published, assumed = Evidence.PUBLISHED, Evidence.ASSUMED
    triton = _scaled_fractions(_TRITON_AMPERE, _OLD_KERNEL_ON_HOPPER)
    flash_1 = _scaled_fractions(_FLASH_1_AMPERE, _OLD_KERNEL_ON_HOPPER)
    return (
        _attention_rates(
            "flash-3", _FLASH_3_HOPPER, ratio=2.9, evidence=Evidence.MEASURED, reference=_FA3_TABLE
        ),
        _attention_rates(
            "cudnn",
            _FLASH_3_HOPPER,
            ratio=2.9,
            evidence=assumed,
            reference=f"assumed: as flash-3; {_FA3_TABLE}",
        ),
        _attention_rates(
            "flash-2",
            _FLASH_2_HOPPER,
            ratio=2.8,
            evidence=published,
            reference=_FA2_ON_HOPPER,
            reach=_MMA_REACH,
        ),
        _attention_rates(
            "triton", triton, ratio=3.3, evidence=assumed, reference=_BY_SM, reach=_MMA_REACH
        ),
        _attention_rates(
            "flash-1", flash_1, ratio=3.0, evidence=assumed, reference=_BY_SM, reach=_MMA_REACH
        ),
        _attention_rates("unfused", (0.35,) * 6, ratio=2.0, evidence=assumed, reference=_UNFUSED),
    )


_LONG_RUN: Final = (
    "in long runs on 8 B200 (MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json) forward"
    " under a causal mask reaches 0.29, 0.37, 0.44 (4096 keys, 16, 32, 64 heads of 128) and 0.49 to"
    " 0.60 (32768, 131072 keys), as the short table does, where products fall to 0.49; backward"
    " 0.37 to 0.48, of heads of 192 and 128 0.30 to 0.33"
)
"""Reason why attention on Blackwell has no sustained clock of its own: exponentials, not the matrix
units, bound it.
"""


def blackwell_attention() -> tuple[AttentionRates, ...]:
    """Attention rates of every kernel generation on B200-class devices.

    cuDNN (and the kernels that replace flash-3 there) are assumed; older kernels scale from
    Hopper's rate.
    """
    assumed = Evidence.ASSUMED
    reference = "assumed: Hopper's flash-3 curve, shifted to longer contexts by the larger device"
    slower = _scaled_fractions(_FLASH_2_HOPPER, 989 / 2250 * 1.3)
    old = "assumed: H100's rate x 1.3 (multiprocessors x clock)"
    return (
        replace(
            _attention_rates(
                "cudnn",
                _CUDNN_BLACKWELL,
                ratio=2.9,
                evidence=assumed,
                reference=f"{reference}; {_LONG_RUN}",
            ),
            long_run=True,
            backward=((128, 128, 0.41), (192, 128, 0.31)),
        ),
        _attention_rates(
            "flash-3", _CUDNN_BLACKWELL, ratio=2.9, evidence=assumed, reference=reference
        ),
        _attention_rates("flash-2", slower, ratio=2.8, evidence=assumed, reference=old),
        _attention_rates(
            "triton", _scaled_fractions(slower, 0.6), ratio=3.3, evidence=assumed, reference=old
        ),
        _attention_rates(
            "flash-1", _scaled_fractions(slower, 0.5), ratio=3.0, evidence=assumed, reference=old
        ),
        _attention_rates("unfused", (0.30,) * 6, ratio=2.0, evidence=assumed, reference=_UNFUSED),
    )


ATTENTION_KERNELS: Final[Mapping[str, tuple[str, ...]]] = {
    "NVIDIA": ("flash-2", "flash-3", "cudnn", "triton", "flash-1"),
    "AMD": ("flash-2", "triton"),
    "Google": ("splash",),
    "Intel": ("fused-sdpa",),
    "Huawei": ("npu-fusion",),
    "AWS": ("nki-flash",),
}
"""Fused attention kernels that exist on a vendor's devices, the usual one first; another vendor's
have one of their own (``fused``).

cuDNN and FlashAttention-3 are NVIDIA's alone. AMD: Dao-AILab/flash-attention (Composable Kernel and
Triton backends); Google: jax.experimental.pallas.ops.tpu.splash_attention; Intel: FusedSDPA of the
Gaudi PyTorch bridge; Huawei: torch_npu.npu_fusion_attention; AWS: flash_fwd of
neuronxcc.nki.kernels.
"""
BEFORE_AMPERE: Final = ("memory-efficient", "triton", "flash-1")
"""Attention kernels of V100 and T4: cuDNN's fused attention and FlashAttention-2 need compute
capability 8.0 (their own documentation); PyTorch's memory-efficient kernel does not.
"""
_OLDER: Final = ("triton", "flash-1")


def assumed_attention(kernels: tuple[str, ...]) -> tuple[AttentionRates, ...]:
    """Default attention rates of a device without any attention table: each kernel, and unfused.

    One stated curve, and 60 % of it for the older kernels.
    """
    reference = "assumed: no attention table for this device; between flash-2 on A100 and on H100"
    fused = (
        _attention_rates(
            name,
            _scaled_fractions(_ASSUMED_CURVE, 0.6 if name in _OLDER else 1.0),
            ratio=2.9,
            evidence=Evidence.ASSUMED,
            reference=reference,
        )
        for name in kernels
    )
    return (
        *fused,
        _attention_rates(
            "unfused", (0.30,) * 6, ratio=2.0, evidence=Evidence.ASSUMED, reference=_UNFUSED
        ),
    )
