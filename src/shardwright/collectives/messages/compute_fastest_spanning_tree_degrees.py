"""Degrees of the spanning trees that all-reduce in the least time over unlike links.

With the least time itself.

A sum along a spanning tree sends its bytes once each way over every edge. Between units of one tier
trees of any degrees D_u >= 1 exist that add up to 2 (N - 1), and trees may be mixed; so with
`room_u(T)` the edges that unit u can have within T seconds a byte:

    room(island) = T x sum of its members' cards
    room(unit)   = min(T x uplink, sum over the units in it of room - 2 (their number - 1))

T is possible if no room is below 1 and the room left at the top is not negative: the least such T
is V's seconds a byte over the network. Inside an island of m members 2 (m - 1)/m / bandwidth_0 come
from a star whose centre moves.

No sum is faster over the network than the least T for which the room left at the top is not
negative and no unit's links are below 1: let some units be parts as a whole and others be split
into theirs. To make one sum of N parts known to N units takes 2 (N - 1) messages between them (N -
1 until the first one knows it all, then one more into each other unit), each out of some part's
links; and one at least enters and leaves each. With one tier of network both are the same number.
With more, trees that are connected inside every unit may be slower than the bound, and than trees
that are not: that is left out.

Sources: Zhao et al. 2024, "ForestColl" (arXiv:2402.06787): sums as packed spanning trees, least
cuts as their bound (read); Tutte 1961, Nash-Williams 1961 (J. London Math. Soc. 36): trees and
partitions; Patarasu & Yuan 2009, section 3 (2 (n - 1)/n on one switch).
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.groups.links_of_one_group import Layout
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Mean degrees of the units in a group's spanning trees, and the seconds a byte reached.

    Args:
        seconds_per_byte: seconds a byte of the buffer for which the trees keep the busiest link
            busy.
        bound: seconds a byte that no sum is faster than.
        inner: for tier k = 0, 1, .. and each unit the mean edges to units beside it in the same
            unit of tier k + 1.
        total: the same with edges that go farther.
    """

    seconds_per_byte: float
    bound: float
    inner: tuple[FloatArray, ...]
    total: tuple[FloatArray, ...]


def packing_of(layout: Layout) -> Packing:
    """Mean edges of each unit in spanning trees of least seconds a byte, with those and a bound.

    Stars inside islands.
    """
    if len(layout.counts[0]) == 1:
        inside = 2.0 * (1.0 - 1.0 / layout.size) / layout.share[0]
        zero = (np.zeros(1),) * (len(layout.share) - 1)
        return Packing(seconds_per_byte=inside, bound=inside, inner=zero, total=zero)
    network_seconds, least_seconds = (
        _least_seconds(layout, connected=connected) for connected in (True, False)
    )
    inside = 2.0 * (1.0 - 1.0 / max(layout.units[0])) / layout.share[0]
    inner, total = _spanning_tree_degrees(layout, network_seconds)
    # A part of the members is not faster than its least cut either: whole islands apart, a member
    # has its island's link and its card.
    member = 1.0 / (layout.share[0] + layout.share[1])
    return Packing(
        seconds_per_byte=max(network_seconds, inside),
        bound=max(least_seconds, member),
        inner=inner,
        total=total,
    )


def _edges_within(layout: Layout, seconds: float) -> tuple[list[FloatArray], list[FloatArray]]:
    """By tier, unit: tree edges that links carry in `seconds` a byte, and more for each second.

    Rooms of the units of each tier but the last, then the room left at the top, and the slope of
    each.
    """
    links = np.array(layout.units[0]) * layout.share[1]
    rooms, slopes = [links * seconds], [links]
    for tier, groups in enumerate(layout.children[: len(layout.units)], start=1):
        sums = np.array(
            [rooms[-1][low.start : low.stop].sum() - 2.0 * (len(low) - 1) for low in groups]
        )
        grows = np.array([slopes[-1][low.start : low.stop].sum() for low in groups])
        if tier < len(layout.units):
            uplink = np.array(layout.units[tier]) * layout.share[tier + 1]
            tight = uplink * seconds < sums
            sums, grows = np.where(tight, uplink * seconds, sums), np.where(tight, uplink, grows)
        rooms.append(sums)
        slopes.append(grows)
    return rooms, slopes


def _least_seconds(layout: Layout, *, connected: bool) -> float:
    """Least seconds a byte at which links fit spanning trees, `connected` in each unit or not.

    Every condition is a concave rising function with few corners, so the steps end at the root.

    Args:
        connected: trees are connected inside every unit, whose room is then at least one edge; else
            the bound of every sum.
    """
    uplinks = [
        min(counts) * layout.share[tier]
        for tier, counts in enumerate(layout.units[1:], start=2)
        if len(counts) > 1
    ]
    seconds = max((1.0 / uplink for uplink in uplinks), default=0.0)
    while True:
        rooms, slopes = _edges_within(layout, seconds)
        next_seconds = float((seconds + (1.0 - rooms[0]) / slopes[0]).max())
        for tier in range(1, len(rooms) - 1) if connected else ():
            has_siblings = np.concatenate(
                [np.full(len(low), len(low) > 1) for low in layout.children[tier]]
            )
            next_seconds = max(
                next_seconds, float((seconds + (has_siblings - rooms[tier]) / slopes[tier]).max())
            )
        next_seconds = max(next_seconds, float((seconds - rooms[-1] / slopes[-1]).max()))
        if next_seconds <= seconds * (1.0 + 1e-14):
            return seconds
        seconds = next_seconds


def _spanning_tree_degrees(
    layout: Layout, seconds: float
) -> tuple[tuple[FloatArray, ...], tuple[FloatArray, ...]]:
    """Share a tree's edges by links' room: (edges to siblings, all edges leaving) by tier and unit.

    From the top down: every unit gets one, and of the rest its part of the room that is left.
    """
    rooms, _ = _edges_within(layout, seconds)
    inner: list[FloatArray] = []
    total = [np.zeros(1)]
    for tier in range(len(rooms) - 2, -1, -1):
        all_edges, inner_edges = np.zeros(rooms[tier].size), np.zeros(rooms[tier].size)
        for unit, low in enumerate(layout.children[tier]):
            span, above = slice(low.start, low.stop), float(total[-1][unit])
            if len(low) == 1:
                all_edges[span] = above
                continue
            spare = np.maximum(rooms[tier][span] - 1.0, 0.0)
            edges_to_share = len(low) - 2.0 + above
            # Where nothing is over, or all have one edge's room alone, equal parts are as good as
            # any.
            all_edges[span] = 1.0 + edges_to_share * (
                spare / spare.sum() if spare.sum() > 0.0 else 1.0 / len(low)
            )
            inner_edges[span] = 1.0 + (all_edges[span] - 1.0) * (
                (len(low) - 2.0) / edges_to_share if edges_to_share > 0.0 else 0.0
            )
        inner.append(inner_edges)
        total.append(all_edges)
    return tuple(reversed(inner)), tuple(reversed(total[1:]))
