"""Ordered lists of device numbers, stored as a nested strided pattern where possible.

A few integers then describe a million devices. Devices 0, 1, 16, 17, 32, 33 are stored as first
device 0 and the levels (count 3, step 16) and (count 2, step 1). A list that follows no such
pattern is stored as the offset of each device from the first one. Two lists of the same devices in
the same order always have the same stored form, so they compare equal and have the same hash.

A `DeviceList` never compares equal to a tuple, as a `range` does not. `tuple(devices)` gives the
device numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, overload

import numpy as np

from shardwright.arrays import BoolArray, IntArray, distinct
from shardwright.lazily_compiled_dataclass import dataclass

Levels = tuple[tuple[int, int], ...]
"""(count, step) of each level of a pattern, outermost first; step in device numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceList(Sequence[int]):
    """Device numbers in a given order, stored as a pattern (first, levels) or as offsets.

    Construct a list with `of`, `mesh` or `run`, which find the one stored form of a list.

    Args:
        first: the first device of the list.
        levels: (count, step) of each level of the pattern, outermost first. Two levels that could
            be merged into one are merged. () is a list of the first device alone.
        offsets: where the list follows no pattern, each device number minus `first`, as the bytes
            of an int64 array; levels is then ((count, 0),). b"" for a list that follows a pattern.
            An empty list has first 0 and levels ((0, 0),).
        size, last: the number of devices, and the last device of the list.
        nests: the list follows a pattern, and the step of each level is at least the span of device
            numbers that the levels inside it cover. Device numbers then increase.
    """

    first: int
    levels: Levels
    offsets: bytes = b""
    size: int = field(compare=False, repr=False)
    last: int = field(compare=False, repr=False)
    nests: bool = field(compare=False, repr=False)

    @staticmethod
    def of(devices: Iterable[int]) -> DeviceList:
        """Build a list of device numbers in the given order; returns a `DeviceList` as it is."""
        if isinstance(devices, DeviceList):
            return devices
        row = np.asarray(
            devices if isinstance(devices, (np.ndarray, list, tuple, range)) else list(devices),
            dtype=np.int64,
        )
        if not len(row):
            return EMPTY
        first, last, size = int(row[0]), int(row[-1]), len(row)
        levels = _pattern_levels(row)
        if levels is not None:
            return DeviceList(
                first=first, levels=levels, size=size, last=last, nests=_is_nested(levels)
            )
        return DeviceList(
            first=first,
            levels=((size, 0),),
            offsets=(row - first).tobytes(),
            size=size,
            last=last,
            nests=False,
        )

    @staticmethod
    def run(first: int, count: int) -> DeviceList:
        """Build the list of `count` consecutive device numbers from `first`."""
        return DeviceList.mesh(first, ((count, 1),))

    @staticmethod
    def mesh(first: int, levels: Iterable[tuple[int, int]]) -> DeviceList:
        """Build the list of a strided mesh: nested loops over (count, step), outermost first.

        Its devices are first + step_1 x i_1 + step_2 x i_2 + .., where i_k runs from 0 to count_k -
        1.
        """
        found: list[tuple[int, int]] = []
        size, last = 1, first
        for count, step in reversed(tuple(levels)):
            if not count:
                return EMPTY
            size, last = size * count, last + (count - 1) * step
            if count == 1:
                continue
            if found and step == found[-1][0] * found[-1][1]:
                found[-1] = (count * found[-1][0], found[-1][1])
            else:
                found.append((count, step))
        pattern = tuple(reversed(found))
        return DeviceList(
            first=first, levels=pattern, size=size, last=last, nests=_is_nested(pattern)
        )

    def shifted(self, by: int) -> DeviceList:
        """Copy of the list with `by` added to each device number."""
        if not by or not self.size:
            return self
        return DeviceList(
            first=self.first + by,
            levels=self.levels,
            offsets=self.offsets,
            size=self.size,
            last=self.last + by,
            nests=self.nests,
        )

    def by_number(self) -> DeviceList:
        """The same devices, sorted by device number; duplicates stay."""
        if self.rises:
            return self
        if not self.offsets and min([step for _, step in self.levels], default=0) > 0:
            row = DeviceList.mesh(self.first, sorted(self.levels, key=lambda level: -level[1]))
            if row.rises:
                return row
        return DeviceList.of(np.sort(self.array))

    @property
    def array(self) -> IntArray:
        """The device numbers as a read-only int64 array."""
        if self.offsets:
            row = np.frombuffer(self.offsets, dtype=np.int64) + self.first
        else:
            row = np.full(1, self.first, dtype=np.int64)
            for count, step in self.levels:
                row = np.add.outer(
                    row,
                    np.arange(0, count * step, step) if step else np.zeros(count, dtype=np.int64),
                ).reshape(-1)
        row.setflags(write=False)
        return row

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> IntArray:
        row = self.array
        return row if dtype in (None, row.dtype) else row.astype(dtype)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        numbers: list[int] = self.array.tolist()
        return iter(numbers)

    def __reversed__(self) -> Iterator[int]:
        numbers: list[int] = self.array.tolist()
        return reversed(numbers)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> DeviceList: ...
    def __getitem__(self, place: int | slice) -> int | DeviceList:
        if isinstance(place, slice):
            return self._slice(place)
        left = range(self.size)[place]
        if self.offsets:
            return self.first + int(
                np.frombuffer(self.offsets, dtype=np.int64, count=1, offset=8 * left)[0]
            )
        found = self.first
        for count, step in reversed(self.levels):
            left, index = divmod(left, count)
            found += index * step
        return found

    def _slice(self, place: slice) -> DeviceList:
        """Sub-list of the positions in a slice."""
        if len(self.levels) > 1 or self.offsets:
            return DeviceList.of(self.array[place])
        places, step = range(len(self))[place], self.levels[0][1] if self.levels else 0
        return DeviceList.mesh(
            self.first + places.start * step, ((len(places), places.step * step),)
        )

    def __contains__(self, device: object) -> bool:
        if not isinstance(device, (int, np.integer)):
            return False
        if self.nests:
            return _pattern_contains(self.levels, int(device) - self.first)
        return bool((self.array == device).any())

    def index(self, value: int, start: int = 0, stop: int | None = None) -> int:
        """Position of the first occurrence of device `value`; ValueError if it is not there."""
        found = np.flatnonzero(self.array[start:stop] == value)
        if not len(found):
            raise ValueError(f"device {value} is not in the list")
        return int(found[0]) + range(len(self))[start:].start

    def count(self, value: int) -> int:
        """Number of times that device `value` occurs in the list."""
        return int((self.array == value).sum())

    def common(self, others: DeviceList) -> DeviceList:
        """Devices that are in both lists, in the order of this list."""
        if self == others:
            return self
        row = self.array
        return DeviceList.of(row[others.has(row)])

    def has(self, devices: IntArray) -> BoolArray:
        """Boolean array like `devices`: true where a device is in this list."""
        if not self.nests:
            row = np.sort(self.array)
            return (
                np.asarray(row[np.searchsorted(row, devices).clip(max=len(row) - 1)] == devices)
                if len(row)
                else devices != devices
            )
        left, found = devices - self.first, np.ones(devices.shape, dtype=np.bool_)
        for count, step in self.levels:
            index, left = np.divmod(left, step)
            found &= (index >= 0) & (index < count)
        return np.asarray(found & (left == 0))

    def __lt__(self, other: DeviceList) -> bool:
        """True if this list comes before the other in lexicographic order, as for tuples."""
        if self.first != other.first and self.size and other.size:
            return self.first < other.first
        one, two = self.array, other.array
        both = min(len(one), len(two))
        differ = np.flatnonzero(one[:both] != two[:both])
        return bool(one[differ[0]] < two[differ[0]]) if len(differ) else len(one) < len(two)

    def within(self, low: int, high: int) -> int:
        """Number of devices d of the list with low <= d < high."""
        if self.nests and low <= self.first and self.last < high:
            return self.size
        if self.nests:
            return max(
                _count_below(self.levels, high - self.first)
                - _count_below(self.levels, low - self.first),
                0,
            )
        row = self.array
        return int(((row >= low) & (row < high)).sum())

    @property
    def rises(self) -> bool:
        """True if device numbers strictly increase along the list."""
        return self.nests or bool((np.diff(self.array) > 0).all())

    @property
    def is_run(self) -> bool:
        """True if the devices are consecutive numbers, in increasing order."""
        return not self.offsets and self.levels in ((), ((self.size, 1),))


EMPTY = DeviceList(first=0, levels=((0, 0),), size=0, last=0, nests=False)


def are_disjoint(rows: Iterable[DeviceList]) -> bool:
    """True if no device is in two of the lists or twice in one list."""
    rows = [row for row in rows if row.size]
    if False not in [row.nests or row.rises for row in rows]:
        ends = sorted([(row.first, row.last) for row in rows])
        if (
            all(one[1] < other[0] for one, other in pairwise(ends))
            or _interleaved(rows) is not None
        ):
            return True
    return not rows or int(_membership_mask(rows).sum()) == sum([row.size for row in rows])


def union(rows: Iterable[DeviceList]) -> DeviceList:
    """Sorted list of the devices that are in any of the lists, without duplicates."""
    objects = {id(row): row for row in rows if row.size}
    different = sorted({_distinct(row) for row in objects.values()}, key=lambda row: row.first)
    if len(different) < 2:
        return different[0] if different else EMPTY
    if all(row.is_run for row in different) and all(
        one.last + 1 >= other.first for one, other in pairwise(different)
    ):
        return DeviceList.run(
            different[0].first, max([row.last for row in different]) + 1 - different[0].first
        )
    return _interleaved(different) or DeviceList.of(np.flatnonzero(_membership_mask(different)))


def _distinct(row: DeviceList) -> DeviceList:
    """Sorted list of the devices of a list, without duplicates."""
    row = row.by_number()
    return row if row.rises else DeviceList.of(distinct(row.array))


def _interleaved(rows: Sequence[DeviceList]) -> DeviceList | None:
    """Union of lists with equal levels as one rising pattern; None if levels differ or none fits.

    The first devices of the lists must differ.
    """
    levels = rows[0].levels
    if any(row.offsets or row.levels != levels for row in rows):
        return None
    firsts = DeviceList.of(sorted(row.first for row in rows))
    both = DeviceList.mesh(
        firsts.first, sorted((*levels, *firsts.levels), key=lambda level: -level[1])
    )
    return both if not firsts.offsets and both.rises else None


def _membership_mask(rows: Sequence[DeviceList]) -> BoolArray:
    """For each device from 0 to the highest of the lists, true if any list has the device."""
    arrays = [row.array for row in rows]
    found = np.zeros(1 + max(int(row.max(initial=-1)) for row in arrays), dtype=np.bool_)
    for row in arrays:
        found[row] = True
    return found


@lru_cache(maxsize=4096)
def _is_nested(levels: Levels) -> bool:
    """True if every level's step is at least the span of the levels inside it (no overlap)."""
    width = 1
    for count, step in reversed(levels):
        if step < width:
            return False
        width = step * (count - 1) + width
    return True


def _pattern_contains(levels: Levels, offset: int) -> bool:
    """True if `offset` is in a nested pattern whose first device is 0."""
    for count, step in levels:
        index, offset = divmod(offset, step)
        if not 0 <= index < count:
            return False
    return offset == 0


def _count_below(levels: Levels, offset: int) -> int:
    """Number of devices below `offset` in a nested pattern whose first device is 0."""
    found, inside = 0, prod([count for count, _ in levels])
    for count, step in levels:
        inside //= count
        index, left = divmod(offset, step)
        if index < 0:
            return found
        if index >= count:
            return found + count * inside
        found, offset = found + index * inside, left
    return found + (offset > 0)


def _pattern_levels(row: IntArray) -> Levels | None:
    """(count, step) levels, outermost first, of a device array; None if no strided pattern.

    The longest run of constant step at the start of the array is the innermost level. The array
    must be a repetition of that run, and the first devices of the runs are then treated alike.
    """
    levels: list[tuple[int, int]] = []
    while len(row) > 1:
        step = int(row[1]) - int(row[0])
        differs = np.diff(row) != step
        if not differs.any():
            levels.append((len(row), step))
            break
        run = int(differs.argmax()) + 1
        if len(row) % run:
            return None
        table = row.reshape(-1, run)
        if (np.diff(table, axis=1) != step).any():
            return None
        levels.append((run, step))
        row = table[:, 0]
    return tuple(reversed(levels))
