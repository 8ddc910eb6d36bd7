"""Layout of one group over the network, member by member, and the links of its messages.

The input of schedules of single messages.

A member has a link into its island and, beside it, a card into the network; messages that leave a
unit of a network tier share the unit's uplink:

    member:           island link bandwidth_0,  card bandwidth_1
    unit of tier k-1: uplink members x min(bandwidth_1 .. bandwidth_k),  k >= 2

A message between members that meet at tier 0 uses both island links; one that meets at tier k >= 1
both cards and the uplinks of all units that it leaves and enters. Each link carries as much each
way. Where links of each two outermost units are stated (`Span.between`), they stand in the place of
the outermost uplinks, each direction by itself:

    units a to b:         min(members of a, members of b) x bandwidth_ab

Left out: unlike rates of members: all have the slowest's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.groups.span_members_by_network_tier import Between, Span


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Units, sizes and link rates of one group in the network.

    No slots: cached properties live in the dict.

    Args:
        units: members of each unit of every tier but the last, in order; units of a tier are inside
            those of the next.
        size: members.
        bandwidth: bytes/s of a member's share of each tier, one direction.
        latency_s: seconds of a message that crosses the tier.
        between: links of each two outermost units; None = all as `bandwidth` and `latency_s` say.
    """

    units: tuple[tuple[int, ...], ...]
    size: int
    bandwidth: tuple[float, ...]
    latency_s: tuple[float, ...]
    between: Between | None = None

    @property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """Number of members in each unit, by tier and unit; the last tier has one unit."""
        return (*self.units, (self.size,))

    @property
    def is_even(self) -> bool:
        """True if, on each tier, all units have equally many members."""
        return all(len(set(counts)) == 1 for counts in self.units)

    @cached_property
    def unit_of(self) -> tuple[IntArray, ...]:
        """For each tier, (members,) number of the unit that holds each member.

        In the last tier all members belong to one.
        """
        return tuple(np.repeat(np.arange(len(counts)), counts) for counts in self.counts)

    @cached_property
    def share(self) -> tuple[float, ...]:
        """For each tier, a member's bytes/s to cross it: the slowest network tier on the way.

        The slowest of the network tiers on its way.
        """
        return (self.bandwidth[0], *accumulate(self.bandwidth[1:], min))

    @cached_property
    def capacity(self) -> FloatArray:
        """(links,) bytes/s: members' island links, network cards, then units' uplinks or pairs.

        The members' island links, their cards (of tier 1), then the uplinks of the units of tiers
        1, 2, ..

        In place of the last uplinks stand the links from each outermost unit to each, where they
        are stated.
        """
        links = [np.full(self.size, self.share[0])]
        if len(self.share) > 1:
            links.append(np.full(self.size, self.share[1]))
        links += [
            np.array(self.units[tier - 1]) * self.share[tier] for tier in range(2, len(self.share))
        ]
        if self.between is not None:
            members = np.array(self.units[-1])
            pairs = np.minimum.outer(members, members) * np.array(self.between.bandwidth)
            np.fill_diagonal(pairs, np.inf)
            links[-1] = pairs.ravel()
        return np.concatenate(links)

    @property
    def links(self) -> tuple[int, ...]:
        """Number of links by tier: members for islands and cards, then units or pairs of units."""
        uplinks = [len(counts) for counts in self.units[1:]]
        if self.between is not None:
            uplinks[-1] **= 2
        return (self.size, *([self.size] * (len(self.share) > 1)), *uplinks)

    @cached_property
    def children(self) -> tuple[tuple[range, ...], ...]:
        """For each tier from 1 up, by unit, the range of units of the tier below inside it."""
        ends = [np.cumsum((0, *counts)) for counts in self.counts]
        cut = [np.searchsorted(below, above) for below, above in pairwise(ends)]
        return tuple(tuple(range(int(low), int(high)) for low, high in pairwise(at)) for at in cut)


def layouts_of(span: Span) -> tuple[Layout, ...]:
    """Units, sizes and link rates of each group of a span; unknown units are filled in order.

    Where its units are not known, whole units are filled one after the other.
    """
    shape = np.broadcast_shapes(
        *(np.shape(array) for array in (*span.below, *span.bandwidth, *span.latency_s))
    )
    columns = [
        np.broadcast_to(array, shape).tolist()
        for array in (*span.below, *span.bandwidth, *span.latency_s)
    ]
    tiers = len(span.below)
    return tuple(
        Layout(
            units=_units_of(span, row[:tiers]),
            size=row[tiers - 1],
            bandwidth=row[tiers : 2 * tiers],
            latency_s=row[2 * tiers :],
            between=span.between,
        )
        for row in zip(*columns, strict=True)
    )


def _units_of(span: Span, below: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Members of each unit by tier, the last tier left out: known ones, else filled in order."""
    if span.between is not None:
        return span.between.units
    return _units_filled_in_order(below) if span.units is None else span.units


@lru_cache(maxsize=64)
def _units_filled_in_order(below: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Members of each unit by tier, from members in full units; the last has the rest."""
    tiers: list[tuple[int, ...]] = []
    sizes: tuple[int, ...] = (below[-1],)
    for count in reversed(below[:-1]):
        parts = (
            (count,) * (size // count) + ((size % count,) if size % count else ()) for size in sizes
        )
        sizes = tuple(chain.from_iterable(parts))
        tiers.append(sizes)
    return tuple(reversed(tiers))


def meeting_tier(layout: Layout, source: IntArray, target: IntArray) -> IntArray:
    """Innermost tier, by index, that has source and target of each message in one unit."""
    tier = np.full(source.shape, len(layout.unit_of) - 1)
    for index in range(len(layout.unit_of) - 2, -1, -1):
        tier[layout.unit_of[index][source] == layout.unit_of[index][target]] = index
    return tier


def hop_seconds(layout: Layout, source: IntArray, target: IntArray) -> FloatArray:
    """Latency in seconds of each message: of the innermost tier with both ends in one unit."""
    tier = meeting_tier(layout, source, target)
    seconds: FloatArray = np.array(layout.latency_s)[tier]
    if layout.between is not None:
        outer, unit = tier == len(layout.unit_of) - 1, layout.unit_of[-2]
        seconds[outer] = np.array(layout.between.latency_s)[
            unit[source[outer]], unit[target[outer]]
        ]
    return seconds


def link_seconds(
    layout: Layout,
    source: IntArray,
    target: IntArray,
    size: FloatArray,
    group: IntArray,
    groups: int,
) -> FloatArray:
    """(groups, 2 x links) seconds that each link sends, then receives, the messages of each group.

    One direction after the other.

    Args:
        size: bytes of each message.
        group: row in which the message counts.
    """
    links, tier = len(layout.capacity), meeting_tier(layout, source, target)
    busy = np.zeros(groups * 2 * links)

    def add(chosen: BoolArray, link: IntArray) -> None:
        """Add the chosen messages' bytes to the given link of their groups."""
        busy[:] += np.bincount(
            group[chosen] * (2 * links) + link, weights=size[chosen], minlength=busy.size
        )

    for side, end in enumerate((source, target)):
        start = side * links
        add(tier == 0, start + end[tier == 0])
        add(tier > 0, start + layout.size + end[tier > 0])
        start += 2 * layout.size
        for level in range(2, len(layout.share)):
            chosen = tier >= level
            unit = layout.unit_of[level - 1]
            if layout.between is not None and level == len(layout.share) - 1:
                add(
                    chosen,
                    start + unit[source[chosen]] * len(layout.units[-1]) + unit[target[chosen]],
                )
            else:
                add(chosen, start + unit[end[chosen]])
            start += layout.links[level]
    shape = (groups, 2 * links)
    seconds: FloatArray = busy.reshape(shape) / np.concatenate([layout.capacity, layout.capacity])
    return seconds
