"""Spans: members of groups under each network tier, as arrays over many groups.

One call prices thousands of groups.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.hardware.link_and_network_tier import Tier
from shardwright.lazily_compiled_dataclass import dataclass

_BEYOND: Final = 2.0**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Links between each two units of a group, such as its zones, where they differ.

    Only schedules that are made for the group can use them.

    Args:
        units: members of each unit of every tier but the last, in order; links are those of the
            outermost.
        bandwidth: [a][b] bytes/s that one member of unit a has to unit b, and one of b from a.
        latency_s: [a][b] seconds of a message from a to b.
    """

    units: tuple[tuple[int, ...], ...]
    bandwidth: tuple[tuple[float, ...], ...]
    latency_s: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """Groups of devices as a collective sees them: members and rates of each network tier.

    Every field is an array over the groups priced together, of shape (n,).

    Equal only to itself. No slots: cached properties live in the dict.

    Args:
        below: one array a tier, innermost first: the most members that any unit of the tier has (an
            island, a leaf, .., the whole), so the last is the group's size. Units that hold fewer
            count as parts of one: 53 devices on nodes of 8 (8 in six nodes, 5 in one) are 8 and 53,
            which costs nearly what 8 and 56 do.
        bandwidth: one array a tier: bytes/s, one direction, one member's share while all like
            groups of its neighbours are busy too.
        latency_s: one array a tier: seconds for a message that crosses that tier at most.
        in_network_reduction: the island's switch can reduce (NVLink SHARP).
        units: of one group over unlike units: members of each unit of every tier but the last, in
            order, units of one tier inside those of the next. None = as `below` says, units filled
            one after the other.
        between: of one group in three tiers and more: links of each two units below the last tier,
            of which `bandwidth` and `latency_s` have the slowest; None = they are alike.
        late_s: seconds by which one member comes later than all others, shape (n,); None = all come
            together.
    """

    below: tuple[IntArray, ...]
    bandwidth: tuple[FloatArray, ...]
    latency_s: tuple[FloatArray, ...]
    in_network_reduction: bool = False
    units: tuple[tuple[int, ...], ...] | None = None
    between: Between | None = None
    late_s: FloatArray | None = None

    @cached_property
    def fewest(self) -> tuple[IntArray, ...]:
        """For each tier, members in the unit with the fewest, or in the fullest where not known.

        Where `units` are known; else `below`.

        Messages that enter or leave a unit have the links of its members alone: with 8 and 1
        members in two nodes all of a sum passes one card.
        """
        if self.units is None:
            return self.below
        return (
            *(
                np.minimum(count, min(unit))
                for count, unit in zip(self.below[:-1], self.units, strict=True)
            ),
            self.below[-1],
        )

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """For tiers but the first: most units of the tier below with members, in one unit.

        Where `units` are known.
        """
        ends = [np.cumsum(counts) for counts in (*(self.units or ()), self.size.tolist())]
        largest = (
            np.diff(np.searchsorted(below, above, side="right"), prepend=0).max()
            for below, above in pairwise(ends)
        )
        return tuple(int(most) for most in largest)

    @cached_property
    def size(self) -> IntArray:
        """Number of members of each group."""
        return self.below[-1]

    @cached_property
    def members(self) -> tuple[FloatArray, ...]:
        """For each tier, members in one of its units over members in a unit of the tier inside.

        Whole numbers where units divide the group.
        """
        inside = (np.ones(1, dtype=np.int64), *self.below[:-1])
        return tuple(
            np.true_divide(count, inner) for count, inner in zip(self.below, inside, strict=True)
        )


def span_of(
    tiers: tuple[Tier, ...],
    axes: tuple[tuple[IntArray, IntArray], ...],
    *,
    in_network_reduction: bool = False,
    fewer: tuple[IntArray, ...] = (),
) -> Span:
    """The network span of groups along mesh axes, given the degree and device stride of each axis.

    Args:
        tiers: of a uniform cluster, innermost first.
        axes: (degree, stride) arrays; a group is {offset + sum i_a * stride_a, 0 <= i_a <
            degree_a}.
        in_network_reduction: of the node kind (`NodeKind.in_network_reduction`).
        fewer: so many members less than the densest group has in a unit of each tier but the last,
            down to half of them; empty = none.

    The axes nest, as those of a grid: sorted by stride, each stride is at least the extent of the
    axes before it. The members below a unit of U devices are the group's points in [0, U), counted
    from the outermost axis inward:

        count(U) = q * (points of the inner axes) + inner count(U - q * stride) if q < degree
        q        = min(U // stride, degree)

    This is the group that begins with a unit, and no group has more in any unit. One has at least
    half as many in some unit: its members in a window of U devices lie in two of them (see
    `spans_along`).
    """
    shape = np.broadcast_shapes(*(np.shape(d) for d, _ in axes)) if axes else (1,)
    nested = _by_stride(axes, shape)
    points = [np.ones(shape)]
    for degree, _ in nested:
        points.append(points[-1] * degree)
    below: list[IntArray] = []
    for level, tier in enumerate(tiers[:-1]):
        members = _points_below(tier.num_devices, nested, points).astype(np.int64)
        if fewer:
            members = np.maximum(members - fewer[level], -(-members // 2))
        below.append(np.maximum(members, below[-1]) if below else members)
    below.append(points[-1].astype(np.int64))
    return span_with(tiers, tuple(below), in_network_reduction=in_network_reduction)


def span_with(
    tiers: tuple[Tier, ...], below: tuple[IntArray, ...], *, in_network_reduction: bool = False
) -> Span:
    """The span of groups, given the most members in a unit of each tier; the last is their size.

    (n,) each; the last is their size.
    """
    return Span(
        below=below,
        bandwidth=bandwidths(tiers, below),
        latency_s=tuple(
            [np.full(below[-1].shape, tier.latency_s, dtype=np.float64) for tier in tiers]
        ),
        in_network_reduction=in_network_reduction,
    )


def bandwidths(tiers: tuple[Tier, ...], below: tuple[IntArray, ...]) -> tuple[FloatArray, ...]:
    """For each tier, (n,) bytes/s of one member's share of the tier's links, one direction.

    A group that has one member in every unit of a tier above the islands only passes through that
    tier to the next. Where the tier is one inside a node and slower than the cards, the group's
    messages take the cards: the tier counts with the rate of the next.
    """
    rates = [np.full(below[-1].shape, tier.bandwidth, dtype=np.float64) for tier in tiers]
    for tier in range(len(tiers) - 2, 0, -1):
        if tiers[tier].bandwidth < tiers[tier + 1].bandwidth:
            rates[tier] = np.where(
                below[tier] == below[tier - 1],
                np.maximum(rates[tier], rates[tier + 1]),
                rates[tier],
            )
    return tuple(rates)


def lie_alike(tiers: tuple[Tier, ...], axes: tuple[tuple[IntArray, IntArray], ...]) -> BoolArray:
    """(n,) True where all groups along mesh axes are placed the same way on every tier.

    In every unit of a tier each has equally many members, or none.

    An axis does so if its groups fit into units, fill them, or have no two members in one. A pair
    of stride 3 on nodes of 4 does not: {0, 3} lies in a node, {6, 9} in two.
    """
    alike = np.ones(np.broadcast_shapes(*(np.shape(d) for d, _ in axes)), dtype=np.bool_)
    for degree, stride in axes:
        extent = np.maximum(degree * stride, 1)
        for unit in (tier.num_devices for tier in tiers[:-1]):
            fills = (unit % np.maximum(stride, 1) == 0) & (extent % unit == 0)
            alike &= (degree == 1) | (unit % extent == 0) | (stride % unit == 0) | fills
    return alike


# Whole numbers below 2^52 are exact in floats, and so is the floor of their quotient; float
# division is several times faster than integer.


def _by_stride(
    axes: tuple[tuple[IntArray, IntArray], ...], shape: tuple[int, ...]
) -> list[tuple[FloatArray, FloatArray]]:
    """Mesh axes as (degree, stride) arrays, sorted by rising stride for each group.

    A degree of one has no stride: it gets one that no unit reaches.
    """
    nested: list[tuple[FloatArray, FloatArray]] = []
    for degree, stride in axes:
        wide = np.broadcast_to(degree, shape).astype(np.float64)
        nested.append((wide, np.where(wide > 1.0, np.maximum(stride, 1), _BEYOND)))
    for end in range(len(nested) - 1, 0, -1):
        for place in range(end):
            (low, near), (high, far) = nested[place], nested[place + 1]
            swap = near > far
            if swap.any():
                nested[place] = (np.where(swap, high, low), np.where(swap, far, near))
                nested[place + 1] = (np.where(swap, low, high), np.where(swap, near, far))
    return nested


def _points_below(
    unit: int, axes: list[tuple[FloatArray, FloatArray]], points: list[FloatArray]
) -> FloatArray:
    """(n,) number of members whose device offset from the first is less than `unit`.

    Args:
        points: points[a] is the number of points of the axes before a.
    """
    total: FloatArray | None = None
    remaining: FloatArray | float = float(unit)
    for (degree, stride), inner in zip(reversed(axes), reversed(points[:-1]), strict=True):
        full_strides = np.minimum(np.floor(remaining / stride), degree)
        total = full_strides * inner if total is None else total + full_strides * inner
        remaining = (remaining - full_strides * stride) * (full_strides < degree)
    return points[0] if total is None else total + (remaining > 0.0)
