"""Factors on a GEMM's multiplications because of whole tiles, waves and unaligned operands."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.hardware.catalog.multiprocessors_and_gemm_tiles import (
    MULTIPROCESSORS,
    Multiprocessors,
)

ALIGNED: Final = 16
"""Bytes that operands' rows are a multiple of in the fastest kernels: one load of a thread.

Source: cuBLAS documentation, Tensor Core usage: every extent and leading dimension that is
contiguous a multiple of 16 bytes. Since cuBLAS 11.0 others use matrix units too, in slower kernels;
before, none (from memory).
"""

USUAL_TILE: Final = (128, 128)
"""Tile of kernels for unaligned operands:
``cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1`` (pytorch/pytorch#181718)."""

SPLITS: Final = (1, 2, 4, 8, 16)
"""Parts that k is cut into where the result alone has too few tiles; each writes fp32 sums that are
read again."""


def staging(
    multiprocessors: Multiprocessors,
    tile: tuple[int, int],
    *,
    element_bytes: float,
    run: int = ALIGNED,
) -> float:
    """Clocks of loading a GEMM tile's operands, `run` bytes a thread, over clocks of multiplying.

        (rows + columns) element_bytes / run x instructions / lanes
        over   rows columns / (multiplications x 2 / element_bytes)

    One instruction moves `run` bytes to shared memory where loads are asynchronous and of 4 bytes
    or more; else a load and a store.

    Args:
        element_bytes: bytes of an element.
    """
    if not multiprocessors.multiplications:
        return 0.0
    rows, columns = tile
    instructions = 1 if multiprocessors.asynchronous and run >= 4 else 2
    fetch = (rows + columns) * element_bytes / run * instructions / multiprocessors.lanes
    return fetch / (rows * columns / (multiprocessors.multiplications * 2 / element_bytes))


def unaligned(
    name: str, sides: tuple[IntArray, IntArray], *, element_bytes: float
) -> FloatArray | float:
    """Factor >= 1 on GEMM seconds where an operand's rows are no multiple of 16 bytes.

        (1 / reach + staging(run)) / (1 + staging(16))
        run = the largest power of two that divides all rows, in bytes

    Args:
        name: of the accelerator in the catalog; 1 for one whose multiprocessors are not known.
        sides: elements of the two widths of the GEMM, along which its three matrices are
            contiguous: never the tokens.

    1.46 on RTX 4090 for odd sides; measured: 155.9 over 115.6 TFLOP/s, 1.35
    (pytorch/pytorch#181718).
    """
    common_bits = np.bitwise_or(*sides)
    elements_aligned = int(ALIGNED / element_bytes)
    parts = MULTIPROCESSORS.get(name)
    if (
        parts is None
        or not parts.multiplications
        or np.bitwise_or.reduce(common_bits, axis=None) % elements_aligned == 0
    ):
        return 1.0
    run = np.minimum((common_bits & -common_bits) * element_bytes, ALIGNED)
    return np.array(
        [_unaligned_factor(parts, float(element_bytes), int(bytes_)) for bytes_ in run.ravel()]
    ).reshape(run.shape)


@lru_cache(maxsize=64)
def _unaligned_factor(multiprocessors: Multiprocessors, element_bytes: float, run: int) -> float:
    """Factor on multiplications of a GEMM whose threads load operands in pieces of `run` bytes."""
    if run >= ALIGNED:
        return 1.0
    aligned = 1.0 + staging(multiprocessors, USUAL_TILE, element_bytes=element_bytes)
    return (
        1.0 / multiprocessors.unaligned
        + staging(multiprocessors, USUAL_TILE, element_bytes=element_bytes, run=max(run, 1))
    ) / aligned


def wave_padding(
    multiprocessors: Multiprocessors,
    *,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    groups: FloatArray,
    element_bytes: float,
    intensity: float,
) -> FloatArray:
    """Factor by which whole waves of tiles raise a GEMM's multiplications.

    Multiplications that the busiest multiprocessor has time for over its share of those needed: the
    least over tiles and splits.

        waves x rows x columns x depth x (1 + staging) x count / (m n k groups) + sums
        waves = ceil(tiles x splits / count)

    over the same of a GEMM without edges in the best tile. A library picks the tile by the same
    count.

    Args:
        groups: equal GEMMs, whose tiles share the waves.
        intensity: multiplications that take as long as a byte of memory; a split writes and reads 4
            bytes of sums an element.

    Source: NVIDIA's guide (see `GPU_TILES`), sections 3.1 and 3.2: tile and wave quantisation.
    """
    # In axes: product, tile, split.
    high, wide, weight = np.array(
        [
            [*tile, 1.0 + staging(multiprocessors, tile, element_bytes=element_bytes)]
            for tile in multiprocessors.tiles
        ]
    ).T[:, :, None]
    sides = np.broadcast_arrays(m, n, k, groups)
    rows, columns, deep, many = (
        np.maximum(side.astype(np.float64), 1.0)[:, None, None] for side in sides
    )
    splits = np.array(SPLITS, dtype=np.float64)
    waves = np.ceil(
        np.ceil(rows / high) * np.ceil(columns / wide) * many * splits / multiprocessors.count
    )
    part = np.ceil(deep / splits / multiprocessors.depth) * multiprocessors.depth
    busy = waves * high * wide * part * weight / weight.min()
    sums = np.where(splits > 1.0, 8.0 * splits * intensity / deep, 0.0)
    over = busy * multiprocessors.count / (rows * columns * deep * many) + sums
    return np.asarray(np.maximum(over.min(axis=(1, 2)), 1.0))
