"""The span of one group from its list of member devices."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from shardwright.arrays import IntArray, as_int_array, distinct
from shardwright.collectives.groups.span_members_by_network_tier import Between, Span, bandwidths
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.hardware.link_and_network_tier import Tier
from shardwright.hardware.strided_device_list import DeviceList

_SPARSE = 64
"""Units from a group's first to its last, for each member, from which sorting them is quicker than
counting them."""
PairRates = tuple[tuple[float, ...], ...]
"""Of each two outermost units of a cluster, from the one to the other."""


def span_of_devices(
    devices: Sequence[int],
    tiers: tuple[Tier, ...],
    *,
    units: tuple[Units, ...],
    in_network_reduction: bool = False,
    between: tuple[PairRates, PairRates] | None = None,
) -> Span:
    """The network span of one group, from its list of devices.

    Members below a unit of a tier are the most that any unit holds, as in `span_of`. Where the
    group lies in unlike units (islands of two kinds), each unit's members are kept too. Left out:
    the members of each of several alike units, which grids price by the fullest one.

    Args:
        devices: different, as the cluster numbers them.
        tiers: innermost first.
        units: units of each tier.
        between: bytes/s of a member, and seconds of a message, from each unit of the tier below the
            last to each; None = all alike.
    """
    if (
        isinstance(devices, DeviceList)
        and devices.is_run
        and between is None
        and all(len(level.first) == 1 for level in units)
    ):
        return _span(
            (*(_most_of_run(devices, level) for level in units[:-1]), len(devices)),
            None,
            tiers,
            in_network_reduction,
        )
    places = as_int_array(devices)
    inside = [_members_by_unit(level.of(places)) for level in units[:-1]]
    below = (*(max(counts) for counts in inside), len(devices))
    uneven = _spans_unlike_islands(int(places.min()), int(places.max()), units) and any(
        len(set(counts)) > 1 for counts in inside
    )
    return _span(
        below,
        tuple(inside) if uneven else None,
        tiers,
        in_network_reduction,
        _links_between_units(places, units, tuple(inside), between),
    )


def _most_of_run(devices: DeviceList, level: Units) -> int:
    """Most devices of a run of consecutive devices that lie in one unit of `level`.

    Only the first and the last unit are not full.
    """
    low, high = level.around(devices.first)
    return max(
        devices.within(*ends)
        for ends in ((low, high), (high, 2 * high - low), level.around(devices[-1]))
    )


def _members_by_unit(unit: IntArray) -> tuple[int, ...]:
    """Number of members in each unit that has members, in the order of the units."""
    first, last = int(unit.min()), int(unit.max())
    if last - first > len(unit) * _SPARSE:
        return tuple(np.unique(unit, return_counts=True)[1].tolist())
    counts = np.bincount(unit - first)
    return tuple(counts[counts > 0].tolist())


def _links_between_units(
    places: IntArray,
    units: tuple[Units, ...],
    inside: tuple[tuple[int, ...], ...],
    rates: tuple[PairRates, PairRates] | None,
) -> Between | None:
    """Rates and latencies of each two units of the last tier but one; None if all are equal."""
    if rates is None or len(inside) < 2 or len(inside[-1]) < 2:
        return None
    units_there = distinct(units[-2].of(places)).tolist()
    bandwidth, latency_s = (
        tuple(tuple(rate[sender][receiver] for receiver in units_there) for sender in units_there)
        for rate in rates
    )
    return Between(units=inside, bandwidth=bandwidth, latency_s=latency_s)


@lru_cache(maxsize=65536)
def side_of_span(
    devices: Sequence[int],
    device: int,
    tiers: tuple[Tier, ...],
    *,
    units: tuple[Units, ...],
    in_network_reduction: bool = False,
) -> Span:
    """Span of a group as if every unit held as many members as the unit of `device`.

    A group of equal size whose members in every unit are as many as in the units of one device.

    Eight members in one node and two in another: of a device of the first as if all ten were by
    eights, of one of the other by twos.
    """
    places = np.append(np.asarray(devices), device)
    levels = (level.of(places) for level in units[:-1])
    below = (*(max(int((unit[:-1] == unit[-1]).sum()), 1) for unit in levels), len(devices))
    return _span(below, None, tiers, in_network_reduction)


def _spans_unlike_islands(first: int, last: int, units: tuple[Units, ...]) -> bool:
    """True if the islands from one device to another are of different sizes or node kinds."""
    return bisect_right(units[0].first, first) != bisect_right(units[0].first, last)


@lru_cache(maxsize=16384)
def _span(
    below: tuple[int, ...],
    inside: tuple[tuple[int, ...], ...] | None,
    tiers: tuple[Tier, ...],
    in_network_reduction: bool,
    between: Between | None = None,
) -> Span:
    """Span of one group with `below` members in its fullest unit of each tier (cached)."""
    counts = tuple(np.array([count], dtype=np.int64) for count in below)
    return Span(
        below=counts,
        bandwidth=bandwidths(tiers, counts),
        latency_s=tuple(np.array([tier.latency_s]) for tier in tiers),
        in_network_reduction=in_network_reduction,
        units=inside,
        between=between,
    )
