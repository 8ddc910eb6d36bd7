"""Table of accelerators of AMD, Google, Intel, Huawei and AWS, with assumed rates.

None has kernel tables here: rates are stated defaults with a wide error.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.catalog.accelerator_from_data_sheet import (
    accelerator_with_aliases,
    dense_tflops,
)

# Large GEMMs on these parts reach a smaller share of peak than on NVIDIA's (a common finding; no
# table here).
_amd: Final = partial(accelerator_with_aliases, vendor="AMD", gemm_efficiency=0.55)

AMD: Final = (
    _amd(
        "mi250x mi250x-gcd mi250x-64gb",
        memory_gib=63.98,
        memory_gb_per_s=1638,
        peaks=dense_tflops(bf16=191.5, fp16=191.5, fp32=23.9),
        reference=(
            "AMD MI250X data sheet, from memory; one of the two dies of a package, which programs"
            " see as a device"
        ),
    ),
    _amd(
        "mi300x mi300x-192gb mi300",
        memory_gib=191.98,
        memory_gb_per_s=5300,
        peaks=dense_tflops(bf16=1307, fp16=1307, fp8=2615, tf32=653.7, fp32=163.4),
        reference="AMD MI300X data sheet (192 GB, 5.3 TB/s, 448 GB/s a direction)",
    ),
    _amd(
        "mi325x mi325x-256gb",
        memory_gib=255.98,
        memory_gb_per_s=6000,
        peaks=dense_tflops(bf16=1307, fp16=1307, fp8=2615, tf32=653.7, fp32=163.4),
        reference="AMD MI325X data sheet",
    ),
    _amd(
        "mi355x mi355x-288gb mi355",
        memory_gib=287.98,
        memory_gb_per_s=8000,
        peaks=dense_tflops(bf16=2516, fp16=2516, fp8=5033, fp4=10066, fp32=157.3),
        reference="AMD MI355X data sheet; FLOP/s from memory",
    ),
)

# Systolic arrays with a compiler that knows all shapes: an assumed 0.8 of peak for large GEMMs, no
# clock loss.
_tpu: Final = partial(
    accelerator_with_aliases, vendor="Google", gemm_efficiency=0.8, sustained=1.05
)

GOOGLE: Final = (
    _tpu(
        "tpu-v3 tpuv3",
        memory_gib=31.5,
        memory_gb_per_s=900,
        peaks=dense_tflops(bf16=123),
        reference="Google TPU v3 documentation, from memory; a chip of two cores",
    ),
    _tpu(
        "tpu-v4 tpuv4",
        memory_gib=30.75,
        memory_gb_per_s=1228,
        peaks=dense_tflops(bf16=275),
        reference="Google TPU v4 documentation; bandwidth and allocatable memory from memory",
    ),
    _tpu(
        "tpu-v5e tpuv5e tpu-v5-lite",
        memory_gib=15.75,
        memory_gb_per_s=819,
        peaks=dense_tflops(bf16=197),
        reference="docs.cloud.google.com/tpu/docs/v6e; 15.75 GiB allocatable, from memory",
    ),
    _tpu(
        "tpu-v5p tpuv5p",
        memory_gib=95.0,
        memory_gb_per_s=2765,
        peaks=dense_tflops(bf16=459, fp8=459),
        reference="docs.cloud.google.com/tpu/docs/tpu7x",
    ),
    _tpu(
        "tpu-v6e tpuv6e trillium",
        memory_gib=31.25,
        memory_gb_per_s=1638,
        peaks=dense_tflops(bf16=918, fp8=918),
        reference="docs.cloud.google.com/tpu/docs/tpu7x; 31.25 GiB allocatable, from memory",
    ),
    _tpu(
        "tpu-7x tpu-v7x tpu7x ironwood",
        memory_gib=190.0,
        memory_gb_per_s=7380,
        peaks=dense_tflops(bf16=2307, fp8=4614),
        reference="docs.cloud.google.com/tpu/docs/tpu7x; allocatable memory assumed",
    ),
)

_ascend: Final = partial(
    accelerator_with_aliases, vendor="Huawei", gemm_efficiency=0.6, evidence=Evidence.ASSUMED
)

OTHERS: Final = (
    accelerator_with_aliases(
        "gaudi-2 gaudi2 hl-225",
        vendor="Intel",
        memory_gib=94.6,
        memory_gb_per_s=2450,
        peaks=dense_tflops(bf16=432, fp8=865),
        reference="Intel Gaudi 2 white paper, from memory",
    ),
    accelerator_with_aliases(
        "gaudi-3 gaudi3 hl-325",
        vendor="Intel",
        memory_gib=126.5,
        memory_gb_per_s=3700,
        peaks=dense_tflops(bf16=1835, fp8=1835),
        reference="Intel Gaudi 3 white paper, from memory",
    ),
    _ascend(
        "ascend-910b 910b ascend910b",
        memory_gib=61.0,
        memory_gb_per_s=1600,
        peaks=dense_tflops(bf16=320, fp16=320),
        reference=(
            "assumed: sources conflict (a web page says 320 TFLOP/s and 400 GB/s of memory; 1.6"
            " TB/s is commonly quoted)"
        ),
    ),
    _ascend(
        "ascend-910c 910c ascend910c",
        memory_gib=122.0,
        memory_gb_per_s=3200,
        peaks=dense_tflops(bf16=780, fp16=780),
        reference="assumed: low-quality web pages (780 TFLOP/s, 3.2 TB/s, 784 GB/s both ways)",
    ),
    accelerator_with_aliases(
        "trainium-1 trn1 trainium1 trainium",
        vendor="AWS",
        memory_gib=31.5,
        memory_gb_per_s=820,
        peaks=dense_tflops(bf16=191, fp16=191, fp32=47.75),
        reference="AWS Neuron documentation of Trainium, from memory",
    ),
    accelerator_with_aliases(
        "trainium-2 trn2 trainium2",
        vendor="AWS",
        memory_gib=94.5,
        memory_gb_per_s=2900,
        peaks=dense_tflops(bf16=667, fp16=667, fp8=1299, fp32=181),
        reference="AWS Neuron documentation, trainium2; fp32 from memory",
    ),
    accelerator_with_aliases(
        "trainium-3 trn3 trainium3",
        vendor="AWS",
        memory_gib=142.0,
        memory_gb_per_s=4900,
        peaks=dense_tflops(bf16=671, fp16=671, fp8=2517, fp4=2517, fp32=183),
        reference="AWS Neuron documentation, trainium3, as quoted on the web; fp32 from memory",
    ),
)
