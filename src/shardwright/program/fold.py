"""Folding: ranks that see the same thing are one class.

A class is a cell of the coarsest equitable partition of ranks, groups and network units. Colours are pipeline rank and the tiers of the
borders; never device numbers. Grids whose axes line up with every tier fold from their axes (one class a pipeline rank); anything else
by colour refinement. `unfolded` gives every rank its own class: the same lowering, for proofs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwright.hardware.cluster import Tier
from shardwright.strategy.grid import Grid

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClasses:
    """A partition of the ranks.

    Args:
        stage: pipeline rank of each class. size: its ranks. device: its lowest device.
        following, preceding: class of the partner one pipeline rank on (back), round the ring. following_tier, preceding_tier: tier of
            that border.
        peers: for each class, the classes that share a blocking group (tp, cp, ep) with it, itself included.
        holders: the classes that share a gradient group with it, itself included.
        unit: (tiers, classes) class of the network unit above each rank. load: (tiers, classes) ranks of the class in one such unit over
            the unit's devices, as (numerator, denominator) in the last axis.
    """

    stage: IntArray
    size: IntArray
    device: IntArray
    following: IntArray
    preceding: IntArray
    following_tier: IntArray
    preceding_tier: IntArray
    peers: tuple[tuple[int, ...], ...]
    holders: tuple[tuple[int, ...], ...]
    unit: IntArray
    load: IntArray

    def __len__(self) -> int:
        return int(self.stage.shape[0])


def is_aligned(grid: Grid, tiers: tuple[Tier, ...]) -> bool:
    """Every boundary between axes divides, or is divided by, every tier's unit: ranks of one pipeline rank then look alike."""
    degrees = {"tp": grid.tp, "cp": grid.cp, "dp": grid.dp, "pp": grid.pp}
    boundaries, size = [], 1
    for axis in grid.order:
        if axis in degrees:
            size *= degrees[axis]
            boundaries.append(size)
    return all(b % t.num_devices == 0 or t.num_devices % b == 0 for b in boundaries for t in tiers if t.num_devices < grid.devices)


def fold(grid: Grid, tiers: tuple[Tier, ...]) -> RankClasses:
    """The classes of `grid` on a uniform cluster with these tiers."""
    mesh = Grid(tp=grid.tp, cp=grid.cp, ep=grid.ep, etp=grid.etp, dp=grid.dp, pp=grid.pp, order=grid.order)
    return _fold(mesh, tiers)


@lru_cache(maxsize=1024)
def _fold(grid: Grid, tiers: tuple[Tier, ...]) -> RankClasses:
    return _from_axes(grid, tiers) if is_aligned(grid, tiers) else _classes(grid, tiers, _refine(grid, tiers))


def unfolded(grid: Grid, tiers: tuple[Tier, ...]) -> RankClasses:
    """Every rank a class of its own."""
    return _classes(grid, tiers, np.arange(grid.devices, dtype=np.int64))


def _tier_of(here: IntArray, there: IntArray, tiers: tuple[Tier, ...]) -> IntArray:
    tier = np.full(here.shape, len(tiers) - 1, dtype=np.int64)
    for index in range(len(tiers) - 1, -1, -1):
        size = tiers[index].num_devices
        tier[here // size == there // size] = index
    return tier


def _from_axes(grid: Grid, tiers: tuple[Tier, ...]) -> RankClasses:
    stride = grid.strides()["pp"]
    stage = np.arange(grid.pp, dtype=np.int64)
    device = stage * stride
    following, preceding = (stage + 1) % grid.pp, (stage - 1) % grid.pp
    unit, load = [], []
    for tier in tiers:
        together = max(min(grid.pp, tier.num_devices // stride), 1)
        unit.append(stage // together)
        devices = min(tier.num_devices, grid.devices)
        load.append(np.stack([np.full(grid.pp, devices // together), np.full(grid.pp, devices)], axis=-1))
    alone = tuple((int(s),) for s in stage)
    return RankClasses(
        stage=stage,
        size=np.full(grid.pp, grid.devices // grid.pp, dtype=np.int64),
        device=device,
        following=following,
        preceding=preceding,
        following_tier=_tier_of(device, following * stride, tiers),
        preceding_tier=_tier_of(device, preceding * stride, tiers),
        peers=alone,
        holders=alone,
        unit=np.stack(unit),
        load=np.stack(load),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """Every rank's pipeline rank, partners, blocking group and gradient group."""

    stage: IntArray
    following: IntArray
    preceding: IntArray
    block_group: IntArray
    sync_group: IntArray


def _ranks(grid: Grid) -> _Ranks:
    rank = np.arange(grid.devices, dtype=np.int64)
    strides, degrees = grid.strides(), {"tp": grid.tp, "cp": grid.cp, "dp": grid.dp, "pp": grid.pp}
    place = {axis: rank // strides[axis] % degrees[axis] for axis in strides}
    step, wrap = strides["pp"], strides["pp"] * (grid.pp - 1)
    following = np.where(place["pp"] < grid.pp - 1, rank + step, rank - wrap)
    preceding = np.where(place["pp"] > 0, rank - step, rank + wrap)
    # Experts that span replicas make all replicas of a pipeline rank wait for each other.
    replica = np.zeros_like(rank) if grid.ep * grid.etp > 1 else place["dp"]
    return _Ranks(
        stage=place["pp"],
        following=following,
        preceding=preceding,
        block_group=place["pp"] * grid.dp + replica,
        sync_group=place["pp"] * grid.tp + place["tp"],
    )


def _refine(grid: Grid, tiers: tuple[Tier, ...]) -> IntArray:
    """Colour refinement: split classes until equal colours see equal numbers of every colour (partners, groups, network units)."""
    ranks = _ranks(grid)
    here = np.arange(grid.devices, dtype=np.int64)
    first = np.stack([ranks.stage, _tier_of(here, ranks.following, tiers), _tier_of(here, ranks.preceding, tiers)])
    colour = np.unique(first, axis=1, return_inverse=True)[1].reshape(-1)
    groups = [ranks.block_group, ranks.sync_group, *(here // t.num_devices for t in tiers)]
    while True:
        seen = [colour, colour[ranks.following], colour[ranks.preceding], *(_census(group, colour) for group in groups)]
        refined = np.unique(np.stack(seen), axis=1, return_inverse=True)[1].reshape(-1)
        if refined.max() == colour.max():
            return refined.astype(np.int64)
        colour = refined


def _census(group: IntArray, colour: IntArray) -> IntArray:
    """For each rank, a number for the multiset of colours in its group."""
    width = int(colour.max()) + 1
    counts = np.bincount(group * width + colour, minlength=(int(group.max()) + 1) * width).reshape(-1, width)
    kind = np.unique(counts, axis=0, return_inverse=True)[1].reshape(-1)
    return kind[group].astype(np.int64)


def _classes(grid: Grid, tiers: tuple[Tier, ...], colour: IntArray) -> RankClasses:
    ranks = _ranks(grid)
    device = np.unique(colour, return_index=True)[1].astype(np.int64)
    here = np.arange(grid.devices, dtype=np.int64)
    unit, load = [], []
    for tier in tiers:
        group = here // tier.num_devices
        kind = _census(group, colour)
        width = int(colour.max()) + 1
        counts = np.bincount(group * width + colour, minlength=(int(group.max()) + 1) * width).reshape(-1, width)
        unit.append(kind[device])
        size = np.bincount(group)[group[device]]
        load.append(np.stack([counts[group[device], colour[device]], size], axis=-1))
    return RankClasses(
        stage=ranks.stage[device],
        size=np.bincount(colour).astype(np.int64),
        device=device,
        following=colour[ranks.following[device]],
        preceding=colour[ranks.preceding[device]],
        following_tier=_tier_of(device, ranks.following[device], tiers),
        preceding_tier=_tier_of(device, ranks.preceding[device], tiers),
        peers=_together(ranks.block_group, colour, device),
        holders=_together(ranks.sync_group, colour, device),
        unit=np.stack(unit),
        load=np.stack(load),
    )


def _together(group: IntArray, colour: IntArray, device: IntArray) -> tuple[tuple[int, ...], ...]:
    pairs = np.unique(np.stack([group, colour], axis=1), axis=0)
    members: dict[int, tuple[int, ...]] = {}
    for g in np.unique(pairs[:, 0]):
        members[int(g)] = tuple(int(c) for c in pairs[pairs[:, 0] == g, 1])
    return tuple(members[int(group[d])] for d in device)
