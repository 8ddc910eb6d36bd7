"""Cells: the cuts of each dim on a device's way down the placement trees of a stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from math import prod
from typing import Final, cast

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import StrategyError
from shardwright.hardware.strided_device_list import DeviceList, union
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import AxisStep, Way
from shardwright.program.layout.tensor_layout import Layout
from shardwright.strategy.plan.operator_split_tree import Exchange, Split
from shardwright.strategy.plan.stage_splits_and_policies import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The cuts of each dim on a device's way down one placement tree, outermost first.

    `Dim.REPLICATE`: which copy it is.
    """

    ways: tuple[tuple[Dim, Way], ...]

    def way(self, *dims: Dim) -> Way:
        """All cuts of the given dims, in the order of the tree."""
        steps: Way = ()
        for dim, way in self.ways:
            if dim in dims:
                steps += way
        return steps


class CellRow(tuple[Cell, ...]):
    """A row of cells that equals only itself: a cheap key for caches."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class TreeCells(Mapping[int, Cell]):
    """Cells of a tree of equal parts by device, each made on demand.

    In the order of the tree's leaves.

    Args:
        levels: the tree's cuts, outermost first.
        base: device of the first leaf.

    Attributes:
        row: devices of the leaves, in their order.
    """

    def __init__(self, levels: tuple[Split, ...], base: int) -> None:
        self.levels = levels
        self.row = DeviceList.mesh(
            base, [(level.num_parts, cast(int, level.step)) for level in levels]
        )

        # A mesh's steps nest: from the widest on, each says one index of a device.
        stride, nested = 1, []
        for level in reversed(levels):
            nested.append((cast(int, level.step), stride, level.num_parts))
            stride *= level.num_parts
        self._nested = sorted(nested, reverse=True)

    def __getitem__(self, device: int) -> Cell:
        place, remainder, ways = 0, device - self.row.first, []
        inside = True
        for step, stride, parts in self._nested:
            index, remainder = divmod(remainder, step) if step else (0, remainder)
            inside = inside and 0 <= index < parts
            place += index * stride
        if remainder or not inside:
            places = np.flatnonzero(self.devices == device)
            if not len(places):
                raise KeyError(device)
            place = int(places[-1])
        for level in reversed(self.levels):
            place, index = divmod(place, level.num_parts)
            ways.append(
                (level.dim, (AxisStep(parts=level.num_parts, index=index, zigzag=level.zigzag),))
            )
        return Cell(ways=tuple(reversed(ways)))

    def __iter__(self) -> Iterator[int]:
        return iter(self.row)

    def __len__(self) -> int:
        return self.row.size

    @cached_property
    def devices(self) -> IntArray:
        """Devices of the leaves as an array, in their order."""
        return self.row.array


def devices_of(tree: Mapping[int, Cell]) -> IntArray:
    """Devices of the leaves of a placement tree as an array, in the tree's order."""
    if isinstance(tree, TreeCells):
        return tree.devices
    return np.fromiter(tree, dtype=np.int64, count=len(tree))


def row_of(tree: Mapping[int, Cell]) -> DeviceList:
    """Devices of the leaves of a placement tree as a DeviceList, in the tree's order."""
    return tree.row if isinstance(tree, TreeCells) else DeviceList.of(tree)


def leaves(split: Split | None, first_device: int) -> Iterator[tuple[int, Cell, tuple[int, ...]]]:
    """(device, its cell, index of each unequal cut, -1 for equal cuts) of each leaf of a tree.

    The family is the unequal choices on the way, -1 for equal parts.
    """
    levels = regular_levels(split)
    if levels is None:
        return _leaves(split, first_device, (), ())
    return (
        (device, cell, (-1,) * len(levels))
        for device, cell in TreeCells(levels, first_device).items()
    )


def regular_levels(split: Split | None) -> tuple[Split, ...] | None:
    """The cuts of a placement tree of equal parts, outermost first; None if parts are unequal."""
    levels: list[Split] = []
    while split is not None:
        if isinstance(split.parts, tuple):
            return None
        levels.append(split)
        split = split.children[0]
    return tuple(levels)


def _leaves(
    split: Split | None,
    first_device: int,
    ways: tuple[tuple[Dim, Way], ...],
    family: tuple[int, ...],
) -> Iterator[tuple[int, Cell, tuple[int, ...]]]:
    """(device, its cell, index of each unequal cut, else -1) of each leaf below `split`."""
    if split is None:
        yield first_device, Cell(ways=ways), family
        return
    for i in range(split.num_parts):
        offset = split.step[i] if isinstance(split.step, tuple) else split.step * i
        child = (
            split.children[i]
            if len(split.children) > 1 or isinstance(split.parts, tuple)
            else split.children[0]
        )
        step = AxisStep(parts=split.parts, index=i, zigzag=split.zigzag)
        choice = i if isinstance(split.parts, tuple) else -1
        yield from _leaves(
            child, first_device + offset, (*ways, (split.dim, (step,))), (*family, choice)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTree:
    """The placement tree that cuts the operators of one class over devices."""

    klass: OperatorClass
    split: Split | None
    offset: int
    exchange: Exchange | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCells:
    """The cell of every device of a stage in every class's tree; equal only to itself.

    Devices are counted from the stage's first one.

    Args:
        samples: samples of one microbatch of the lane.
        cells: by class, device -> cell.
        exchange: key exchange of the attention core.
        devices: all devices, sorted.
        families: devices that every tree reaches by the same unequal choices, by their lowest
            device.
        splits: by class, its tree.
        boxes: layouts already derived from the cells.
    """

    samples: int
    cells: dict[OperatorClass, Mapping[int, Cell]]
    exchange: Exchange | None
    devices: DeviceList
    families: tuple[DeviceList, ...]
    splits: dict[OperatorClass, Split | None] = field(default_factory=dict)
    boxes: dict[object, Layout] = field(default_factory=dict)


def class_trees(placements: tuple[Placement, ...], block: int | None) -> tuple[ClassTree, ...]:
    """Placement tree of each class for a block (None: outside all ranges); later placements win.

    None: a block outside all ranges; later placements override.
    """
    chosen: dict[OperatorClass, ClassTree] = {}
    for placement in placements:
        blocks = placement.select.blocks
        if blocks is not None and (block is None or not blocks[0] <= block <= blocks[1]):
            continue
        for klass in OperatorClass:
            if not placement.select.classes or klass.value in placement.select.classes:
                chosen[klass] = ClassTree(
                    klass=klass,
                    split=placement.split,
                    offset=placement.offset,
                    exchange=placement.exchange,
                )
    return tuple(chosen.values())


@lru_cache(maxsize=4096)
def stage_cells(
    trees: tuple[ClassTree, ...], *, samples: int, unfolded: bool = False
) -> StageCells:
    """Cells of a stage's devices by class, from placement trees; `unfolded`: one family a device.

    Args:
        samples: samples of one microbatch.
        unfolded: every device is a family of its own.

    Raises:
        StrategyError: keys cut by context (rule ``lower.context``: a form of decoding, not of
            training).
    """
    cells: dict[OperatorClass, Mapping[int, Cell]] = {}
    tree_cells: dict[tuple[Split | None, int], Mapping[int, Cell]] = {}
    families_by_tree: list[dict[int, tuple[int, ...]]] = []
    exchange = None
    for tree in trees:
        key = (tree.split, tree.offset)
        if key not in tree_cells:
            levels = regular_levels(tree.split)
            if levels is None:
                listed = list(leaves(tree.split, tree.offset))
                tree_cells[key] = {d: c for d, c, _ in listed}
                families_by_tree.append({d: f for d, _, f in listed})
                dims = {dim for cell in tree_cells[key].values() for dim, _ in cell.ways}
            else:
                tree_cells[key] = TreeCells(levels, tree.offset)
                if (
                    row_of(tree_cells[key]).by_number()
                    != row_of(next(iter(tree_cells.values()))).by_number()
                ):
                    families_by_tree.append(dict.fromkeys(tree_cells[key], ()))
                dims = {split.dim for split in levels}
            if Dim.CONTEXT in dims:
                raise StrategyError(
                    "keys are cut by context",
                    hint="cut s, with 'via ring' or 'via gather'",
                    rule="lower.context",
                )
        cells[tree.klass] = tree_cells[key]
        if tree.klass is OperatorClass.CORE:
            exchange = tree.exchange
    devices = union(map(row_of, tree_cells.values()))
    groups: dict[object, list[int]] = {}
    if unfolded or families_by_tree:
        first_tree = next(iter(tree_cells.values()))
        for device in devices:
            key_of = (
                device
                if unfolded
                else (device in first_tree, *(choice.get(device) for choice in families_by_tree))
            )
            groups.setdefault(key_of, []).append(device)
    return StageCells(
        samples=samples,
        cells=cells,
        exchange=exchange,
        devices=devices,
        families=tuple(map(DeviceList.of, groups.values())) or (devices,) * bool(devices),
        splits={tree.klass: tree.split for tree in trees},
    )


WIDTHS: Final = (Dim.WIDTH, Dim.HEADS, Dim.FFN, Dim.HIDDEN, Dim.VOCAB)
"""Dims that tensor parallelism cuts."""


_PRODUCTS: Final = (OperatorClass.ATTN, OperatorClass.MLP, OperatorClass.SSM, OperatorClass.HEAD)


def parts_along(cell: Cell | None, *dims: Dim) -> int:
    """Number of parts that a cell's tree is cut into along these dims; 1 where the cell is None."""
    if cell is None:
        return 1
    return prod(s.parts if isinstance(s.parts, int) else len(s.parts) for s in cell.way(*dims))


def product_class(cells: StageCells) -> OperatorClass:
    """Class of the stage's GEMMs: the first present of ATTN, MLP, SSM and HEAD, else STREAM."""
    return next((k for k in _PRODUCTS if k in cells.cells), OperatorClass.STREAM)
