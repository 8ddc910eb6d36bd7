"""Parameters of a device as flat buckets: which elements of which of its parts stand where, read and written in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from shardwright.execute.gradients import dims_in_order
from shardwright.execute.parameters import Held, Key, ParameterStore
from shardwright.program.layout import Box, Indices, count, volume

Rows = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Where a box lies in one of the device's parts, dims as the box has them."""

    held: Held
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
    return torch.cat([s.parts[0].held.value.permute(s.parts[0].order)[s.parts[0].rows].reshape(-1) for s in bucket])


def gradients_of(bucket: tuple[Stretch, ...], *, dtype: torch.dtype) -> torch.Tensor:
    """The device's own gradients of a bucket, flat, in `dtype`: the sum of those of its uses."""
    flat = []
    for stretch in bucket:
        total = torch.zeros(stretch.shape, dtype=dtype, device=stretch.parts[0].held.value.device)
        for part in stretch.parts:
            if part.held.gradient is not None:
                total = total + part.held.gradient.permute(part.order)[part.rows]
        flat.append(total.reshape(-1))
    return torch.cat(flat)


def write_values(bucket: tuple[Stretch, ...], flat: torch.Tensor) -> None:
    """Give all parts of a bucket their values."""
    for stretch, values in zip(bucket, flat.split([prod(s.shape) for s in bucket]), strict=True):
        for part in stretch.parts:
            part.held.value.permute(part.order)[part.rows] = values.reshape(stretch.shape).to(part.held.value.dtype)


def write_gradients(bucket: tuple[Stretch, ...], flat: torch.Tensor) -> None:
    """Give all parts of a bucket their gradients."""
    for stretch, values in zip(bucket, flat.split([prod(s.shape) for s in bucket]), strict=True):
        for part in stretch.parts:
            if part.held.gradient is None:
                part.held.gradient = torch.zeros_like(part.held.value, dtype=flat.dtype)
            part.held.gradient.permute(part.order)[part.rows] = values.reshape(stretch.shape)


def boxed(whole: torch.Tensor, boxes: tuple[Box, ...], order: tuple[int, ...], *, low: int, high: int) -> torch.Tensor:
    """Elements [low, high) of those of a whole parameter in boxes (dims in `order`), flat, in the order of a bucket."""
    return whole.reshape(-1)[_places(tuple(whole.shape), boxes, order, low, high)]


def unboxed(whole: torch.Tensor, boxes: tuple[Box, ...], order: tuple[int, ...], *, low: int, values: torch.Tensor) -> None:
    """Write `values`, elements of boxes from `low` on, into a whole parameter (contiguous)."""
    whole.view(-1)[_places(tuple(whole.shape), boxes, order, low, low + values.numel())] = values


def _places(shape: tuple[int, ...], boxes: tuple[Box, ...], order: tuple[int, ...], low: int, high: int) -> torch.Tensor:
    """Where elements [low, high) of boxes stand in a whole parameter, both in the order of their dims."""
    found, begin = [], 0
    for box in boxes:
        a, b = max(low - begin, 0), min(high - begin, volume(box))
        begin += volume(box)
        if a >= b:
            continue
        left, places = torch.arange(a, b), torch.zeros(b - a, dtype=torch.int64)
        for indices, dim in reversed(list(zip(box, order, strict=True))):
            places += _positions(indices)[left % count(indices)] * prod(shape[dim + 1 :])
            left = left // count(indices)
        found.append(places)
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


def _positions(indices: Indices) -> torch.Tensor:
    return torch.cat([torch.arange(a, b) for a, b in indices])


def _broadcast(rows: list[torch.Tensor]) -> Rows:
    """Index lists shaped so that they index a box together."""
    return tuple(row.reshape((1,) * i + (-1,) + (1,) * (len(rows) - 1 - i)) for i, row in enumerate(rows))


def _rows(inner: Box, outer: Box) -> Rows | None:
    """Where the indices of `inner` stand among those of `outer`; None if one is missing."""
    found = []
    for own, whole in zip(inner, outer, strict=True):
        rows, starts, start = [], [], 0
        for low, high in whole:
            starts.append((low, high, start))
            start += high - low
        for a, b in own:
            place = next((begin + a - low for low, high, begin in starts if low <= a and b <= high), None)
            if place is None:
                return None
            rows.append(torch.arange(place, place + b - a))
        found.append(torch.cat(rows))
    return _broadcast(found)
