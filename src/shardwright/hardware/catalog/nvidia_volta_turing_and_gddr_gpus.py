"""Table of NVIDIA GPUs of Volta and Turing, and of cards with GDDR memory (inference, RTX).

Memory is the allocatable part: what PyTorch reports, or nvidia-smi's total less 0.3 to 0.6 GiB.

Consumer cards halve the rate of fp16 and fp8 units when they accumulate in fp32, which training
needs: the peaks here are those.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shardwright.hardware.catalog.accelerator_from_data_sheet import (
    accelerator_with_aliases,
    dense_tflops,
)
from shardwright.hardware.catalog.achieved_gemm_attention_rates import (
    BEFORE_AMPERE,
    ampere_attention,
)

_TABLES: Final = "aiconfigurator-core 0.12.0 system file"
_SHEET: Final = "NVIDIA data sheet, from memory"


_card: Final = partial(accelerator_with_aliases, vendor="NVIDIA")
_ampere: Final = partial(_card, attention=ampere_attention())
_V100: Final = dense_tflops(fp16=125, fp32=15.7)

NVIDIA_SMALL: Final = (
    _card(
        "v100-sxm-32gb v100 v100-32gb v100-sxm2-32gb v100-32gb-dgx-2",
        memory_gib=31.73,
        memory_gb_per_s=900,
        peaks=_V100,
        kernels=BEFORE_AMPERE,
        reference=f"{_SHEET}; no bf16 units",
    ),
    _card(
        "v100-sxm-16gb v100-16gb v100-sxm2-16gb v100-16gb-aws-p3.16xlarge",
        memory_gib=15.77,
        memory_gb_per_s=900,
        peaks=_V100,
        kernels=BEFORE_AMPERE,
        reference=f"{_SHEET}; no bf16 units",
    ),
    # 70 W against 65 TFLOP/s of peak: the mean of 100 products of 4096^3 is 24 TFLOP/s, under the
    # power limit (forums.developer.nvidia.com, "About GPU peak performance", 264462): 0.7 x 65 /
    # 1.9.
    _card(
        "t4 t4-16gb",
        memory_gib=14.75,
        memory_gb_per_s=320,
        peaks=dense_tflops(fp16=65, fp32=8.1),
        kernels=BEFORE_AMPERE,
        reference=(
            f"{_SHEET}; no bf16 units; 14.75 GiB allocatable as PyTorch reports"
            " (hpcaitech/Open-Sora#697)"
        ),
        sustained=1.9,
    ),
    _card(
        "l4 l4-24gb",
        memory_gib=22.0,
        memory_gb_per_s=300,
        peaks=dense_tflops(bf16=121, fp16=121, fp8=242, tf32=60, fp32=30),
        reference=f"{_TABLES} l4",
        sustained=1.6,
    ),
    _card(
        "l40s l40s-48gb",
        memory_gib=44.4,
        memory_gb_per_s=864,
        peaks=dense_tflops(bf16=362.05, fp16=362.05, fp8=733, tf32=183, fp32=91.6),
        reference=f"{_TABLES} l40s; 46,068 MiB in nvidia-smi less 0.6 GiB",
    ),
    _ampere(
        "a10 a10-24gb",
        memory_gib=22.0,
        memory_gb_per_s=600,
        peaks=dense_tflops(bf16=125, fp16=125, tf32=62.5, fp32=31.2),
        reference=_SHEET,
    ),
    _ampere(
        "a10g a10g-24gb",
        memory_gib=22.0,
        memory_gb_per_s=600,
        peaks=dense_tflops(bf16=70, fp16=70, tf32=35, fp32=31.5),
        reference=_SHEET,
    ),
    _ampere(
        "rtx-3090 3090 geforce-rtx-3090",
        memory_gib=23.68,
        memory_gb_per_s=936,
        peaks=dense_tflops(bf16=71, fp16=71, tf32=35.6, fp32=35.6),
        reference="NVIDIA GA102 white paper, fp32 accumulation, from memory",
    ),
    _ampere(
        "rtx-4090 4090 geforce-rtx-4090",
        memory_gib=23.64,
        memory_gb_per_s=1008,
        peaks=dense_tflops(bf16=165, fp16=165, fp8=330, tf32=82.6, fp32=82.6),
        reference="NVIDIA Ada white paper, fp32 accumulation, from memory",
    ),
    _ampere(
        "rtx-5090 5090 geforce-rtx-5090",
        memory_gib=31.36,
        memory_gb_per_s=1792,
        peaks=dense_tflops(bf16=209.5, fp16=209.5, fp8=419, fp4=1676, tf32=104.8, fp32=104.8),
        reference="NVIDIA RTX Blackwell white paper, fp32 accumulation, from memory",
    ),
    _ampere(
        "rtx-pro-6000 rtx-pro-6000-server rtx-pro-6000-blackwell"
        " rtx-pro-6000-blackwell-server-edition",
        memory_gib=94.97,
        memory_gb_per_s=1597,
        peaks=dense_tflops(bf16=467.8, fp16=467.8, fp8=935.6, fp4=1871.2, tf32=233.9, fp32=117),
        reference=(
            f"{_TABLES} rtx_pro_6000_server (FLOP/s at 2,430 MHz); bandwidth and memory from memory"
        ),
    ),
)
