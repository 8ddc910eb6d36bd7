"""Seconds of decode attention: a few tokens a sequence against all cached keys.

One token each, or a few that are verified together.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.hardware.catalog.measured_serving_kernels import DecodeTable, serving_tables
from shardwright.hardware.catalog.serving_kernel_constants_where_unmeasured import (
    DECODE_BANDWIDTH,
    DECODE_LAUNCHES,
    DECODE_TILE,
    LATENT_COMPUTE,
)
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.ir.operator import AttentionShape

WIDE = 2.0
"""Bytes of an element of queries and outputs."""


def decode_columns(
    machine: Machine,
    shape: AttentionShape,
    *,
    kv: NumberFormat,
    heads: IntArray | int,
    kv_heads: IntArray | int,
    sequences: IntArray,
    queries: int = 1,
    library: str = "",
) -> tuple[FloatArray, FloatArray]:
    """Seconds of decode attention: a constant part, and seconds for each cached token.

    The first do not depend on contexts; the second count the cached tokens of all sequences
    together. Each has shape (n,).

        t = start + slope x (sum of contexts, each at most the window)
        slope = kv_heads x max((key + value elements) x kv.bytes / (e BW),
                               2 rows (key + value) / (f P))
        start = DECODE_LAUNCHES x launch + slope x sequences x DECODE_TILE
                + bytes of queries and outputs / BW

    rows = queries x heads / kv_heads: GEMM rows of a cached key. Where the device has a table of
    the library's kernel, it gives e and the start by sequences, key heads and rows; f then is 1
    (the table includes how much less is reached). Keys and values that are one latent
    (`LatentSizes`: value elements are part of the key's) are read once.

    A window is not applied here: its K is the sum of min(context, window). Neither is a sparse
    selection.

    How well a line in the contexts represents the kernels: against rows of 64 to 65,536 keys that
    come from memory the tables err by 3 to 6 % in the median and 10 to 24 % at the 90th percentile
    for vLLM, SGLang and latent attention on Hopper and Blackwell, TensorRT-LLM's by 4 to 12 %
    (docs/serving-kernels.md). Where keys fit the device's cache rows are faster than that line; an
    engine's are not.

    Args:
        shape: of the core, or absorbed (`LatentSizes.core`).
        kv: format of the cache.
        heads, kv_heads: of this device.
        sequences: (n,).
        queries: tokens a sequence: draft tokens + 1; they share the reading of keys.
        library: the engine, whose measured kernels are used first.

    Leaves out: contexts that differ between sequences (kernels split long ones), writing of new
    keys beyond the table's. Source: tables of aiconfigurator-core 0.12.0 (generation attention and
    MLA), docs/serving-kernels.md.
    """
    n = np.asarray(sequences, dtype=np.float64)
    key_heads = np.maximum(np.asarray(kv_heads, dtype=np.float64), 1.0) + np.zeros_like(n)
    query_heads = np.asarray(heads, dtype=np.float64) + np.zeros_like(n)
    rows = queries * query_heads / key_heads
    device = machine.accelerator
    elements = _cached_elements(shape)
    read = key_heads * elements * kv.bytes / device.memory_bandwidth
    flops = 2.0 * queries * query_heads * (shape.head_dim + shape.value_dim)
    tables = serving_tables(device.name)
    table = (
        tables.decode(
            shape=(shape.head_dim, shape.value_dim), cached=_measured_bits(kv), library=library
        )
        if tables is not None
        else None
    )
    if table is not None:
        return _from_table(
            machine, table, n=n, key_heads=key_heads, rows=rows, read=read, flops=flops
        )
    slope = np.maximum(read / DECODE_BANDWIDTH, flops / (LATENT_COMPUTE * machine.attention_peak))
    moved = (
        queries * query_heads * (shape.head_dim + shape.value_dim) * WIDE / device.memory_bandwidth
    )
    start = DECODE_LAUNCHES * device.launch_s + n * (slope * DECODE_TILE + moved)
    return np.where(n > 0, start, 0.0), slope


def _from_table(
    machine: Machine,
    table: DecodeTable,
    *,
    n: FloatArray,
    key_heads: FloatArray,
    rows: FloatArray,
    read: FloatArray,
    flops: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Constant seconds and seconds a cached token of decode attention, from a measured table."""
    place, last_rows = (np.maximum(n, 1.0), key_heads, rows), 2.0 ** table.slope.axes[2][-1]
    start = machine.accelerator.launch_s * table.start.ratio(*place)
    table_slope = np.maximum(
        read * table.slope.ratio(*place),
        np.minimum(flops, flops * last_rows / rows) / machine.attention_peak,
    )
    # Beyond the table's last row, multiplications run at the rate of that row, or at the formula's
    # rate if that is higher.
    fraction_of_peak = np.clip(
        flops * np.minimum(last_rows / rows, 1.0) / (table_slope * machine.attention_peak),
        LATENT_COMPUTE,
        1.0,
    )
    slope = np.where(
        rows > last_rows,
        np.maximum(table_slope, flops / (fraction_of_peak * machine.attention_peak)),
        table_slope,
    )
    return np.where(n > 0, start, 0.0), slope


def _cached_elements(shape: AttentionShape) -> float:
    """Cached elements of a key head: keys and values, or the latent that is both."""
    latent = (
        shape.kv_heads == 1 and shape.value_dim < shape.head_dim and shape.head_dim > LARGEST_HEAD
    )
    return float(shape.head_dim if latent else shape.head_dim + shape.value_dim)


def _measured_bits(kv: NumberFormat) -> int:
    """Bits of the measured cache format for `kv`: 16 from two bytes an element up, else 8.

    Narrower caches were not measured and count their bytes.
    """
    return 16 if kv.bytes >= 2.0 else 8


LARGEST_HEAD = 512
"""Beyond it a key is no head's, but a latent with its rotary part (576 in DeepSeek's models)."""
