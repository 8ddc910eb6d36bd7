"""Ranges of flat tensors as parts of the boxes whose elements they hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import torch

from shardwright.program.layout.tensor_layout import Box, Indices, Interval, count


def box_views(
    flat: torch.Tensor, boxes: tuple[Box, ...], *, low: int = 0
) -> Iterator[tuple[tuple[Interval, ...], torch.Tensor]]:
    """Iterate over gapless parts of boxes in `flat`: (index interval of each dim, view of `flat`).

    Args:
        flat: contiguous; elements [low, low + numel) of all boxes one after another, each in the
            order of its dims.

    A range of an n-dimensional box is at most 2 n - 1 boxes of positions; each is cut again where
    its indices have gaps.
    """
    begin, at = 0, 0
    for box in boxes:
        shape = tuple(count(indices) for indices in box)
        start, stop = max(low - begin, 0), min(low + flat.numel() - begin, prod(shape))
        begin += prod(shape)
        for block in _blocks(shape, start, stop):
            size = prod(b - a for a, b in block)
            view = flat[at : at + size].view([b - a for a, b in block])
            at += size
            for runs in product(
                *(_runs(indices, positions) for indices, positions in zip(box, block, strict=True))
            ):
                yield (
                    tuple(interval for interval, _ in runs),
                    view[tuple(slice(a, b) for _, (a, b) in runs)],
                )


def _blocks(shape: tuple[int, ...], low: int, high: int) -> Iterator[tuple[Interval, ...]]:
    """Boxes that together are the elements [low, high) of an array in flat order."""
    if low >= high:
        return
    inner = prod(shape[1:])
    first, last = -(-low // inner), high // inner
    if first > last:
        yield from _in_row(shape, first - 1, low, high)
        return
    yield from _in_row(shape, first - 1, low, first * inner)
    if first < last:
        yield ((first, last), *((0, n) for n in shape[1:]))
    yield from _in_row(shape, last, last * inner, high)


def _in_row(
    shape: tuple[int, ...], row: int, low: int, high: int
) -> Iterator[tuple[Interval, ...]]:
    """Boxes that together are flat elements [low, high) of an array, all inside row index `row`."""
    start = row * prod(shape[1:])
    yield from (((row, row + 1), *rest) for rest in _blocks(shape[1:], low - start, high - start))


def _runs(indices: Indices, positions: Interval) -> list[tuple[Interval, Interval]]:
    """Gapless runs of the indices at `positions`: (indices, interval from start of `positions`)."""
    runs, start = [], 0
    for a, b in indices:
        low, high = max(positions[0], start), min(positions[1], start + b - a)
        if low < high:
            runs.append(
                ((a + low - start, a + high - start), (low - positions[0], high - positions[0]))
            )
        start += b - a
    return runs
