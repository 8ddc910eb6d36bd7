"""Where the devices of a cluster lie and what their links carry: one form for uniform and mixed
clusters.

A network has levels, innermost first: the scale-up islands, the tiers that join islands of a node,
the switch tiers, zones where there are several, and the whole. On each level every device lies in
one unit; units of a level need not be equal (islands of 8 beside islands of 72). Two devices
exchange over the innermost level that has both in one unit, as fast as the slower of them sends
there, and between zones at the rate of their zones' link. Neither depends on the devices that take
no part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, groupby, product

import numpy as np

from shardwright.arrays import FloatArray, IntArray, numbers_of
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.hardware.link import Tier
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of one level in the order of devices: runs of equal ones, one behind the other.

    Args:
        first: first device of each run, from 0.
        size: devices of a unit of each.
        number: the first unit of each.
    """

    first: tuple[int, ...]
    size: tuple[int, ...]
    number: tuple[int, ...]

    def of(self, devices: IntArray) -> IntArray:
        """The unit that each device lies in. With runs of (0, 8) and (16, 72) devices 7, 8, 16 and
        87 lie in units 0, 1, 2 and 2.
        """
        if len(self.first) == 1:
            return np.asarray(devices // self.size[0], dtype=np.int64)
        run = np.searchsorted(np.array(self.first), devices, side="right") - 1
        first, size, number = (
            np.array(column)[run] for column in (self.first, self.size, self.number)
        )
        return np.asarray(number + (devices - first) // size, dtype=np.int64)

    def at(self, device: int) -> int:
        """The unit that a device lies in."""
        run = bisect_right(self.first, device) - 1
        return self.number[run] + (device - self.first[run]) // self.size[run]

    def around(self, device: int) -> tuple[int, int]:
        """The first device of the unit that a device lies in, and the first one behind it."""
        run = bisect_right(self.first, device) - 1
        first = device - (device - self.first[run]) % self.size[run]
        return first, min([first + self.size[run], *self.first[run + 1 : run + 2]])

    def seen_from(self, first: int, lasts: Iterable[int]) -> tuple[int, Units]:
        """The first device of the unit that `first` lies in, and the units as devices that are
        counted from it see them, up to the largest of `lasts`: equal wherever they lie alike.
        """
        if len(self.first) == 1:
            return first - first % self.size[0], self
        run = bisect_right(self.first, first) - 1
        base = first - (first - self.first[run]) % self.size[run]
        return base, _between(self, base, max(lasts))

    def sizes(self, devices: IntArray) -> IntArray:
        """Devices of the unit that each device lies in, itself among them."""
        return np.array(self.size)[np.searchsorted(np.array(self.first), devices, side="right") - 1]


def regular(sizes: tuple[int, ...]) -> tuple[Units, ...]:
    """Levels of equal units, of so many devices each."""
    return tuple(Units(first=(0,), size=(size,), number=(0,)) for size in sizes)


@lru_cache(maxsize=4096)
def _between(units: Units, base: int, last: int) -> Units:
    runs = range(bisect_right(units.first, base) - 1, bisect_right(units.first, last))
    numbers = [units.at(max(units.first[run], base)) for run in runs]
    return Units(
        first=tuple(max(units.first[run] - base, 0) for run in runs),
        size=tuple(units.size[run] for run in runs),
        number=tuple(number - numbers[0] for number in numbers),
    )


def levels_inside_nodes(cluster: Cluster) -> int:
    """Levels inside nodes: those of the kind that has most."""
    return 1 + max(len(group.kind.node_tiers) for group in cluster.groups)


@lru_cache(maxsize=256)
def units_of(cluster: Cluster) -> tuple[Units, ...]:
    """The units of every level, innermost first;
    those of a level are whole units of the one below.
    """
    if cluster.is_uniform:
        return regular(tuple(tier.num_devices for tier in cluster.tiers()))
    zones = _zones(cluster)
    levels = [_inside_nodes(cluster, level) for level in range(levels_inside_nodes(cluster))]
    for index in _kept(cluster)[:-1]:
        levels.append(
            _filled(levels[-1], cluster.network[index].num_devices, cluster.num_devices, zones)
        )
    if len(zones) > 1:
        levels.append(_filled(levels[-1], cluster.num_devices, cluster.num_devices, zones))
    return (*levels, *regular((cluster.num_devices,)))


@lru_cache(maxsize=256)
def levels_of(cluster: Cluster, group: int) -> tuple[Tier, ...]:
    """Each level of the network as a device of a node group sees it.

    In a mixed cluster `num_devices` is that of the largest unit. With several zones the last level
    is the slowest link that leaves the group's zone (`zone_rates` has the links of each two zones).
    """
    if cluster.is_uniform:
        return cluster.tiers()
    kind, units = cluster.groups[group].kind, units_of(cluster)
    found = [_inner(kind, level) for level in range(levels_inside_nodes(cluster))]
    rates = cluster.network_rates(kind)
    for level, index in enumerate(_kept(cluster), start=len(found)):
        tier, bandwidth, latency_s = rates[index]
        joins = (
            level < len(units) - 1
            or (tier.num_devices or cluster.num_devices) >= cluster.num_devices
        )
        found.append(
            Tier(
                name=tier.name if joins else "core",
                num_devices=max(units[level].size),
                bandwidth=bandwidth,
                latency_s=latency_s,
            )
        )
    if len(units) > len(found):
        shares, seconds = (rates[group] for rates in zone_rates(cluster))
        found.append(
            Tier(
                name="zones",
                num_devices=cluster.num_devices,
                bandwidth=float(shares.min()),
                latency_s=float(seconds.max()),
            )
        )
    return tuple(found)


@lru_cache(maxsize=256)
def zone_rates(cluster: Cluster) -> tuple[FloatArray, FloatArray]:
    """(groups, groups) achieved bytes/s from a device of one node group to one of another, anywhere
    in the cluster, while all devices of its node that work send; and seconds of a message.

    Between zones the link is a node's: its devices, and those of the node that it sends to, share
    it. None has more than the networks of both zones leave it.
    """
    links = {(one.source, one.target): one.link for one in cluster.links}
    own = [cluster.network_rates(group.kind)[_kept(cluster)[-1]] for group in cluster.groups]
    bandwidth, latency_s = (np.zeros((len(own), len(own))) for _ in range(2))
    for (one, source), (other, target) in product(enumerate(cluster.groups), repeat=2):
        shares, waits = [own[one][1], own[other][1]], max(own[one][2], own[other][2])
        if source.zone != target.zone:
            link = links[source.zone, target.zone]
            shares += [link.achieved / group.kind.sharing for group in (source, target)]
            waits += link.latency_s
        bandwidth[one, other], latency_s[one, other] = min(shares), waits
    return bandwidth, latency_s


def level_between(one: IntArray, other: IntArray, units: tuple[Units, ...]) -> IntArray:
    """The innermost level that has both devices of each pair in one unit."""
    level = np.full(one.shape, len(units) - 1, dtype=np.int64)
    for index in range(len(units) - 2, -1, -1):
        level[units[index].of(one) == units[index].of(other)] = index
    return level


def groups_of(cluster: Cluster, devices: IntArray) -> IntArray:
    """The node group that each device is in."""
    return np.searchsorted(np.array(group_ends(cluster)), devices, side="right")


def counts_by_group(cluster: Cluster, devices: Sequence[int]) -> tuple[int, ...]:
    """Number of the devices in each node group."""
    if len(cluster.groups) == 1:
        return (len(devices),)
    return tuple(
        np.bincount(groups_of(cluster, numbers_of(devices)), minlength=len(cluster.groups)).tolist()
    )


def at_work(cluster: Cluster, devices: Sequence[int]) -> Cluster:
    """The cluster as a plan on some devices finds it: those of a node that work share its cards and
    its zone's links, idle ones do not.

    Nodes of one kind share as the fullest of them does, so that islands and groups stay alike.
    Where all devices of some node work, or have a card each and no zone's link to share, it is the
    cluster itself.
    """
    kinds = tuple(
        dict.fromkeys(group.kind for group in cluster.groups if _shares(cluster, group.kind))
    )
    if not kinds:
        return cluster
    fullest = dict.fromkeys(kinds, 0)
    ends, some = group_ends(cluster), numbers_of(devices)
    for group, start, end in zip(cluster.groups, (0, *ends), ends, strict=False):
        inside = some[(some >= start) & (some < end)]
        if group.kind in fullest and len(inside):
            most = int(np.bincount((inside - start) // group.kind.num_devices).max())
            fullest[group.kind] = max(fullest[group.kind], most)
    if all(most in (0, kind.sharing) for kind, most in fullest.items()):
        return cluster
    return _shared_by(cluster, tuple(fullest.items()))


def _shares(cluster: Cluster, kind: NodeKind) -> bool:
    return kind.num_devices > 1 and (
        kind.nics < kind.num_devices or len(cluster.zones) > 1 or bool(kind.node_tiers)
    )


@lru_cache(maxsize=1024)
def _shared_by(cluster: Cluster, fullest: tuple[tuple[NodeKind, int], ...]) -> Cluster:
    """Equal questions have one answer, the same object: problems on it are kept by what it is."""
    kinds = {kind: replace(kind, at_work=most or kind.at_work) for kind, most in fullest}
    return replace(
        cluster,
        groups=tuple(
            replace(group, kind=kinds.get(group.kind, group.kind)) for group in cluster.groups
        ),
    )


@lru_cache(maxsize=256)
def group_ends(cluster: Cluster) -> tuple[int, ...]:
    """The first device behind each node group."""
    return tuple(accumulate(group.count * group.kind.num_devices for group in cluster.groups))


def repeats_after(units: tuple[Units, ...]) -> int:
    """Devices after which the network repeats; 0 = it does not."""
    if max([len(level.first) for level in units]) > 1:
        return 0
    return units[-2].size[0] if len(units) > 1 else 1


def _inner(kind: NodeKind, level: int) -> Tier:
    """A level inside nodes of a kind; of a kind that has fewer the last, as nothing lies between
    its units and the network.
    """
    levels = kind.inner_levels
    return levels[min(level, len(levels) - 1)]


def _inside_nodes(cluster: Cluster, level: int) -> Units:
    """Units of a level inside nodes. Groups of one kind and zone that are neighbours fill islands
    together.
    """
    first, size, number = list[int](), list[int](), list[int]()
    start = 0
    for (kind, _), groups in groupby(cluster.groups, key=lambda group: (group.kind, group.zone)):
        devices = sum(group.count for group in groups) * kind.num_devices
        number.append(number[-1] - (first[-1] - start) // size[-1] if first else 0)
        first.append(start)
        size.append(min(_inner(kind, level).num_devices, devices))
        start += devices
    return Units(first=tuple(first), size=tuple(size), number=tuple(number))


def _zones(cluster: Cluster) -> tuple[int, ...]:
    """The first device of each run of nodes in one zone."""
    ends = (0, *group_ends(cluster))
    return tuple(
        ends[n]
        for n, group in enumerate(cluster.groups)
        if n == 0 or group.zone != cluster.groups[n - 1].zone
    )


def _kept(cluster: Cluster) -> tuple[int, ...]:
    """The tiers of a mixed cluster's network that are levels: those that join some of its islands,
    then one that joins all (the last, if none reaches so far).
    """
    smallest, total = (
        min(group.kind.inner_levels[-1].num_devices for group in cluster.groups),
        cluster.num_devices,
    )
    reaches = [tier.num_devices or total for tier in cluster.network]
    joins_all = next(
        (index for index, reach in enumerate(reaches) if reach >= total), len(reaches) - 1
    )
    return (*(index for index, reach in enumerate(reaches) if smallest < reach < total), joins_all)


def _filled(below: Units, size: int, total: int, borders: tuple[int, ...]) -> Units:
    """Units of at most `size` devices, each of whole units `below` in their order; one that is
    larger is a unit alone, and none goes across a border.
    """
    starts = [
        device
        for first, each, end in zip(below.first, below.size, (*below.first[1:], total), strict=True)
        for device in range(first, end, each)
    ]
    edges = [0]
    for start, end in zip(starts, (*starts[1:], total), strict=True):
        if start in borders[1:] or (end - edges[-1] > size and start > edges[-1]):
            edges.append(start)
    lengths = [end - start for start, end in zip(edges, (*edges[1:], total), strict=True)]
    changes = [n for n, length in enumerate(lengths) if n == 0 or length != lengths[n - 1]]
    return Units(
        first=tuple(edges[n] for n in changes),
        size=tuple(lengths[n] for n in changes),
        number=tuple(changes),
    )
