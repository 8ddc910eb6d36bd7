"""Accelerators of AMD, Google, Intel, Huawei and AWS. None has kernel tables here: rates are stated defaults with a wide error."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.hardware.catalog.rates import SUSTAINED_ASSUMED
from shardwright.hardware.catalog.sheet import accelerator_from_sheet, tensor_cores
from shardwright.hardware.device import Accelerator, Evidence


def _device(
    name: str,
    *,
    vendor: str,
    memory_gib: float,
    bandwidth: float,
    peaks: tuple[tuple[Dtype, float], ...],
    reference: str,
    aliases: tuple[str, ...] = (),
    compute: float = 0.7,
    sustained: float = SUSTAINED_ASSUMED,
    evidence: Evidence = Evidence.PUBLISHED,
) -> Accelerator:
    return accelerator_from_sheet(
        name,
        vendor=vendor,
        memory_gib=memory_gib,
        bandwidth_gb_per_s=bandwidth,
        peak_flops=peaks,
        reference=reference,
        aliases=aliases,
        compute=compute,
        sustained=sustained,
        evidence=evidence,
    )


# Large GEMMs on these parts reach a smaller share of peak than on NVIDIA's (a common finding; no table here).
_AMD_COMPUTE: Final = 0.55

AMD: Final = (
    _device(
        "mi250x",
        vendor="AMD",
        memory_gib=63.98,
        bandwidth=1638,
        peaks=tensor_cores(bf16=191.5, fp16=191.5, fp32=23.9),
        reference="AMD MI250X data sheet, from memory; one of the two dies of a package, which programs see as a device",
        aliases=("mi250x-gcd", "mi250x-64gb"),
        compute=_AMD_COMPUTE,
    ),
    _device(
        "mi300x",
        vendor="AMD",
        memory_gib=191.98,
        bandwidth=5300,
        peaks=tensor_cores(bf16=1307, fp16=1307, fp8=2615, tf32=653.7, fp32=163.4),
        reference="AMD MI300X data sheet (192 GB, 5.3 TB/s, 448 GB/s a direction)",
        aliases=("mi300x-192gb", "mi300"),
        compute=_AMD_COMPUTE,
    ),
    _device(
        "mi325x",
        vendor="AMD",
        memory_gib=255.98,
        bandwidth=6000,
        peaks=tensor_cores(bf16=1307, fp16=1307, fp8=2615, tf32=653.7, fp32=163.4),
        reference="AMD MI325X data sheet",
        aliases=("mi325x-256gb",),
        compute=_AMD_COMPUTE,
    ),
    _device(
        "mi355x",
        vendor="AMD",
        memory_gib=287.98,
        bandwidth=8000,
        peaks=tensor_cores(bf16=2516, fp16=2516, fp8=5033, fp4=10066, fp32=157.3),
        reference="AMD MI355X data sheet; FLOP/s from memory",
        aliases=("mi355x-288gb", "mi355"),
        compute=_AMD_COMPUTE,
    ),
)

# Systolic arrays with a compiler that knows all shapes: an assumed 0.8 of peak for large GEMMs, no clock loss.
_TPU: Final = 0.8

GOOGLE: Final = (
    _device(
        "tpu-v3",
        vendor="Google",
        memory_gib=31.5,
        bandwidth=900,
        peaks=tensor_cores(bf16=123),
        reference="Google TPU v3 documentation, from memory; a chip of two cores",
        aliases=("tpuv3",),
        compute=_TPU,
        sustained=1.05,
    ),
    _device(
        "tpu-v4",
        vendor="Google",
        memory_gib=30.75,
        bandwidth=1228,
        peaks=tensor_cores(bf16=275),
        reference="Google TPU v4 documentation; bandwidth and allocatable memory from memory",
        aliases=("tpuv4",),
        compute=_TPU,
        sustained=1.05,
    ),
    _device(
        "tpu-v5e",
        vendor="Google",
        memory_gib=15.75,
        bandwidth=819,
        peaks=tensor_cores(bf16=197),
        reference="docs.cloud.google.com/tpu/docs/v6e; 15.75 GiB allocatable, from memory",
        aliases=("tpuv5e", "tpu-v5-lite"),
        compute=_TPU,
        sustained=1.05,
    ),
    _device(
        "tpu-v5p",
        vendor="Google",
        memory_gib=95.0,
        bandwidth=2765,
        peaks=tensor_cores(bf16=459, fp8=459),
        reference="docs.cloud.google.com/tpu/docs/tpu7x",
        aliases=("tpuv5p",),
        compute=_TPU,
        sustained=1.05,
    ),
    _device(
        "tpu-v6e",
        vendor="Google",
        memory_gib=31.25,
        bandwidth=1638,
        peaks=tensor_cores(bf16=918, fp8=918),
        reference="docs.cloud.google.com/tpu/docs/tpu7x; 31.25 GiB allocatable, from memory",
        aliases=("tpuv6e", "trillium"),
        compute=_TPU,
        sustained=1.05,
    ),
    _device(
        "tpu-7x",
        vendor="Google",
        memory_gib=190.0,
        bandwidth=7380,
        peaks=tensor_cores(bf16=2307, fp8=4614),
        reference="docs.cloud.google.com/tpu/docs/tpu7x; allocatable memory assumed",
        aliases=("tpu-v7x", "tpu7x", "ironwood"),
        compute=_TPU,
        sustained=1.05,
    ),
)

OTHERS: Final = (
    _device(
        "gaudi-2",
        vendor="Intel",
        memory_gib=94.6,
        bandwidth=2450,
        peaks=tensor_cores(bf16=432, fp8=865),
        reference="Intel Gaudi 2 white paper, from memory",
        aliases=("gaudi2", "hl-225"),
    ),
    _device(
        "gaudi-3",
        vendor="Intel",
        memory_gib=126.5,
        bandwidth=3700,
        peaks=tensor_cores(bf16=1835, fp8=1835),
        reference="Intel Gaudi 3 white paper, from memory",
        aliases=("gaudi3", "hl-325"),
    ),
    _device(
        "ascend-910b",
        vendor="Huawei",
        memory_gib=61.0,
        bandwidth=1600,
        peaks=tensor_cores(bf16=320, fp16=320),
        reference="assumed: sources conflict (a web page says 320 TFLOP/s and 400 GB/s of memory; 1.6 TB/s is commonly quoted)",
        aliases=("910b", "ascend910b"),
        compute=0.6,
        evidence=Evidence.ASSUMED,
    ),
    _device(
        "ascend-910c",
        vendor="Huawei",
        memory_gib=122.0,
        bandwidth=3200,
        peaks=tensor_cores(bf16=780, fp16=780),
        reference="assumed: low-quality web pages (780 TFLOP/s, 3.2 TB/s, 784 GB/s both ways)",
        aliases=("910c", "ascend910c"),
        compute=0.6,
        evidence=Evidence.ASSUMED,
    ),
    _device(
        "trainium-1",
        vendor="AWS",
        memory_gib=31.5,
        bandwidth=820,
        peaks=tensor_cores(bf16=191, fp16=191, fp32=47.75),
        reference="AWS Neuron documentation of Trainium, from memory",
        aliases=("trn1", "trainium1", "trainium"),
    ),
    _device(
        "trainium-2",
        vendor="AWS",
        memory_gib=94.5,
        bandwidth=2900,
        peaks=tensor_cores(bf16=667, fp16=667, fp8=1299, fp32=181),
        reference="AWS Neuron documentation, trainium2; fp32 from memory",
        aliases=("trn2", "trainium2"),
    ),
    _device(
        "trainium-3",
        vendor="AWS",
        memory_gib=142.0,
        bandwidth=4900,
        peaks=tensor_cores(bf16=671, fp16=671, fp8=2517, fp4=2517, fp32=183),
        reference="AWS Neuron documentation, trainium3, as quoted on the web; fp32 from memory",
        aliases=("trn3", "trainium3"),
    ),
)
