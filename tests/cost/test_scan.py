"""Bytes of a chunked scan against counts by hand, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.compute import machine_of
from shardwright.cost.scan import scan_bytes, scan_flops, scan_seconds
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.catalog import accelerator
from shardwright.model.ir.operator import ScanShape
from shardwright.runtime.runtime import AttentionKernel, ElementKernels

SHAPE = ScanShape(heads=8, head_dim=64, state=128, groups=2, chunk=256)
ONE = np.ones(1, dtype=np.int64)


def test_bytes_are_loads_and_stores_of_its_kernels() -> None:
    """8 heads x 64 = 512 of x; states 512 x 128 a chunk of 256 tokens: 256 a token; scores 2 x 256; B and C 2 x 128."""
    forward = 12 * 256 + 6 * 512 + 8 * 512 + 8 * 256
    backward = 34 * 256 + 22 * 512 + 24 * 512 + 24 * 256
    assert scan_bytes(SHAPE, tokens=ONE, heads=8 * ONE, backward=False)[0] == forward
    assert scan_bytes(SHAPE, tokens=ONE, heads=8 * ONE, backward=True)[0] == backward
    # on half the heads one group is left, of a single head's part no less than one
    assert scan_bytes(SHAPE, tokens=ONE, heads=4 * ONE, backward=False)[0] == forward / 2
    assert scan_bytes(SHAPE, tokens=ONE, heads=ONE, backward=False)[0] == (12 * 256 + 6 * 512) / 8 + 8 * 256 + 8 * 128


@pytest.mark.parametrize("backward", [False, True])
def test_it_takes_the_longer_of_products_and_traffic(backward: bool) -> None:
    machine = machine_of(accelerator("h100"), compute=Dtype.BF16, attention=AttentionKernel.FLASH_2, elements=ElementKernels.FUSED)
    device, tokens = machine.accelerator, 4096 * ONE
    spent = scan_seconds(machine, SHAPE, tokens=tokens, heads=8 * ONE, backward=backward)[0] - 4 * device.launch_s
    moving = scan_bytes(SHAPE, tokens=tokens, heads=8 * ONE, backward=backward)[0] / (device.element_efficiency * device.memory_bandwidth)
    flops = scan_flops(SHAPE, tokens=tokens, heads=8 * ONE)[0] * (2.5 if backward else 1.0)
    assert spent == pytest.approx(max(moving, 3 * flops / (machine.gemm.compute_efficiency * machine.attention_peak)))
    assert spent == pytest.approx(moving)
