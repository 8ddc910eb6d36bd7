"""Quantities of a span that all algorithms share: inverse counts, seconds a byte, ring hops.

Computed once for each span.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One tier that some group crosses, as arrays over the groups.

    c_k is the number of members below one unit of tier k.

    Args:
        tier: index of the tier in the span.
        members: m_k = c_k / c_(k-1); no whole numbers where units do not divide the group.
        inside_inverse: 1 / c_(k-1).
        fewest_inverse: one over the members that share a unit's links of this tier: the same, or of
            the emptiest unit (`Span.fewest`).
        drop: 1 / c_(k-1) - 1 / c_k: the part of the members that send over tier k at most when each
            sends to the next in rank order, and the part of the buffer that a reduce_scatter nested
            by tiers moves there.
        moved: that part, of a member of the emptiest unit, where units are unlike.
        latency_s: seconds of a message that crosses tier k at most.
        seconds_per_byte: 1 / bandwidth of the slowest link such a message passes (one member's
            share): the island's for tier 0, else all network tiers up to k.
    """

    tier: int
    members: FloatArray
    inside_inverse: FloatArray
    fewest_inverse: FloatArray
    drop: FloatArray
    moved: FloatArray
    latency_s: FloatArray
    seconds_per_byte: FloatArray


@dataclass(frozen=True, kw_only=True)
class SpanQuantities:
    """A `Span` prepared for pricing by `span_quantities`.

    Its arrays are over the different groups of the span.

    No slots: cached properties live in the instance's dict.

    Args:
        span: as given.
        prepared: its different groups.
        rows: for each group of `span` its place in the arrays here; None = the same place.
        size: members of each group, as floats.
        inverse: 1 / c_(k-1) for k = 0 .. number of tiers, so inverse[0] = 1 and inverse[-1] = 1 /
            size.
        fewest_inverse: the same of the emptiest units (`Span.fewest`).
        levels: the tiers that at least one group crosses, innermost first.
    """

    span: Span
    prepared: Span
    rows: IntArray | None
    size: FloatArray
    inverse: tuple[FloatArray, ...]
    fewest_inverse: tuple[FloatArray, ...]
    levels: tuple[Level, ...]

    @cached_property
    def zero(self) -> FloatArray:
        """Zeros, one for each group."""
        return np.zeros_like(self.size)

    @cached_property
    def others(self) -> FloatArray:
        """(n - 1) / n: the part of a buffer that belongs to the other members."""
        part: FloatArray = 1.0 - self.inverse[-1]
        return part

    @cached_property
    def line_latency_s(self) -> FloatArray:
        """Seconds of the n - 1 hops from the first member to the last in rank order.

        n * sum of drop_k * latency_k.
        """
        total = self.zero
        for level in self.levels:
            total = total + level.drop * level.latency_s
        return total * self.size

    @cached_property
    def ring_seconds_per_byte(self) -> FloatArray:
        """Seconds a byte at the slowest tier, by rings over a group's network cards, one a card.

        The largest over tiers crossed of 1 / (c_(k-1) * bandwidth_k), c_(k-1) of the emptiest unit.
        """
        slowest = self.zero
        for level in self.levels:
            slowest = np.maximum(
                slowest, level.seconds_per_byte * level.fewest_inverse * (level.members > 1.0)
            )
        return slowest

    @cached_property
    def nested_seconds_per_byte(self) -> FloatArray:
        """Seconds a byte of a reduce-scatter run tier after tier: sum of moved_k / bandwidth_k."""
        total = self.zero
        for level in self.levels:
            total = total + level.moved * level.seconds_per_byte
        return total

    @cached_property
    def islands(self) -> FloatArray:
        """Number of islands of each group: a quotient, or the known number of units."""
        units = self.span.units
        quotient: FloatArray = self.size * self.inverse[1]
        return quotient if units is None else np.full_like(self.size, len(units[0]))

    @cached_property
    def leaves_island(self) -> FloatArray:
        """1.0 where the group has members in more than one island, else 0.0."""
        return crosses(self, 1).astype(np.float64) if len(self.inverse) > 2 else self.zero


@lru_cache(maxsize=64)
def span_quantities(span: Span) -> SpanQuantities:
    """Reciprocals, rates and latencies by tier that prices of collectives on `span` use (cached).

    Callers ask for one span by kinds and by blocks in turn.

    Bandwidths must be positive and members at least 1.
    """
    smaller, rows = distinct_groups(span)
    inverse: list[FloatArray] = []
    fewest = (
        None if smaller.units is None else (np.ones(1), *(1.0 / count for count in smaller.fewest))
    )
    levels: list[Level] = []
    count: FloatArray | None = None
    network: FloatArray | None = None
    for tier, (below, bandwidth, latency_s) in enumerate(
        zip(smaller.below, smaller.bandwidth, smaller.latency_s, strict=True)
    ):
        inside_inverse = np.ones(below.shape) if count is None else 1.0 / count
        inverse.append(inside_inverse)
        cost = 1.0 / bandwidth
        if tier > 0:
            network = cost if network is None else np.maximum(network, cost)
            cost = network
        inside, count = count, below.astype(np.float64)
        members = count if inside is None else count / inside
        if members.max(initial=1.0) > 1.0:
            drop = inside_inverse - 1.0 / count
            shared = inside_inverse if fewest is None else fewest[tier]
            levels.append(
                Level(
                    tier=tier,
                    members=members,
                    inside_inverse=inside_inverse,
                    fewest_inverse=shared,
                    drop=drop,
                    moved=drop
                    if fewest is None or tier == 0
                    else shared * (1.0 - 1.0 / smaller.parts[tier - 1]),
                    latency_s=latency_s,
                    seconds_per_byte=cost,
                )
            )
    assert count is not None, "a span has at least one tier"
    inverse.append(1.0 / count)
    inverses = tuple(inverse)
    return SpanQuantities(
        span=span,
        prepared=smaller,
        rows=rows,
        size=count,
        inverse=inverses,
        fewest_inverse=fewest or inverses,
        levels=tuple(levels),
    )


def crosses(quantities: SpanQuantities, tier: int) -> BoolArray:
    """(groups,) True where a group has members in several units of the tier below `tier`.

    size > c_(tier-1).
    """
    leaves: BoolArray = quantities.inverse[tier] > quantities.inverse[-1]
    return leaves


def tree_depth(members: FloatArray) -> FloatArray:
    """Depth of a balanced binary tree over `members`: ceil(log2(members)).

    Exact for powers of two; a fraction of a member counts as one.
    """
    depth: FloatArray = np.frexp(np.ceil(members) - 1.0)[1].astype(np.float64)
    return depth


def per_tier(quantities: SpanQuantities, shares: dict[int, FloatArray]) -> tuple[FloatArray, ...]:
    """Bytes over each tier's links, from (outermost tier -> bytes); network tiers inside add up.

    The island's links carry only messages that stay in it; links of a network tier carry all
    messages that cross it or a tier above.

    Args:
        shares: tier -> bytes a byte of volume of messages that cross that tier at most; missing =
            none.
    """
    tiers = len(quantities.inverse) - 1
    carried = quantities.zero
    bytes_per_tier: list[FloatArray] = []
    for tier in range(tiers - 1, 0, -1):
        carried = carried + shares.get(tier, quantities.zero)
        bytes_per_tier.append(carried)
    return (shares.get(0, quantities.zero), *reversed(bytes_per_tier))


def along_ring(quantities: SpanQuantities, sent: FloatArray) -> tuple[FloatArray, ...]:
    """Bytes over each tier's links, shared by a unit's members, if each sends `sent` on in a ring.

    In rank order, rings turned so that all share evenly.

    Of the c_(k-1) members below a unit of tier k-1 one crosses tier k: sent / c_(k-1); the rest
    stays in the island.
    """
    tiers = len(quantities.inverse) - 1
    above = tuple(
        sent * quantities.fewest_inverse[tier] * crosses(quantities, tier)
        for tier in range(1, tiers)
    )
    return (sent - above[0] if above else sent, *above)


_FEWEST_GROUPS: Final = 256
"""Groups from which finding equal ones is faster than pricing all."""


_LARGEST_TABLE: Final = 2**18
"""Most entries of the table of combinations of counts (2 MiB)."""


def distinct_groups(span: Span) -> tuple[Span, IntArray | None]:
    """(span of distinct groups, row of each group in it); (span, None) if it would gain nothing.

    (`span`, None) where that does not pay.

    It pays for many groups that differ only in their member counts, with few enough different
    counts for a table of all combinations.
    """
    counts = np.broadcast_arrays(*span.below)
    if (
        counts[0].size < _FEWEST_GROUPS
        or span.late_s is not None
        or not all((array == array[0]).all() for array in (*span.bandwidth, *span.latency_s))
    ):
        return span, None
    key, combinations = np.zeros(counts[0].shape, dtype=np.int64), 1
    for count in counts:
        if int(count.max()) >= _LARGEST_TABLE:
            return span, None
        present_counts = np.zeros(int(count.max()) + 1, dtype=np.bool_)
        present_counts[count] = True
        number = np.cumsum(present_counts) - 1
        radix = int(number[-1]) + 1
        combinations *= radix
        if combinations > _LARGEST_TABLE:
            return span, None
        key = key * radix + number[count]
    row_of_combination = np.full(combinations, -1, dtype=np.int64)
    row_of_combination[key] = np.arange(key.size)
    present = np.flatnonzero(row_of_combination >= 0)
    sample = row_of_combination[present]
    row_of_combination[present] = np.arange(present.size)
    smaller = Span(
        below=tuple(count[sample] for count in counts),
        bandwidth=tuple(array[:1] for array in span.bandwidth),
        latency_s=tuple(array[:1] for array in span.latency_s),
        in_network_reduction=span.in_network_reduction,
    )
    return smaller, row_of_combination[key]
