"""Copies between tensors that hold boxes of one global tensor: which slices of one are which slices
of the other.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import torch

from shardwright.program.layout.tensor_layout import Box, Indices, common_indices, count

Slices = tuple[slice, ...]
Overlap = tuple[tuple[Slices, Slices], ...]
"""(slices of the first tensor, slices of the second) that hold the same indices."""


def shape(box: Box) -> tuple[int, ...]:
    """Shape of the tensor that holds a box."""
    return tuple(map(count, box))


@lru_cache(maxsize=65536)
def overlap(first: Box, second: Box, within: Box) -> Overlap:
    """The places in two tensors of the indices that their boxes and `within` share; dims are in
    index order in both.
    """
    dims = [_runs(a, b, w) for a, b, w in zip(first, second, within, strict=True)]
    return tuple(
        (tuple(slice(a, a + n) for a, _, n in runs), tuple(slice(b, b + n) for _, b, n in runs))
        for runs in product(*dims)
    )


def _runs(first: Indices, second: Indices, within: Indices) -> list[tuple[int, int, int]]:
    """(start in the first list, start in the second, length) of each run of shared indices that is
    contiguous in both.
    """
    result: list[tuple[int, int, int]] = []
    for low, high in common_indices(common_indices(first, second), within):
        a, b = _position(first, low), _position(second, low)
        if result and (last := result[-1])[0] + last[2] == a and last[1] + last[2] == b:
            result[-1] = (last[0], last[1], last[2] + high - low)
        else:
            result.append((a, b, high - low))
    return result


def _position(indices: Indices, index: int) -> int:
    """The number of indices of the list before `index`."""
    return sum(min(high, index) - low for low, high in indices if low < index)


def copy(places: Overlap, *, source: torch.Tensor, into: torch.Tensor, add: bool = False) -> None:
    """Write, or add, what the first tensor of `places` (`source`) holds to the second (`into`)."""
    for there, here in places:
        if add:
            into[here] += source[there]
        else:
            into[here] = source[there]
