"""Replicas: devices of a stage that may share samples and communicate inside the stage."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

import numpy as np

from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.device_cuts_in_placement_tree import (
    Cell,
    StageCells,
    devices_of,
    regular_levels,
)
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import indices
from shardwright.strategy.plan.operator_split_tree import Exchange, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Devices that may share samples: one object for all equal replicas of any stage.

    Args:
        cells: cells of the devices, counted from `first`, without the cuts of the batch that they
            share.
        first: number of the first device, counted from the stage's first.
    """

    cells: StageCells
    first: int


@lru_cache(maxsize=4096)
def replica(cells: StageCells, device: int, island: int = 1) -> Replica:
    """The part of `cells` on devices that share samples with `device`; all if irregular.

    Every tree's cuts of the batch are intervals of device strides, [step, step x parts); along the
    strides that all trees have in common, no other device has the samples of one coordinate. On
    1,024 devices under ``b128 t8`` a replica has the 8 devices of one batch part, each under
    ``t8``.

    Args:
        device: counted from the stage's first.
        island: devices of a node: `first` is a multiple of it.
    """
    common = _common_strides(cells)
    if not common:
        return Replica(cells=cells, first=0)
    every = cells.devices.array
    in_replica = np.logical_and.reduce(
        [every // low % (high // low) == device // low % (high // low) for low, high in common]
    )
    replica_devices = every[in_replica].tolist()
    copies = prod(high // low for low, high in common)
    trees = {
        key: {d: tree[d] for d in _in_tree_order(tree, replica_devices)}
        for key, tree in {id(t): t for t in cells.cells.values()}.items()
    }
    sample_sets = {
        frozenset(
            i
            for part in {
                indices(cell.way(Dim.BATCH), cells.samples) for cell in cells_of_tree.values()
            }
            for a, b in part
            for i in range(a, b)
        )
        for cells_of_tree in trees.values()
    }
    if len(sample_sets) != 1 or len(next(iter(sample_sets))) * copies != cells.samples:
        return Replica(cells=cells, first=0)
    first = replica_devices[0] - replica_devices[0] % island
    shared = {id(tree): _shared_cuts(cells, klass, common) for klass, tree in cells.cells.items()}
    if any(cuts is None or prod(parts for _, parts in cuts) != copies for cuts in shared.values()):
        shared = {}
    cells_of_tree = {
        key: tuple(
            (d - first, _without_levels(cell, tuple(level for level, _ in shared.get(key) or ())))
            for d, cell in tree.items()
        )
        for key, tree in trees.items()
    }
    return Replica(
        cells=_interned_cells(
            tuple((klass, cells_of_tree[id(tree)]) for klass, tree in cells.cells.items()),
            cells.samples // (copies if shared else 1),
            cells.exchange,
        ),
        first=first,
    )


def _in_tree_order(tree: Mapping[int, Cell], wanted: list[int]) -> list[int]:
    """The devices of a tree that are in `wanted`, in the tree's order."""
    tree_devices = devices_of(tree)
    in_order: list[int] = tree_devices[np.isin(tree_devices, wanted)].tolist()
    return in_order


@lru_cache(maxsize=1024)
def _interned_cells(
    trees: tuple[tuple[OperatorClass, tuple[tuple[int, Cell], ...]], ...],
    samples: int,
    exchange: Exchange | None,
) -> StageCells:
    """StageCells of (class, tree) pairs, all devices one family; one object for equal trees.

    Equal trees of two classes become one mapping, as `projection` expects.
    """
    tree_cells = {tree: dict(tree) for _, tree in trees}
    devices = DeviceList.of(sorted({d for tree in tree_cells.values() for d in tree}))
    return StageCells(
        samples=samples,
        cells={klass: tree_cells[tree] for klass, tree in trees},
        exchange=exchange,
        devices=devices,
        families=(devices,),
    )


def _shared_cuts(
    cells: StageCells, klass: OperatorClass, common: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...] | None:
    """(level, parts) of a tree's batch cuts within `common` strides; None if zigzag or unequal."""
    levels = regular_levels(cells.splits[klass]) or ()
    batch = [(place, s) for place, s in enumerate(levels) if s.dim is Dim.BATCH]
    if any(s.zigzag for _, s in batch) or cells.samples % prod(s.num_parts for _, s in batch):
        return None
    spans = [(place, s.num_parts, *_strides(s)) for place, s in batch]
    return tuple(
        (place, parts)
        for place, parts, low, high in spans
        if any(a <= low and high <= b for a, b in common)
    )


def _without_levels(cell: Cell, levels: tuple[int, ...]) -> Cell:
    """The cell without the cuts at the given levels of its tree."""
    return (
        Cell(ways=tuple(way for place, way in enumerate(cell.ways) if place not in levels))
        if levels
        else cell
    )


def _strides(split: Split) -> tuple[int, int]:
    """Interval of device strides [step, step x parts) of a split in equal parts."""
    assert isinstance(split.step, int)
    return split.step, split.step * split.num_parts


def _common_strides(cells: StageCells) -> tuple[tuple[int, int], ...]:
    """Intervals of device strides along which every tree cuts the batch; empty if irregular."""
    common: list[tuple[int, int]] | None = None
    for klass, tree in cells.cells.items():
        levels = regular_levels(cells.splits.get(klass))
        if (
            levels is None
            or len(tree) != len(cells.devices)
            or prod(level.num_parts for level in levels) != len(tree)
        ):
            return ()
        tree_strides = [
            _strides(s) for s in levels if s.dim is Dim.BATCH and not isinstance(s.step, tuple)
        ]
        if common is None:
            common = tree_strides
            continue
        overlaps = [
            (max(a, c), min(b, d))
            for a, b in common
            for c, d in tree_strides
            if max(a, c) < min(b, d)
        ]
        common = [(low, high) for low, high in overlaps if high % low == 0]
    return tuple(common or ())
