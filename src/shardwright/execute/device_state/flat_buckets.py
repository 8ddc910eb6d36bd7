"""Parameters of a device as flat buckets: its parts are views of one tensor of values, and of one
of gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from shardwright.execute.device_state.device_parameters import Key, ParameterStore, StoredParameter
from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Box, Interval, count, joined_intervals

Rows = tuple[torch.Tensor, ...] | tuple[slice, ...]
"""What indexes a box: slices where no dim has gaps, so that it is a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """The place of a box in one of the device's parts. is_all: the box is the whole part."""

    held: StoredParameter
    rows: Rows
    is_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketBox:
    """A box of a bucket: `shape`, and all parts of the device that cover it."""

    shape: tuple[int, ...]
    parts: tuple[HeldPart, ...]


@dataclass(slots=True, kw_only=True)
class FlatBucket:
    """The device's elements of a bucket, one behind the other.

    A part that is one box is a view: of the values, and, if it is the first of its box, what is
    first added to its gradient is written among the gradients. Others (a box with gaps in a larger
    part) are copied.

    Args:
        stretches: boxes of the bucket, in its order.
        values: None: they are sharded and not gathered.
        gradients: None: each part has its own.
    """

    stretches: tuple[BucketBox, ...]
    values: torch.Tensor | None = None
    gradients: torch.Tensor | None = None

    @property
    def parts(self) -> Iterator[HeldPart]:
        """All parts of all boxes."""
        return (part for stretch in self.stretches for part in stretch.parts)

    def own_values(self) -> torch.Tensor:
        """The values that the parts have, copied;
        of parts that cover the same box all are equal.
        """
        flat = self._empty(next(self.parts).held.value.dtype)
        for stretch, values in self._each(flat):
            values.copy_(stretch.parts[0].held.value[stretch.parts[0].rows])
        return flat

    def show(self, flat: torch.Tensor) -> None:
        """Give all parts their values: they become views of `flat`, which is the bucket's from now
        on.
        """
        self.values = flat
        for stretch, values in self._each(flat):
            for part in stretch.parts:
                if part.is_all:
                    part.held.value = values
                    continue
                if not part.held.value.numel():
                    part.held.value = flat.new_empty([count(dim) for dim in part.held.box])
                part.held.value[part.rows] = values

    def make_room(self, dtype: torch.dtype) -> None:
        """Keep gradients in one tensor of this format from now on."""
        if self.gradients is not None:
            return
        self.gradients = self._empty(dtype)
        for stretch, room in self._each(self.gradients):
            first = stretch.parts[0]
            if first.is_all:
                first.held.room = room

    def own_gradients(self, dtype: torch.dtype) -> torch.Tensor:
        """The device's own gradients, in `dtype`: the sum of those of its uses. They are used up:
        `gradients` itself is returned.
        """
        flat = self._empty(dtype) if self.gradients is None else self.gradients
        for stretch, total in self._each(flat):
            held = [
                (part.held, part.rows) for part in stretch.parts if part.held.gradient is not None
            ]
            more = [
                own.gradient[rows]
                for own, rows in held
                if own.gradient is not None and own.gradient is not own.room
            ]
            if not held:
                total.zero_()
            elif len(more) == len(held):
                total.copy_(more.pop(0))
            for gradient in more:
                total.add_(gradient)
        return flat

    def _each(self, flat: torch.Tensor) -> Iterator[tuple[BucketBox, torch.Tensor]]:
        """Every stretch with its elements of `flat`, a view of its shape."""
        for stretch, elements in zip(
            self.stretches, flat.split([prod(s.shape) for s in self.stretches]), strict=True
        ):
            yield stretch, elements.view(stretch.shape)

    def _empty(self, dtype: torch.dtype) -> torch.Tensor:
        return next(self.parts).held.value.new_empty(
            sum(prod(s.shape) for s in self.stretches), dtype=dtype
        )


def flat_bucket(
    boxes: tuple[tuple[Key, tuple[Box, ...]], ...], store: ParameterStore
) -> FlatBucket:
    """The device's parts behind the boxes of a bucket, in the order of the bucket."""
    found = []
    for key, own in boxes:
        for box in own:
            parts = []
            for held in store.held.get(key, {}).values():
                rows = _rows(box, held.box)
                if rows is not None:
                    is_all = all(
                        count(own) == count(whole) for own, whole in zip(box, held.box, strict=True)
                    )
                    parts.append(HeldPart(held=held, rows=rows, is_all=is_all))
            found.append(BucketBox(shape=tuple(count(i) for i in box), parts=tuple(parts)))
    return FlatBucket(stretches=tuple(found))


def _broadcast(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Index lists shaped so that they index a box together."""
    return tuple(
        row.reshape((1,) * i + (-1,) + (1,) * (len(rows) - 1 - i)) for i, row in enumerate(rows)
    )


def _rows(inner: Box, outer: Box) -> Rows | None:
    """Rows of the indices of `inner` among those of `outer`; None if one is missing."""
    found: list[list[Interval]] = []
    for own, whole in zip(inner, outer, strict=True):
        rows, starts, start = [], [], 0
        for low, high in whole:
            starts.append((low, high, start))
            start += high - low
        for a, b in own:
            place = next(
                (begin + a - low for low, high, begin in starts if low <= a and b <= high), None
            )
            if place is None:
                return None
            rows.append((place, place + b - a))
        found.append(rows)
    if all(len(joined_intervals(rows)) == 1 for rows in found):
        return tuple(slice(rows[0][0], rows[-1][1]) for rows in found)
    return _broadcast([torch.cat([torch.arange(a, b) for a, b in rows]) for rows in found])
