"""Parameters of a device as flat buckets: which elements of which of its parts stand where, read and written in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import torch

from shardwright.execute.shares.gradients import dims_in_order
from shardwright.execute.shares.parameters import Key, ParameterStore, StoredParameter
from shardwright.program.layout.layout import Box, Indices, Interval, count, normal

Rows = tuple[torch.Tensor, ...] | tuple[slice, ...]
"""What indexes a box: slices where no dim has gaps, so that it is a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Where a box lies in one of the device's parts, dims as the box has them."""

    held: StoredParameter
    order: tuple[int, ...]
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A box of a bucket: `shape`, and all parts of the device that cover it."""

    shape: tuple[int, ...]
    parts: tuple[_Part, ...]


def stretches(boxes: tuple[tuple[Key, tuple[Box, ...]], ...], store: ParameterStore) -> tuple[Stretch, ...]:
    """The device's parts behind the boxes of a bucket, in the order of the bucket."""
    found = []
    for key, own in boxes:
        order = dims_in_order(store.model, key)
        for box in own:
            parts = []
            for held in store.held.get(key, {}).values():
                rows = _rows(box, tuple(held.box[i] for i in order))
                if rows is not None:
                    parts.append(_Part(held=held, order=order, rows=rows))
            found.append(Stretch(shape=tuple(count(i) for i in box), parts=tuple(parts)))
    return tuple(found)


def values_of(bucket: tuple[Stretch, ...]) -> torch.Tensor:
    """The device's values of a bucket, flat; of parts that cover the same box all are equal."""
    like = bucket[0].parts[0].held.value
    flat = like.new_empty(sum(prod(s.shape) for s in bucket))
    for stretch, values in _each(bucket, flat):
        part = stretch.parts[0]
        values.copy_(part.held.value.permute(part.order)[part.rows])
    return flat


def gradients_of(bucket: tuple[Stretch, ...], *, dtype: torch.dtype) -> torch.Tensor:
    """The device's own gradients of a bucket, flat, in `dtype`: the sum of those of its uses."""
    flat = bucket[0].parts[0].held.value.new_empty(sum(prod(s.shape) for s in bucket), dtype=dtype)
    for stretch, total in _each(bucket, flat):
        found = [p.held.gradient.permute(p.order)[p.rows] for p in stretch.parts if p.held.gradient is not None]
        if not found:
            total.zero_()
        for number, gradient in enumerate(found):
            _ = total.add_(gradient) if number else total.copy_(gradient)
    return flat


def _each(bucket: tuple[Stretch, ...], flat: torch.Tensor) -> Iterator[tuple[Stretch, torch.Tensor]]:
    """Every stretch of a bucket with its elements of `flat`, a view of its shape."""
    for stretch, elements in zip(bucket, flat.split([prod(s.shape) for s in bucket]), strict=True):
        yield stretch, elements.view(stretch.shape)


def write_values(bucket: tuple[Stretch, ...], flat: torch.Tensor) -> None:
    """Give all parts of a bucket their values."""
    for stretch, values in _each(bucket, flat):
        for part in stretch.parts:
            part.held.value.permute(part.order)[part.rows] = values


def box_views(flat: torch.Tensor, boxes: tuple[Box, ...], *, low: int = 0) -> Iterator[tuple[tuple[Interval, ...], torch.Tensor]]:
    """Elements of boxes, cut into boxes without gaps: (interval of each dim, view of `flat` in that shape).

    Args:
        flat: contiguous; elements [low, low + numel) of all boxes one after another, each in the order of its dims.

    A range of an n-dimensional box is at most 2 n - 1 boxes of positions; each is cut again where its indices have gaps.
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
            for runs in product(*(_runs(indices, positions) for indices, positions in zip(box, block, strict=True))):
                yield tuple(interval for interval, _ in runs), view[tuple(slice(a, b) for _, (a, b) in runs)]


def _blocks(shape: tuple[int, ...], low: int, high: int) -> Iterator[tuple[Interval, ...]]:
    """Boxes of positions that make up [low, high) of an array of that shape, in its order."""
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


def _in_row(shape: tuple[int, ...], row: int, low: int, high: int) -> Iterator[tuple[Interval, ...]]:
    start = row * prod(shape[1:])
    yield from (((row, row + 1), *rest) for rest in _blocks(shape[1:], low - start, high - start))


def _runs(indices: Indices, positions: Interval) -> list[tuple[Interval, Interval]]:
    """(indices, positions counted from the first) of every run without a gap that stands at these positions."""
    found, start = [], 0
    for a, b in indices:
        low, high = max(positions[0], start), min(positions[1], start + b - a)
        if low < high:
            found.append(((a + low - start, a + high - start), (low - positions[0], high - positions[0])))
        start += b - a
    return found


def _broadcast(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Index lists shaped so that they index a box together."""
    return tuple(row.reshape((1,) * i + (-1,) + (1,) * (len(rows) - 1 - i)) for i, row in enumerate(rows))


def _rows(inner: Box, outer: Box) -> Rows | None:
    """Where the indices of `inner` stand among those of `outer`; None if one is missing."""
    found: list[list[Interval]] = []
    for own, whole in zip(inner, outer, strict=True):
        rows, starts, start = [], [], 0
        for low, high in whole:
            starts.append((low, high, start))
            start += high - low
        for a, b in own:
            place = next((begin + a - low for low, high, begin in starts if low <= a and b <= high), None)
            if place is None:
                return None
            rows.append((place, place + b - a))
        found.append(rows)
    if all(len(normal(rows)) == 1 and rows == sorted(rows) for rows in found):
        return tuple(slice(rows[0][0], rows[-1][1]) for rows in found)
    return _broadcast([torch.cat([torch.arange(a, b) for a, b in rows]) for rows in found])
