"""Devices of a placement tree grouped by their parts of some dims.

Equal parts by strides, unequal ones leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import cast

import numpy as np

from shardwright.arrays import IntArray
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.layout.device_cuts_in_placement_tree import (
    Cell,
    CellRow,
    StageCells,
    regular_levels,
    row_of,
)
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import AxisStep, indices
from shardwright.program.layout.tensor_layout import Indices, count
from shardwright.strategy.plan.operator_split_tree import Split

TOKENS = frozenset((Dim.BATCH, Dim.SEQUENCE))
"""Dims of the tokens that a device works on."""
PARTS = frozenset(Dim) - TOKENS - {Dim.REPLICATE}
"""Dims of which it has a part for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DevicesByPart:
    """The devices of a placement tree, grouped by their parts of some dims.

    Args:
        row: devices of the tree, in its order.
        cells: the cuts of each distinct part, of those dims alone, in the order in which the tree
            meets them.
        listed: index into `cells` of each device; of a tree of equal parts it follows from its
            `levels` and the `dims` instead.
    """

    row: DeviceList
    cells: CellRow
    listed: IntArray | None = None
    levels: tuple[Split, ...] = ()
    dims: frozenset[Dim] = frozenset()

    @property
    def devices(self) -> IntArray:
        """(devices,) device numbers in the order of the placement tree's leaves."""
        return self.row.array

    @property
    def number(self) -> IntArray:
        """(devices,) index into `cells` of each device's part."""
        return self.listed if self.listed is not None else stride_numbers(self.levels, self.dims)


@lru_cache(maxsize=16384)
def projection(stage: StageCells, klass: OperatorClass, dims: frozenset[Dim]) -> DevicesByPart:
    """Group the devices that run a class's operators by the parts of `dims` that they hold.

    A tree of equal parts is its levels: on 2 x 4 devices under ``b2 t4``, device 4 i + j has number
    i in the batch and j in the width.
    """
    tree = stage.cells.get(klass)
    return _projection(
        stage, next((k for k, class_tree in stage.cells.items() if class_tree is tree), klass), dims
    )


@lru_cache(maxsize=16384)
def _projection(stage: StageCells, klass: OperatorClass, dims: frozenset[Dim]) -> DevicesByPart:
    """`projection` of one class's tree: by strides where parts are equal, else leaf by leaf."""
    tree = stage.cells.get(klass, {})
    levels = regular_levels(stage.splits[klass]) if klass in stage.splits else None
    if levels is None or len(tree) != prod(split.num_parts for split in levels):
        return _by_leaf(tree, dims)
    return _by_strides(tree, levels, dims)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceTokens:
    """Samples and positions that each device of a tree works on; equal only to itself.

    Samples and positions apart, as each is cut alone.

    Args:
        cut: the tree by samples and by positions.
        parts: distinct parts of the samples, and of the positions.
        part_of: for each index of `cut`, the number of its part.
        sizes: samples, or positions, of each part.
    """

    cut: tuple[DevicesByPart, DevicesByPart]
    parts: tuple[tuple[Indices, ...], tuple[Indices, ...]]
    part_of: tuple[IntArray, IntArray]
    sizes: tuple[IntArray, IntArray]

    @property
    def row(self) -> DeviceList:
        """Devices in the order of the placement tree's leaves."""
        return self.cut[0].row

    @property
    def devices(self) -> IntArray:
        """Array of devices in the order of the placement tree's leaves."""
        return self.row.array

    @property
    def number(self) -> IntArray:
        """(2, devices) number of each device's part of the samples, and of the positions."""
        return np.stack(
            [
                part_numbers[projected.number]
                for part_numbers, projected in zip(self.part_of, self.cut, strict=True)
            ]
        )

    @property
    def counts(self) -> IntArray:
        """(devices, 2) number of samples and of positions of each device."""
        return np.stack(
            [size[number] for size, number in zip(self.sizes, self.number, strict=True)], axis=1
        )

    @property
    def even(self) -> bool:
        """True if all devices have equally many samples and equally many positions."""
        return all(size.min() == size.max() for size in self.sizes)


@lru_cache(maxsize=16384)
def tokens(stage: StageCells, klass: OperatorClass, length: int) -> DeviceTokens:
    """Samples and positions (of `length`) that each device works on in a class's operators."""
    return _tokens_of_projections(
        tuple(projection(stage, klass, frozenset((dim,))) for dim in (Dim.BATCH, Dim.SEQUENCE)),
        (stage.samples, length),
    )


@lru_cache(maxsize=4096)
def _tokens_of_projections(
    cut: tuple[DevicesByPart, ...], lengths: tuple[int, int]
) -> DeviceTokens:
    """`DeviceTokens` of a tree from its projections on samples and on positions."""
    (samples, sample_parts, sample_counts), (positions, position_parts, position_counts) = (
        _distinct_parts(projected.cells, length)
        for projected, length in zip(cut, lengths, strict=True)
    )
    return DeviceTokens(
        cut=(cut[0], cut[1]),
        parts=(samples, positions),
        part_of=(sample_parts, position_parts),
        sizes=(sample_counts, position_counts),
    )


@lru_cache(maxsize=4096)
def _distinct_parts(cells: CellRow, length: int) -> tuple[tuple[Indices, ...], IntArray, IntArray]:
    """(distinct parts that cells take of `length` indices, part number of each cell, part sizes).

    The cells of one dim.
    """
    taken = [indices(cell.way(Dim.BATCH, Dim.SEQUENCE), length) for cell in cells]
    number_of_part = {part: number for number, part in enumerate(dict.fromkeys(taken))}
    return (
        tuple(number_of_part),
        np.array([number_of_part[part] for part in taken], dtype=np.int64),
        np.array(list(map(count, number_of_part)), dtype=np.int64),
    )


def _by_strides(
    tree: Mapping[int, Cell], levels: tuple[Split, ...], dims: frozenset[Dim]
) -> DevicesByPart:
    """The projection of a tree of equal parts, whose leaves are in the order of its levels."""
    return DevicesByPart(
        row=row_of(tree),
        levels=levels,
        dims=dims,
        cells=_cells_of(
            tuple(
                (split.dim, split.num_parts, split.zigzag) for split in levels if split.dim in dims
            )
        ),
    )


def group_and_first_members(
    levels: tuple[Split, ...], dims: Container[Dim]
) -> tuple[DeviceList, DeviceList]:
    """(devices that differ from device 0 only in `dims`, first device of each such group).

    In a tree of equal parts from device 0; all groups are one pattern.
    """
    steps = [(split.dim in dims, (split.num_parts, cast(int, split.step))) for split in levels]
    inside, outside = (
        DeviceList.mesh(0, [step for in_dims, step in steps if in_dims is wanted])
        for wanted in (True, False)
    )
    return inside, outside


def stride_numbers(levels: tuple[Split, ...], dims: frozenset[Dim]) -> IntArray:
    """(leaves,) index of each leaf's parts of `dims` in a tree of equal parts.

    See `projection`.
    """
    parts = [split.num_parts for split in levels]
    number = np.zeros(parts, dtype=np.int64)
    below = 1
    for axis, split in reversed(list(enumerate(levels))):
        if split.dim in dims:
            index = np.arange(parts[axis], dtype=np.int64) * below
            number += index.reshape([-1 if i == axis else 1 for i in range(len(parts))])
            below *= parts[axis]
    return number.reshape(-1)


@lru_cache(maxsize=256)
def _cells_of(cuts: tuple[tuple[Dim, int, bool], ...]) -> CellRow:
    """The cells under cuts in equal parts (dim, parts, zigzag), outermost first."""
    ways = (
        [(dim, (AxisStep(parts=parts, index=i, zigzag=zigzag),)) for i in range(parts)]
        for dim, parts, zigzag in cuts
    )
    return CellRow([Cell(ways=way) for way in product(*ways)])


def _by_leaf(tree: Mapping[int, Cell], dims: frozenset[Dim]) -> DevicesByPart:
    """The projection of any placement tree, leaf by leaf."""
    numbers: dict[Cell, int] = {}
    number = [
        numbers.setdefault(
            Cell(ways=tuple(way for way in cell.ways if way[0] in dims)), len(numbers)
        )
        for cell in tree.values()
    ]
    return DevicesByPart(
        row=row_of(tree), listed=np.array(number, dtype=np.int64), cells=CellRow(numbers)
    )
