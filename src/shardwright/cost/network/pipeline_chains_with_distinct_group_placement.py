"""Lines of a grid (one device of every pipeline rank) and how their groups lie in the network.

All devices of a line have the same place in their stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import IntArray, distinct_rows
from shardwright.lazily_compiled_dataclass import dataclass

INSIDE: Final = ("tp", "ulysses", "ring", "etp", "ep", "coset")
"""Axes of the groups that a layer's communication joins."""
OF_ULYSSES: Final = ("ulysses", "ring")
"""Those that depend on the degree of Ulysses."""


Group = tuple[str, int]
"""Groups inside a layer by axis and the degree of Ulysses (0 where it does not matter); those that
sum, `dense` or `experts` with a mesh of their own, by the members of a sharding group (0 = the
whole), negative for groups across these.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The distinct lines of a mesh: placement of their groups and tiers of their borders.

    k = line, r = pipeline rank, q = way in which the groups of a device may lie.

    Args:
        ways: (k, r) the q of each rank's device.
        behind, before: (k, r) tier that it sends across to the next rank and to the one before,
            round the ring.
        below: by group (`Group`) (q, tiers - 1) the most members that a unit of each tier but the
            last has; without sharding groups that lie unlike where the groups that they are parts
            of lie alike.
    """

    ways: IntArray
    behind: IntArray
    before: IntArray
    below: Mapping[Group, IntArray]

    @property
    def num_ways(self) -> int:
        """Number of distinct placements of a device's process groups in the network's units."""
        return len(next(iter(self.below.values())))


@lru_cache(maxsize=4096)
def distinct_lines(
    mesh: tuple[tuple[str, int], ...],
    units: tuple[int, ...],
    *,
    ulysses: tuple[int, ...],
    shards: tuple[int, ...],
) -> Lines:
    """Distinct device lines through a mesh's pipeline, by placement of their groups in the units.

    Args:
        mesh: items tp, cp, dp, pp, ep, etp and the device strides s_tp, s_cp, s_dp, s_pp.
        units: devices of a unit of each tier.
        ulysses: degrees of it that members have.
        shards: members of sharding groups, 0 = all holders.
    """
    axis_sizes = dict(mesh)
    place = np.arange(axis_sizes["tp"] * axis_sizes["cp"] * axis_sizes["dp"], dtype=np.int64)
    inner, pp = axis_sizes["s_pp"], axis_sizes["pp"]
    first_rank = place % inner + place // inner * (inner * pp) if pp > 1 else place
    device = first_rank + np.arange(pp, dtype=np.int64)[:, None] * (inner if pp > 1 else 0)
    below = {
        name: _most_below(groups, device, units[:-1])
        for name, groups in _groups_of_mesh(axis_sizes, place, ulysses, shards).items()
    }
    below = {
        name: count
        for name, count in below.items()
        if name[0] in INSIDE or _parts_lie_alike(count, below[name[0], 0])
    }
    features = np.concatenate(
        [count.reshape(-1, count.shape[-1]) for count in below.values()], axis=1
    )
    _, chosen, way = np.unique(features, axis=0, return_index=True, return_inverse=True)
    way = way.reshape(device.shape)
    behind, before = (
        tier_crossed(device, np.roll(device, step, axis=0), units) for step in (-1, 1)
    )
    _, lines = np.unique(np.concatenate([way, behind, before]), axis=1, return_index=True)
    return Lines(
        ways=np.ascontiguousarray(way[:, lines].T),
        behind=np.ascontiguousarray(behind[:, lines].T),
        before=np.ascontiguousarray(before[:, lines].T),
        below={name: count.reshape(-1, count.shape[-1])[chosen] for name, count in below.items()},
    )


def _groups_of_mesh(
    axis_sizes: dict[str, int], place: IntArray, ulysses: Iterable[int], shards: Iterable[int]
) -> dict[Group, tuple[IntArray, IntArray]]:
    """By process group name: places in a stage of all groups' members and of the priced groups'.

    (groups, members) arrays. The places of the second decide a group's cost.

    A plan prices the first sharding group of each group that sums, and the first group across
    these, for all.
    """

    def stride(axis: str) -> int:
        """Distance in a stage's device numbering between neighbours along an axis."""
        inner = axis_sizes[f"s_{axis}"]
        return (
            inner
            if axis_sizes["pp"] == 1 or inner < axis_sizes["s_pp"]
            else inner // axis_sizes["pp"]
        )

    def along(*axes: tuple[int, int]) -> IntArray:
        """(groups, members) places of the groups along axes of (degree, stride)."""
        steps, begins_group = np.zeros(1, dtype=np.int64), np.ones(len(place), dtype=np.bool_)
        for degree, step in axes:
            if degree > 1:
                steps = np.add.outer(steps, np.arange(degree) * step).reshape(-1)
                begins_group &= place // step % degree == 0
        return np.asarray(place[begins_group][:, None] + np.sort(steps)[None, :], dtype=np.int64)

    tp, cp, dp = ((axis_sizes[axis], stride(axis)) for axis in ("tp", "cp", "dp"))
    spread = axis_sizes["ep"] * axis_sizes["etp"]
    inside = {
        ("tp", 0): along(tp),
        ("etp", 0): along((axis_sizes["etp"], 1)),
        ("ep", 0): along((axis_sizes["ep"], axis_sizes["etp"])),
        ("coset", 0): along((spread, 1)),
    }
    for degree in ulysses:
        if cp[0] % degree == 0:
            inside["ulysses", degree] = along((degree, cp[1]))
            inside["ring", degree] = along((cp[0] // degree, cp[1] * degree))
    groups_of = {name: (groups, groups) for name, groups in inside.items()}
    holders = along(cp, dp)
    for kind, groups in {
        "dense": holders,
        "experts": along((len(place) // spread, spread)),
    }.items():
        groups_of[kind, 0] = groups, groups
        for shard in sorted(
            {_members_of_shard(kind, shard, holders.shape[1], groups.shape[1]) for shard in shards}
        ):
            if 1 < shard < groups.shape[1] and groups.shape[1] % shard == 0:
                groups_of[kind, shard] = groups, groups[:, :shard]
                groups_of[kind, -shard] = groups, groups[:, ::shard]
    return groups_of


def _members_of_shard(kind: str, shard: int, holders: int, members: int) -> int:
    """Members of a sharding group (`shard` = 0: all holders), of experts or dense parameters."""
    return (
        expert_shard(shard or holders, holders=holders, edp=members)
        if kind == "experts"
        else shard or holders
    )


def expert_shard(shard: int, *, holders: int, edp: int) -> int:
    """Members of an expert sharding group: gcd of (`shard` x `edp` / `holders`) and `edp`.

    `edp` devices hold an expert, `holders` a dense parameter, whose sharding groups have `shard`
    members.
    """
    return math.gcd(max(shard * edp // holders, 1), edp)


def _most_below(
    groups: tuple[IntArray, IntArray], device: IntArray, units: tuple[int, ...]
) -> IntArray:
    """(ranks, places, tiers - 1) most members of a place's group in one unit of each tier.

    Args:
        device: (ranks, places), rising along both.
    """
    joined, priced = groups
    most_members = np.empty((*device.shape, len(units)), dtype=np.int64)
    for tier, unit in enumerate(units):
        within = device[:, priced] // unit
        starts = np.ones(within.shape, dtype=np.bool_)
        starts[..., 1:] = within[..., 1:] != within[..., :-1]
        member = np.arange(priced.shape[1])
        longest = (member - np.maximum.accumulate(np.where(starts, member, 0), axis=-1)).max(
            axis=-1
        ) + 1
        most_members[:, joined, tier] = longest[:, :, None]
    return most_members


def _parts_lie_alike(part_rows: IntArray, whole_rows: IntArray) -> bool:
    """True if groups with equal placement rows of their wholes also have equal rows of parts.

    Else a plan, which folds devices by the whole groups, may price any of the parts.
    """
    whole_and_part = np.concatenate([whole_rows, part_rows], axis=-1).reshape(
        -1, 2 * part_rows.shape[-1]
    )
    return len(distinct_rows(whole_and_part)) == len(
        distinct_rows(whole_and_part[:, : part_rows.shape[-1]])
    )


def tier_crossed(device: IntArray, other: IntArray, units: tuple[int, ...]) -> IntArray:
    """Innermost tier, per pair of `device` and `other`, with both devices in one unit."""
    crossed = np.full(device.shape, len(units) - 1, dtype=np.int64)
    for tier in range(len(units) - 2, -1, -1):
        crossed[device // units[tier] == other // units[tier]] = tier
    return crossed
