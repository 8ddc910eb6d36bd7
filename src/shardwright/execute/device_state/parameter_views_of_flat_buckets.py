"""Flat buckets: a device's parameters as views of one values tensor and one gradients tensor."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from shardwright.execute.device_state.stored_parameter_parts import (
    Key,
    ParameterStore,
    StoredParameter,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Box, Interval, count, joined_intervals

Rows = tuple[torch.Tensor, ...] | tuple[slice, ...]
"""Indices of a box in a tensor: slices where no dim has gaps (so that it is a view), else index
tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfBox:
    """The place of a bucket's box in one of the device's stored parts.

    `is_all`: the box is the whole part.
    """

    held: StoredParameter
    rows: Rows
    is_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketBox:
    """A box of a bucket: its shape, and all stored parts of the device that cover it."""

    shape: tuple[int, ...]
    parts: tuple[PartOfBox, ...]


@dataclass(slots=True, kw_only=True)
class FlatBucket:
    """A device's elements of a bucket in one flat tensor, box after box.

    A stored part that equals one box is a view of the values; if it is the first part of its box,
    its first gradient is written directly to the gradients. Other parts (a box with gaps in a
    larger part) are copied.

    Args:
        boxes: boxes of the bucket, in the bucket's order.
        values: None: the values are sharded and not gathered.
        gradients: None: each part has its own gradient.
    """

    boxes: tuple[BucketBox, ...]
    values: torch.Tensor | None = None
    gradients: torch.Tensor | None = None

    @property
    def parts(self) -> Iterator[PartOfBox]:
        """Iterate over the stored parameter parts that lie in the bucket, box after box."""
        return (part for box in self.boxes for part in box.parts)

    def copy_values(self) -> torch.Tensor:
        """Copy the bucket's parameter values into a new flat tensor, box after box.

        Parts that cover the same box have equal values.
        """
        flat = self._empty(next(self.parts).held.value.dtype)
        for box, values in self._box_views(flat):
            values.copy_(box.parts[0].held.value[box.parts[0].rows])
        return flat

    def set_values(self, flat: torch.Tensor) -> None:
        """Make parts that equal a box views of the new values `flat`, and copy into the others."""
        self.values = flat
        for box, values in self._box_views(flat):
            for part in box.parts:
                if part.is_all:
                    part.held.value = values
                    continue
                if not part.held.value.numel():
                    part.held.value = flat.new_empty([count(dim) for dim in part.held.box])
                part.held.value[part.rows] = values

    def allocate_gradients(self, dtype: torch.dtype) -> None:
        """Allocate an uninitialised flat gradient if there is none; first gradients go into it."""
        if self.gradients is not None:
            return
        self.gradients = self._empty(dtype)
        for box, room in self._box_views(self.gradients):
            first = box.parts[0]
            if first.is_all:
                first.held.room = room

    def own_gradients(self, dtype: torch.dtype) -> torch.Tensor:
        """Device's own flat gradient of the bucket: its stored parts' sum, 0 where none has one.

        Gradients are overwritten: `gradients` itself is returned.
        """
        flat = self._empty(dtype) if self.gradients is None else self.gradients
        for box, total in self._box_views(flat):
            parts_with_gradient = [
                (part.held, part.rows) for part in box.parts if part.held.gradient is not None
            ]
            separate_gradients = [
                stored.gradient[rows]
                for stored, rows in parts_with_gradient
                if stored.gradient is not None and stored.gradient is not stored.room
            ]
            if not parts_with_gradient:
                total.zero_()
            elif len(separate_gradients) == len(parts_with_gradient):
                total.copy_(separate_gradients.pop(0))
            for gradient in separate_gradients:
                total.add_(gradient)
        return flat

    def _box_views(self, flat: torch.Tensor) -> Iterator[tuple[BucketBox, torch.Tensor]]:
        """Iterate over the boxes with their elements of `flat`, as views of their shapes."""
        for box, elements in zip(
            self.boxes, flat.split([prod(s.shape) for s in self.boxes]), strict=True
        ):
            yield box, elements.view(box.shape)

    def _empty(self, dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised flat tensor with room for all boxes of the bucket."""
        return next(self.parts).held.value.new_empty(
            sum(prod(s.shape) for s in self.boxes), dtype=dtype
        )


def flat_bucket(
    boxes: tuple[tuple[Key, tuple[Box, ...]], ...], store: ParameterStore
) -> FlatBucket:
    """Make a bucket's flat view: its boxes, each with the device's stored parts that cover it."""
    bucket_boxes = []
    for key, boxes_of_key in boxes:
        for box in boxes_of_key:
            parts = []
            for stored in store.held.get(key, {}).values():
                rows = rows_within(box, stored.box)
                if rows is not None:
                    is_all = all(
                        count(boxes_of_key) == count(stored_indices)
                        for boxes_of_key, stored_indices in zip(box, stored.box, strict=True)
                    )
                    parts.append(PartOfBox(held=stored, rows=rows, is_all=is_all))
            bucket_boxes.append(BucketBox(shape=tuple(count(i) for i in box), parts=tuple(parts)))
    return FlatBucket(boxes=tuple(bucket_boxes))


def _indexable(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Reshape one index list a dim so that indexing with all of them at once selects a box."""
    return tuple(
        row.reshape((1,) * i + (-1,) + (1,) * (len(rows) - 1 - i)) for i, row in enumerate(rows)
    )


def rows_within(inner: Box, outer: Box) -> Rows | None:
    """Index of box `inner` in a tensor of box `outer`, by dim; None if an index is not in it."""
    rows_by_dim: list[list[Interval]] = []
    for inner_indices, outer_indices in zip(inner, outer, strict=True):
        rows, starts, start = [], [], 0
        for low, high in outer_indices:
            starts.append((low, high, start))
            start += high - low
        for a, b in inner_indices:
            place = next(
                (first_row + a - low for low, high, first_row in starts if low <= a and b <= high),
                None,
            )
            if place is None:
                return None
            rows.append((place, place + b - a))
        rows_by_dim.append(rows)
    if all(len(joined_intervals(rows)) == 1 for rows in rows_by_dim):
        return tuple(slice(rows[0][0], rows[-1][1]) for rows in rows_by_dim)
    return _indexable([torch.cat([torch.arange(a, b) for a, b in rows]) for rows in rows_by_dim])
