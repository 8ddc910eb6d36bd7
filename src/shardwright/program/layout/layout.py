"""Where a tensor lies: boxes of indices by device, each full or one part of a sum."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from shardwright.lazy_dataclass import dataclass

Interval = tuple[int, int]
"""[a, b)."""
Indices = tuple[Interval, ...]
"""Sorted, disjoint, non-empty intervals of one dim; a zigzag deal gives two."""
Box = tuple[Indices, ...]
"""One `Indices` for each dim of a tensor."""


class Holding(NamedTuple):
    """What one device holds of a tensor.

    Attributes:
        part: which part of a sum: equal parts are duplicates, all distinct parts of an index add up
            to its value. None: full values.
    """

    device: int
    box: Box
    part: Hashable | None = None


Layout = tuple[Holding, ...]


def count(indices: Indices) -> int:
    """How many indices there are."""
    return (
        indices[0][1] - indices[0][0]
        if len(indices) == 1
        else sum(high - low for low, high in indices)
    )


def volume(box: Box) -> int:
    """How many elements there are: the product of the dims' counts."""
    return prod(map(count, box))


def normal(intervals: Iterable[Interval]) -> Indices:
    """The union of the intervals, sorted, touching neighbours as one."""
    result: list[Interval] = []
    for low, high in sorted(intervals):
        if low >= high:
            continue
        if result and low <= result[-1][1]:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return tuple(result)


def common(a: Indices, b: Indices) -> Indices:
    """Indices of both."""
    return tuple(
        sorted((low, high) for x, y in a for u, v in b if (low := max(x, u)) < (high := min(y, v)))
    )


def without(a: Indices, b: Indices) -> Indices:
    """Indices of `a` that are not of `b`."""
    rest = list(a)
    for u, v in b:
        rest = [
            (low, high)
            for x, y in rest
            for low, high in ((x, min(y, u)), (max(x, v), y))
            if low < high
        ]
    return tuple(rest)


@lru_cache(maxsize=65536)
def intersection(a: Box, b: Box) -> Box | None:
    """The box of both; None if they share nothing."""
    shared = tuple(common(x, y) for x, y in zip(a, b, strict=True))
    return shared if all(shared) else None


def difference(a: Box, b: Box) -> tuple[Box, ...]:
    """Disjoint boxes that make up what is of `a` and not of `b`."""
    if intersection(a, b) is None:
        return (a,)
    result: list[Box] = []
    inside: Box = ()
    for dim, (x, y) in enumerate(zip(a, b, strict=True)):
        if outside := without(x, y):
            result.append((*inside, outside, *a[dim + 1 :]))
        inside = (*inside, common(x, y))
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """One dim cut at all ends of some index lists.

    Attributes:
        indices: of each tick; indices that lie in the same lists are one tick. inside: list -> its
            ticks.
    """

    indices: tuple[Indices, ...]
    inside: dict[Indices, tuple[int, ...]]


def ticks(lists: Iterable[Indices]) -> Ticks:
    """The coarsest cut of a dim that every one of the lists is a union of."""
    distinct = tuple(dict.fromkeys(lists))
    points = sorted({point for one in distinct for interval in one for point in interval})
    place = {point: i for i, point in enumerate(points)}
    members: list[list[int]] = [[] for _ in points]
    for number, one in enumerate(distinct):
        for low, high in one:
            for i in range(place[low], place[high]):
                members[i].append(number)
    alike: dict[tuple[int, ...], list[Interval]] = {}
    for (low, high), member in zip(pairwise(points), members, strict=False):
        if member:
            alike.setdefault(tuple(member), []).append((low, high))
    inside: list[list[int]] = [[] for _ in distinct]
    for tick, lists_there in enumerate(alike):
        for number in lists_there:
            inside[number].append(tick)
    return Ticks(
        indices=tuple(normal(intervals) for intervals in alike.values()),
        inside={one: tuple(inside[number]) for number, one in enumerate(distinct)},
    )
