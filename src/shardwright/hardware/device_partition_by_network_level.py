"""Partition of devices into the units, such as islands, of one network level."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Partition of all devices into the units (such as islands) of one network level.

    Units are stored as runs of equal units, in the order of devices.

    Args:
        first: first device of each run, from 0.
        size: devices of a unit of each run.
        number: number of the first unit of each run.
    """

    first: tuple[int, ...]
    size: tuple[int, ...]
    number: tuple[int, ...]

    def of(self, devices: IntArray) -> IntArray:
        """Index of the unit that each device lies in.

        With runs of (0, 8) and (16, 72) devices 7, 8, 16 and 87 lie in units 0, 1, 2 and 2.
        """
        if len(self.first) == 1:
            return np.asarray(devices // self.size[0], dtype=np.int64)
        run = np.searchsorted(np.array(self.first), devices, side="right") - 1
        first, size, number = (
            np.array(column)[run] for column in (self.first, self.size, self.number)
        )
        return np.asarray(number + (devices - first) // size, dtype=np.int64)

    def at(self, device: int) -> int:
        """Index of the unit that one device lies in."""
        run = bisect_right(self.first, device) - 1
        return self.number[run] + (device - self.first[run]) // self.size[run]

    def around(self, device: int) -> tuple[int, int]:
        """First device of the unit that a device lies in, and the first device after that unit."""
        run = bisect_right(self.first, device) - 1
        first = device - (device - self.first[run]) % self.size[run]
        return first, min([first + self.size[run], *self.first[run + 1 : run + 2]])

    def seen_from(self, first: int, lasts: Iterable[int]) -> tuple[int, Units]:
        """(First device of the unit of `first`, units renumbered from it up to the max of `lasts`).

        The units reach up to the largest of `lasts`. The result is equal wherever devices have an
        equal neighbourhood.
        """
        if len(self.first) == 1:
            return first - first % self.size[0], self
        run = bisect_right(self.first, first) - 1
        base = first - (first - self.first[run]) % self.size[run]
        return base, _units_in_range(self, base, max(lasts))

    def sizes(self, devices: IntArray) -> IntArray:
        """Devices of a full unit at the place of each device (a run's last unit may have fewer)."""
        return np.array(self.size)[np.searchsorted(np.array(self.first), devices, side="right") - 1]


def equal_units(sizes: tuple[int, ...]) -> tuple[Units, ...]:
    """One level of equal units for each of the sizes (devices a unit)."""
    return tuple(Units(first=(0,), size=(size,), number=(0,)) for size in sizes)


@lru_cache(maxsize=4096)
def _units_in_range(units: Units, first_device: int, last: int) -> Units:
    """Units from that which begins at `first_device` to that of device `last`, renumbered."""
    runs = range(bisect_right(units.first, first_device) - 1, bisect_right(units.first, last))
    numbers = [units.at(max(units.first[run], first_device)) for run in runs]
    return Units(
        first=tuple(max(units.first[run] - first_device, 0) for run in runs),
        size=tuple(units.size[run] for run in runs),
        number=tuple(number - numbers[0] for number in numbers),
    )
