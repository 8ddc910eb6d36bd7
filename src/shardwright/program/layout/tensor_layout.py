"""Layout of a tensor over devices: boxes of indices, with full values or a part of a sum.

One part or the other for each device.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from shardwright.lazily_compiled_dataclass import dataclass

Interval = tuple[int, int]
"""[a, b)."""
Indices = tuple[Interval, ...]
"""Sorted, disjoint, non-empty intervals of one dim; a zigzag deal gives two."""
Box = tuple[Indices, ...]
"""One `Indices` for each dim of a tensor."""


class Holding(NamedTuple):
    """The box of a tensor that one device holds, in full or as a part of a sum.

    Attributes:
        part: which part of a sum: equal parts are duplicates, all distinct parts of an index add up
            to its value. None: full values.
    """

    device: int
    box: Box
    part: Hashable | None = None


Layout = tuple[Holding, ...]


def count(indices: Indices) -> int:
    """Number of indices in a list of intervals."""
    return (
        indices[0][1] - indices[0][0]
        if len(indices) == 1
        else sum(high - low for low, high in indices)
    )


def volume(box: Box) -> int:
    """Number of elements of a box: the product of the counts of its dims."""
    return prod(map(count, box))


def joined_intervals(intervals: Iterable[Interval]) -> Indices:
    """Union of the intervals, sorted, with touching neighbours joined."""
    intervals_joined: list[Interval] = []
    for low, high in sorted(intervals):
        if low >= high:
            continue
        if intervals_joined and low <= intervals_joined[-1][1]:
            intervals_joined[-1] = (intervals_joined[-1][0], max(high, intervals_joined[-1][1]))
        else:
            intervals_joined.append((low, high))
    return tuple(intervals_joined)


def common_indices(a: Indices, b: Indices) -> Indices:
    """Indices that both lists have."""
    return tuple(
        sorted((low, high) for x, y in a for u, v in b if (low := max(x, u)) < (high := min(y, v)))
    )


def indices_without(a: Indices, b: Indices) -> Indices:
    """Indices of `a` that are not in `b`."""
    remaining = list(a)
    for u, v in b:
        remaining = [
            (low, high)
            for x, y in remaining
            for low, high in ((x, min(y, u)), (max(x, v), y))
            if low < high
        ]
    return tuple(remaining)


@lru_cache(maxsize=65536)
def intersection(a: Box, b: Box) -> Box | None:
    """The box that two boxes share; None if they share no element."""
    shared = tuple(common_indices(x, y) for x, y in zip(a, b, strict=True))
    return shared if all(shared) else None


def difference(a: Box, b: Box) -> tuple[Box, ...]:
    """Disjoint boxes of the elements of `a` that are not in `b`."""
    if intersection(a, b) is None:
        return (a,)
    boxes: list[Box] = []
    shared_dims: Box = ()
    for dim, (x, y) in enumerate(zip(a, b, strict=True)):
        if outside := indices_without(x, y):
            boxes.append((*shared_dims, outside, *a[dim + 1 :]))
        shared_dims = (*shared_dims, common_indices(x, y))
    return tuple(boxes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """One dim cut at all ends of several index lists: the pieces, and the pieces of each list.

    Attributes:
        indices: indices of each tick; indices that lie in the same lists are one tick.
        inside: list -> its ticks.
    """

    indices: tuple[Indices, ...]
    inside: dict[Indices, tuple[int, ...]]


def ticks(lists: Iterable[Indices]) -> Ticks:
    """The coarsest cut of a dim by which each of the lists is a union of ticks."""
    distinct = tuple(dict.fromkeys(lists))
    points = sorted(
        {point for index_list in distinct for interval in index_list for point in interval}
    )
    place = {point: i for i, point in enumerate(points)}
    members: list[list[int]] = [[] for _ in points]
    for number, index_list in enumerate(distinct):
        for low, high in index_list:
            for i in range(place[low], place[high]):
                members[i].append(number)
    intervals_by_lists: dict[tuple[int, ...], list[Interval]] = {}
    for (low, high), member in zip(pairwise(points), members, strict=False):
        if member:
            intervals_by_lists.setdefault(tuple(member), []).append((low, high))
    inside: list[list[int]] = [[] for _ in distinct]
    for tick, lists_there in enumerate(intervals_by_lists):
        for number in lists_there:
            inside[number].append(tick)
    return Ticks(
        indices=tuple(joined_intervals(intervals) for intervals in intervals_by_lists.values()),
        inside={index_list: tuple(inside[number]) for number, index_list in enumerate(distinct)},
    )
