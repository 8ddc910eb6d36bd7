"""A row of devices in a given order, as a pattern where it has one: what describes a million
devices is a few numbers.

Devices 0, 1, 16, 17, 32, 33 are the pattern (3 times 16 apart, 2 times 1 apart) from device 0. Rows
that follow no pattern are kept as their differences to the first device. Each row has one form, so
that equal rows are equal and hash alike, whoever made them.

As a `range` is, a `DeviceList` is equal to no tuple: `tuple(devices)` has the numbers.
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
from shardwright.lazy_dataclass import dataclass

Levels = tuple[tuple[int, int], ...]
"""(count, step) of each level of a pattern, outermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceList(Sequence[int]):
    """Devices in order. Made by `of`, `mesh` or `run`, which find the one form of a row.

    Args:
        first: the first device.
        levels: (count, step) of each level of the pattern, outermost first, no two of which are
            one; (): the first device alone.
        offsets: where there is no pattern, what each device is behind the first one, as int64 in
            bytes; levels is then ((count, 0),). An empty row has first 0 and levels ((0, 0),).
        size, last: number of devices and the last one.
        nests: whether devices rise, and each level's step is as wide as all that is inside it.
    """

    first: int
    levels: Levels
    offsets: bytes = b""
    size: int = field(compare=False, repr=False)
    last: int = field(compare=False, repr=False)
    nests: bool = field(compare=False, repr=False)

    @staticmethod
    def of(devices: Iterable[int]) -> DeviceList:
        """The row of some devices; an array is not kept."""
        if isinstance(devices, DeviceList):
            return devices
        row = np.asarray(
            devices if isinstance(devices, (np.ndarray, list, tuple, range)) else list(devices),
            dtype=np.int64,
        )
        if not len(row):
            return EMPTY
        first, last, size = int(row[0]), int(row[-1]), len(row)
        levels = _levels(row)
        if levels is not None:
            return DeviceList(
                first=first, levels=levels, size=size, last=last, nests=_nested(levels)
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
        """`count` devices, one behind the other."""
        return DeviceList.mesh(first, ((count, 1),))

    @staticmethod
    def mesh(first: int, levels: Iterable[tuple[int, int]]) -> DeviceList:
        """Devices first + step x i + step' x j .., i from 0 to count - 1 on each level (count,
        step), outermost first.
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
        return DeviceList(first=first, levels=pattern, size=size, last=last, nests=_nested(pattern))

    def shifted(self, by: int) -> DeviceList:
        """Each device `by` further on."""
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
        """The same devices in the order of their numbers."""
        if self.rises:
            return self
        if not self.offsets and min([step for _, step in self.levels], default=0) > 0:
            row = DeviceList.mesh(self.first, sorted(self.levels, key=lambda level: -level[1]))
            if row.rises:
                return row
        return DeviceList.of(np.sort(self.array))

    @property
    def array(self) -> IntArray:
        """The devices as an array that is not written to."""
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
            return self._part(place)
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

    def _part(self, place: slice) -> DeviceList:
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
            return _has(self.levels, int(device) - self.first)
        return bool((self.array == device).any())

    def index(self, value: int, start: int = 0, stop: int | None = None) -> int:
        """Place of the first one that is `value`."""
        found = np.flatnonzero(self.array[start:stop] == value)
        if not len(found):
            raise ValueError(f"device {value} is not in the list")
        return int(found[0]) + range(len(self))[start:].start

    def count(self, value: int) -> int:
        """How many are `value`."""
        return int((self.array == value).sum())

    def common(self, others: DeviceList) -> DeviceList:
        """Those that are among others too, in this row's order."""
        if self == others:
            return self
        row = self.array
        return DeviceList.of(row[others.has(row)])

    def has(self, devices: IntArray) -> BoolArray:
        """Which of some devices are in this row."""
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
        """As tuples of the numbers compare."""
        if self.first != other.first and self.size and other.size:
            return self.first < other.first
        one, two = self.array, other.array
        both = min(len(one), len(two))
        differ = np.flatnonzero(one[:both] != two[:both])
        return bool(one[differ[0]] < two[differ[0]]) if len(differ) else len(one) < len(two)

    def within(self, low: int, high: int) -> int:
        """How many devices are from `low` to before `high`."""
        if self.nests and low <= self.first and self.last < high:
            return self.size
        if self.nests:
            return max(
                _below(self.levels, high - self.first) - _below(self.levels, low - self.first), 0
            )
        row = self.array
        return int(((row >= low) & (row < high)).sum())

    @property
    def rises(self) -> bool:
        """Whether each device is above the one before."""
        return self.nests or bool((np.diff(self.array) > 0).all())

    @property
    def is_run(self) -> bool:
        """Whether the devices are one behind the other."""
        return not self.offsets and self.levels in ((), ((self.size, 1),))


EMPTY = DeviceList(first=0, levels=((0, 0),), size=0, last=0, nests=False)


def apart(rows: Iterable[DeviceList]) -> bool:
    """Whether no device is in two of some rows, or twice in one."""
    rows = [row for row in rows if row.size]
    if False not in [row.nests or row.rises for row in rows]:
        ends = sorted([(row.first, row.last) for row in rows])
        if (
            all(one[1] < other[0] for one, other in pairwise(ends))
            or _interleaved(rows) is not None
        ):
            return True
    return not rows or int(_mask(rows).sum()) == sum([row.size for row in rows])


def union(rows: Iterable[DeviceList]) -> DeviceList:
    """All devices of some rows, each once, by number."""
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
    return _interleaved(different) or DeviceList.of(np.flatnonzero(_mask(different)))


def _distinct(row: DeviceList) -> DeviceList:
    """The devices of a row by number, each once."""
    row = row.by_number()
    return row if row.rises else DeviceList.of(distinct(row.array))


def _interleaved(rows: Sequence[DeviceList]) -> DeviceList | None:
    """The devices of rows of one pattern that begin at different devices, as one pattern, where
    none of them is in two; else None.
    """
    levels = rows[0].levels
    if any(row.offsets or row.levels != levels for row in rows):
        return None
    firsts = DeviceList.of(sorted(row.first for row in rows))
    both = DeviceList.mesh(
        firsts.first, sorted((*levels, *firsts.levels), key=lambda level: -level[1])
    )
    return both if not firsts.offsets and both.rises else None


def _mask(rows: Sequence[DeviceList]) -> BoolArray:
    """Whether each device up to the last one is in a row."""
    arrays = [row.array for row in rows]
    found = np.zeros(1 + max(int(row.max(initial=-1)) for row in arrays), dtype=np.bool_)
    for row in arrays:
        found[row] = True
    return found


@lru_cache(maxsize=4096)
def _nested(levels: Levels) -> bool:
    width = 1
    for count, step in reversed(levels):
        if step < width:
            return False
        width = step * (count - 1) + width
    return True


def _has(levels: Levels, offset: int) -> bool:
    """Whether an offset is in a nested pattern that begins at 0."""
    for count, step in levels:
        index, offset = divmod(offset, step)
        if not 0 <= index < count:
            return False
    return offset == 0


def _below(levels: Levels, offset: int) -> int:
    """How many of a nested pattern that begins at 0 are below an offset."""
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


def _levels(row: IntArray) -> Levels | None:
    """The pattern of two devices or more: the longest run of one step at its begin is its innermost
    level; None where there is none.
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
