"""Machines for tests of serving kernels: with tables, without, and with every second or byte rescaled."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from shardwright.cost.compute import Machine, machine_of
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.catalog import accelerator
from shardwright.runtime.runtime import AttentionKernel, ElementKernels

DEVICES = ("h200-sxm", "b200-sxm", "mi300x")
"""Two with tables, one without."""


@cache
def machine(name: str, dtype: Dtype = Dtype.BF16) -> Machine:
    return machine_of(accelerator(name), compute=dtype, attention=AttentionKernel.FLASH_3, elements=ElementKernels.FUSED)


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
