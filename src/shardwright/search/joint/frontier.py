"""What recompute and offload can do for layers: the exact Pareto frontier of time against memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from shardwright.errors import UsageError
from shardwright.search.orders.memory_option import MemoryOption

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerGroup:
    """Identical layers, each of which takes one of k memory options (read-only arrays).

    Args:
        count: layers. seconds: (k,) extra seconds of one layer's backward under each option; 0 where everything is kept.
        bytes: (k,) what one microbatch keeps of one layer under each option.
    """

    count: int
    seconds: Float64
    bytes: Int64

    def __post_init__(self) -> None:
        seconds, size = np.array(self.seconds, np.float64), np.array(self.bytes)
        if self.count < 0 or seconds.ndim != 1 or not seconds.size or seconds.shape != size.shape:
            raise UsageError("a layer group has a count of at least 0, and seconds and bytes of each of its options")
        if not np.isfinite(seconds).all() or (seconds < 0).any() or size.dtype.kind not in "iu" or (size < 0).any():
            raise UsageError("seconds of a layer's options are finite and at least 0, bytes whole and at least 0")
        for name, array in (("seconds", seconds), ("bytes", size.astype(np.int64))):
            array.flags.writeable = False
            object.__setattr__(self, name, array)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Extra seconds of a microbatch's backward, bytes that it keeps, and how many layers of each group take each option."""

    seconds: float
    bytes: int
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Envelope:
    """A convex lower bound of a frontier: corners with `bytes` ascending and `seconds` descending."""

    bytes: Int64
    seconds: Float64

    def at(self, bytes: float) -> float:
        """No choice of the frontier that keeps at most `bytes` takes fewer seconds; inf below the least that can be kept."""
        return float(np.interp(bytes, self.bytes, self.seconds)) if bytes >= self.bytes[0] else float("inf")


def frontier(groups: Sequence[LayerGroup], *, limit: int | None = None) -> tuple[Choice, ...]:
    """The least seconds for every amount of bytes, over all options of all layers; exact. Bytes ascend, seconds descend.

    Layers of a group are alike, so counts say everything. A sum's frontier is the frontier of the sums of its parts' frontiers: a group's
    comes by doubling (n layers from n // 2 and n // 2), and groups are merged one after the other.

    Args:
        limit: most bytes; choices beyond it are left out, and the result may be empty.

    Left out: options that only apply to runs of layers (one unit recomputed as a whole).

    Source: Galvatron-BMW (Wang et al. 2023) and AdaPipe (Sun et al. 2024, section 4) solve a knapsack for one limit; here it is all limits.
    """
    whole = _Front.none()
    for group in groups:
        whole = whole.merged(_front_of(group, limit), limit)
    widths = np.cumsum([len(group.seconds) for group in groups])[:-1]
    parts = np.split(whole.counts, widths, axis=1) if groups else []
    return tuple(
        Choice(seconds=float(whole.seconds[i]), bytes=int(whole.bytes[i]), counts=tuple(tuple(part[i].tolist()) for part in parts))
        for i in range(len(whole.bytes))
    )


def thinned(choices: Sequence[Choice], *, max_points: int) -> tuple[Choice, ...]:
    """At most `max_points` of a frontier's choices, all achievable: both ends and the largest under even levels of bytes between.

    What is lost: seconds between two neighbours that stay. For a bound use `lower_envelope`, never this.
    """
    if max_points < 2 and len(choices) > max_points:
        raise UsageError(f"a thinned frontier needs room for both its ends, not for {max_points}")
    if len(choices) <= max_points:
        return tuple(choices)
    sizes = np.array([choice.bytes for choice in choices], np.int64)
    levels = np.linspace(sizes[0], sizes[-1], max_points)
    places = np.unique(np.searchsorted(sizes, levels, side="right") - 1)
    return tuple(choices[place] for place in places)


def lower_envelope(choices: Sequence[Choice]) -> Envelope:
    """The convex hull of a frontier from below: at most its seconds at every amount of bytes."""
    if not choices:
        raise UsageError("a frontier without choices has no envelope")
    hull: list[Choice] = []
    for choice in choices:
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return Envelope(
        bytes=np.array([choice.bytes for choice in hull], np.int64), seconds=np.array([choice.seconds for choice in hull], np.float64)
    )


def exposed_copy(num_bytes: int, *, bytes_per_second: float, overlap_seconds: float) -> float:
    """Seconds that a copy to or from the host delays computing: max(0, num_bytes / bytes_per_second - overlap_seconds).

    The way out hides behind the forwards and the way back behind the backwards, each apart: an option that offloads costs the sum of
    both calls, and its bytes leave the device.

    Args:
        num_bytes: of one way. bytes_per_second: of the copy engine, one direction. overlap_seconds: computing that the copy runs beside.
    """
    if num_bytes < 0 or not bytes_per_second > 0 or not overlap_seconds >= 0:
        raise UsageError("a copy has at least 0 bytes, a rate above 0 and an overlap of at least 0 seconds")
    return max(0.0, num_bytes / bytes_per_second - overlap_seconds)


def memory_options(choices: Sequence[Choice], *, seconds_per_unit: float, stash: int = 0, working: int = 0) -> tuple[MemoryOption, ...]:
    """A chunk's frontier as options of an order search in bytes and whole units of time; times round up.

    A choice that keeps less than W reads has to restore it, so its backward is whole.

    Args:
        seconds_per_unit: of the order problem's times. stash: bytes of a microbatch that W reads.
        working: bytes that the backward takes beyond what is kept while it recomputes, at most.
    """
    if not seconds_per_unit > 0:
        raise UsageError("a unit of time takes more than 0 seconds")
    return tuple(
        MemoryOption(
            extra=ceil(choice.seconds / seconds_per_unit),
            held=choice.bytes,
            stash=stash if stash <= choice.bytes else 0,
            working=working if choice.seconds > 0 else 0,
            whole=stash > choice.bytes,
        )
        for choice in choices
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Front:
    """A frontier as arrays: bytes (n,) ascending, seconds (n,) descending, counts (n, options); cost and size of each option."""

    bytes: Int64
    seconds: Float64
    counts: Int64
    cost: Float64
    size: Int64

    @staticmethod
    def none() -> _Front:
        """Of no layers."""
        return _Front(
            bytes=np.zeros(1, np.int64),
            seconds=np.zeros(1),
            counts=np.zeros((1, 0), np.int64),
            cost=np.zeros(0),
            size=np.zeros(0, np.int64),
        )

    def merged(self, other: _Front, limit: int | None) -> _Front:
        """Of the layers of both, whose options are apart."""
        left, right = np.divmod(np.arange(len(self.bytes) * len(other.bytes)), max(len(other.bytes), 1))
        kept = _efficient(self.bytes[left] + other.bytes[right], self.seconds[left] + other.seconds[right], limit)
        left, right = left[kept], right[kept]
        return _Front(
            bytes=self.bytes[left] + other.bytes[right],
            seconds=self.seconds[left] + other.seconds[right],
            counts=np.concatenate([self.counts[left], other.counts[right]], axis=1),
            cost=np.concatenate([self.cost, other.cost]),
            size=np.concatenate([self.size, other.size]),
        )

    def added(self, other: _Front, limit: int | None) -> _Front:
        """Of the layers of both, which have the same options. Sums are taken over counts, so equal counts give equal seconds."""
        counts = np.unique((self.counts[:, None] + other.counts[None]).reshape(-1, len(self.cost)), axis=0)
        return self.of_counts(counts, limit)

    def of_counts(self, counts: Int64, limit: int | None) -> _Front:
        """The frontier of given counts of the same options."""
        size, cost = counts @ self.size, counts @ self.cost
        kept = _efficient(size, cost, limit)
        return _Front(bytes=size[kept], seconds=cost[kept], counts=counts[kept], cost=self.cost, size=self.size)


def _front_of(group: LayerGroup, limit: int | None) -> _Front:
    """A group's frontier."""
    options = len(group.seconds)
    empty = _Front(
        bytes=np.zeros(1, np.int64), seconds=np.zeros(1), counts=np.zeros((1, options), np.int64), cost=group.seconds, size=group.bytes
    )
    one = empty.of_counts(np.eye(options, dtype=np.int64), limit)
    result = empty
    for bit in bin(group.count)[2:]:
        result = result.added(result, limit)
        if bit == "1":
            result = result.added(one, limit)
    return result


def _efficient(bytes: Int64, seconds: Float64, limit: int | None) -> Int64:
    """Places of the points that no other one is as good as in both, by bytes; of equals the first."""
    order = np.lexsort((np.arange(len(bytes)), seconds, bytes))
    if limit is not None:
        order = order[bytes[order] <= limit]
    if not len(order):
        return order
    best = np.minimum.accumulate(seconds[order])
    return order[np.concatenate(([True], seconds[order][1:] < best[:-1]))]


def _turns_up(a: Choice, b: Choice, c: Choice) -> bool:
    """Whether b lies on or above the line from a to c."""
    return (b.seconds - a.seconds) * (c.bytes - a.bytes) >= (c.seconds - a.seconds) * (b.bytes - a.bytes)
