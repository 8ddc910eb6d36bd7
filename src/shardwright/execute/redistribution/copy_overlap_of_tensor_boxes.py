"""Copies of the shared elements between tensors that hold boxes of one global tensor."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import torch

from shardwright.program.layout.tensor_layout import Box, Indices, common_indices, count

Slices = tuple[slice, ...]
Overlap = tuple[tuple[Slices, Slices], ...]
"""Pairs (slices of the first tensor, slices of the second) that hold the same indices."""


def box_shape(box: Box) -> tuple[int, ...]:
    """Shape of the tensor that holds the elements of a box."""
    return tuple(map(count, box))


@lru_cache(maxsize=65536)
def overlap(first: Box, second: Box, within: Box) -> Overlap:
    """(slices of first, slices of second) for each run of indices in both boxes and `within`.

    Dims are in index order in both tensors.
    """
    dims = [_runs(a, b, w) for a, b, w in zip(first, second, within, strict=True)]
    return tuple(
        (tuple(slice(a, a + n) for a, _, n in runs), tuple(slice(b, b + n) for _, b, n in runs))
        for runs in product(*dims)
    )


def _runs(first: Indices, second: Indices, within: Indices) -> list[tuple[int, int, int]]:
    """Shared index runs, contiguous in both lists: (start in first, start in second, length)."""
    result: list[tuple[int, int, int]] = []
    for low, high in common_indices(common_indices(first, second), within):
        a, b = _position(first, low), _position(second, low)
        if result and (last := result[-1])[0] + last[2] == a and last[1] + last[2] == b:
            result[-1] = (last[0], last[1], last[2] + high - low)
        else:
            result.append((a, b, high - low))
    return result


def _position(indices: Indices, index: int) -> int:
    """Place of `index` in an index list: the number of its indices below it."""
    return sum(min(high, index) - low for low, high in indices if low < index)


def copy_overlap(
    places: Overlap, *, source: torch.Tensor, into: torch.Tensor, add: bool = False
) -> None:
    """Copy (or add) the overlapping elements of `source` into `into`.

    `places`: the result of `overlap` with the source's box first.
    """
    for source_slices, target_slices in places:
        if add:
            into[target_slices] += source[source_slices]
        else:
            into[target_slices] = source[source_slices]
