"""Machines for tests of serving kernels: with tables, without, and with every second or byte
rescaled."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.inference.decode_attention import decode_columns
from shardwright.cost.kernels.accelerator_rates import Machine, machine_of
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.ir.operator import AttentionShape
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
)

DEVICES = ("h200-sxm", "b200-sxm", "mi300x")
"""Two with tables, one without."""


@cache
def machine(name: str, dtype: Dtype = Dtype.BF16) -> Machine:
    return machine_of(
        accelerator(name),
        compute=dtype,
        attention=AttentionKernel.FLASH_3,
        elements=ElementKernels.FUSED,
    )


def untabled(one: Machine) -> Machine:
    return replace(one, accelerator=replace(one.accelerator, name="nothing like it"))


def slower(one: Machine, times: float) -> Machine:
    """Every second of the machine is `times` as long."""
    device = one.accelerator
    return replace(
        one,
        accelerator=replace(
            device,
            memory_bandwidth=device.memory_bandwidth / times,
            launch_s=device.launch_s * times,
            peak_flops=tuple((dtype, flops / times) for dtype, flops in device.peak_flops),
        ),
        peak=one.peak / times,
        attention_peak=one.attention_peak / times,
        gemm=replace(one.gemm, overhead_s=one.gemm.overhead_s * times),
        half=replace(one.half, overhead_s=one.half.overhead_s * times),
    )


def decode_attention(
    one: Machine,
    shape: AttentionShape,
    *,
    kv: NumberFormat,
    heads: int,
    kv_heads: int,
    sequences: IntArray,
    context: FloatArray,
    queries: int = 1,
    library: str = "",
) -> FloatArray:
    """Seconds of `sequences` that decode at a mean of `context` keys each: the columns put
    together, keys at most the window's."""
    start, slope = decode_columns(
        one,
        shape,
        kv=kv,
        heads=heads,
        kv_heads=kv_heads,
        sequences=sequences,
        queries=queries,
        library=library,
    )
    limits = [limit for limit in (shape.window, shape.selected) if limit]
    return np.asarray(start + slope * sequences * np.minimum(context, min(limits, default=np.inf)))
