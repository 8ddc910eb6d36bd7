"""Correction factors from measured kernel tables on the formulas of GEMMs and attention.

Where the accelerator has a table that applies.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import Accelerator, AttentionRates, GemmRates
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import (
    AttentionTable,
    GemmGrid,
    GroupedTable,
    attention_fraction,
    kernel_tables,
)
from shardwright.kernel_compilation import allocation_free
from shardwright.model.ir.operator import AttentionShape

TILE: Final = 64
"""Rows and columns that a kernel's smallest tile of the result has, and elements of k that it takes
at once.

Source: wgmma works on 64 rows; cuBLAS picks among tiles of 64 to 256 the one that wastes least; see
docs/kernels.md for the check.
"""
_MULTIPLICATIONS: Final = TILE**3


def tile_padding(*, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
    """Multiplications issued over those needed, because GEMMs compute whole tiles of 64.

    The product of ceil(x / 64) 64 / x over m, n and k.

    One for multiples of 64, as all points of the measured grids are: interpolation between them
    does not show it. Waves of tiles are in the grids; see `wave_padding` for them
    elsewhere, and for widths that are no multiple of 16 bytes.
    """
    if not m.shape == n.shape == k.shape:
        m, n, k = (np.ascontiguousarray(side) for side in np.broadcast_arrays(m, n, k))
    result = np.empty(m.size)
    _padding(m, n, k, result)
    return result


@allocation_free
def _padding(m: FloatArray, n: FloatArray, k: FloatArray, result: FloatArray) -> None:
    """Fill in `tile_padding`, one GEMM an element."""
    for at in range(m.size):
        asked = max(m[at], 1.0) * max(n[at], 1.0) * max(k[at], 1.0)
        result[at] = (
            np.ceil(m[at] / TILE)
            * np.ceil(n[at] / TILE)
            * np.ceil(k[at] / TILE)
            * _MULTIPLICATIONS
            / asked
        )


def roofline_seconds(
    rates: GemmRates,
    *,
    peak: float,
    bandwidth: float,
    width: float,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    groups: FloatArray | IntArray | int = 1,
    extra_bytes: FloatArray | float = 0.0,
    padding: FloatArray | float = 1.0,
) -> FloatArray:
    """Roofline seconds of `groups` equal GEMMs, without the launch overhead.

    ((2mnk / (ec P))^q + (bytes / (em BW))^q)^(1/q).

    Args:
        peak: FLOP/s.
        bandwidth: bytes/s.
        width: bytes of an input's element.
        extra_bytes: joined to the traffic.
        padding: factor on the multiplications.

    Bytes are one pass over both inputs and over a 16-bit output.
    """
    compute = padding * (2.0 * groups * m * n * k) / (rates.compute_efficiency * peak)
    traffic = groups * (width * (m * k + k * n) + 2.0 * m * n) + extra_bytes
    memory = traffic / (rates.memory_efficiency * bandwidth)
    return q_norm(compute, memory, exponent=rates.exponent)


def q_norm(compute: FloatArray, memory: FloatArray, *, exponent: float) -> FloatArray:
    """(compute^q + memory^q)^(1/q): the larger alone for a large q, their sum for q = 1."""
    larger, smaller = np.maximum(compute, memory), np.minimum(compute, memory)
    return np.asarray(
        larger * (1.0 + (smaller / np.maximum(larger, 1e-30)) ** exponent) ** (1.0 / exponent)
    )


def gemm_grid_for(device: Accelerator, dtype: Dtype, rates: GemmRates) -> GemmGrid | None:
    """Measured GEMM grid of `device` if it corrects these `rates`; None where there is none."""
    tables = kernel_tables(device.name)
    grid = tables.gemm_grid(dtype) if tables is not None else None
    return grid if grid is not None and grid.corrects(rates) else None


def grouped_table_for(device: Accelerator, dtype: Dtype, rates: GemmRates) -> GroupedTable | None:
    """Experts' measured GEMM table of `device`, if its GEMM grid corrects `rates`; else None."""
    tables = kernel_tables(device.name)
    return (
        tables.grouped_table(dtype)
        if tables is not None and gemm_grid_for(device, dtype, rates) is not None
        else None
    )


def attention_table_for(
    device: Accelerator, rates: AttentionRates, shape: AttentionShape
) -> AttentionTable | None:
    """Measured attention table for heads of that shape on `device`; None where there is none.

    The device or the kernel generation may have none.

    A table is of the newest kernel on its device; cuDNN and flash-3 share it (see
    `hardware.catalog.achieved_gemm_attention_rates`), on A100-class devices flash-2 too.
    """
    tables = kernel_tables(device.name)
    table = (
        tables.attention_table(head_dim=shape.head_dim, value_dim=shape.value_dim)
        if tables is not None
        else None
    )
    if table is None or rates.generation not in _SAME_KERNEL[table.generation]:
        return None
    return table


def attention_is_tabled(device: Accelerator, rates: AttentionRates) -> bool:
    """True if measured tables of this kernel generation on `device` replace its curve.

    A table covers every head, so that the curve is not used.
    """
    tables = kernel_tables(device.name)
    return tables is not None and any(
        rates.generation in _SAME_KERNEL[t.generation] for t in tables.attention
    )


_SAME_KERNEL: Final = {
    "flash-2": ("flash-2", "flash-3", "cudnn"),
    "flash-3": ("flash-3", "cudnn"),
    "cudnn": ("flash-3", "cudnn"),
}


def head_factor(
    device: Accelerator, shape: AttentionShape, *, length: FloatArray, heads: FloatArray
) -> FloatArray | float:
    """Attention's fraction of peak with this head shape over that with heads of 128; else 1.

    From the device's table, whose kernel shares the tiles' arithmetic; 1 where there is none.
    """
    tables = kernel_tables(device.name)
    table_of_shape = (
        tables.attention_table(head_dim=shape.head_dim, value_dim=shape.value_dim)
        if tables is not None
        else None
    )
    table_of_128 = (
        tables.attention_table(head_dim=128, value_dim=128) if tables is not None else None
    )
    if table_of_shape is None or table_of_128 is None or table_of_shape is table_of_128:
        return 1.0
    return attention_fraction(table_of_shape, length=length, heads=heads) / attention_fraction(
        table_of_128, length=length, heads=heads
    )
