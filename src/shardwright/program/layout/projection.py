"""The devices of a tree by their parts of some dims: equal parts by strides, unequal ones leaf by
leaf.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import cast

import numpy as np

from shardwright.arrays import IntArray
from shardwright.hardware.device_list import DeviceList
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor import Dim
from shardwright.program.layout.cells import (
    AxisStep,
    Cell,
    Cells,
    StageCells,
    indices,
    regular_levels,
    row_of,
)
from shardwright.program.layout.layout import Indices, count
from shardwright.strategy.plan.split import Split

TOKENS = frozenset((Dim.BATCH, Dim.SEQUENCE))
"""Dims of the tokens that a device works on."""
PARTS = frozenset(Dim) - TOKENS - {Dim.REPLICATE}
"""Dims of which it has a part for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """Which devices of a tree have the same parts of some dims.

    Args:
        row: devices of the tree, in its order.
        cells: the ways of each index of parts, those dims alone, in the order in which the tree
            meets them.
        listed: index of each device; of a tree of equal parts it follows from its `levels` and the
            `dims` instead.
    """

    row: DeviceList
    cells: Cells
    listed: IntArray | None = None
    levels: tuple[Split, ...] = ()
    dims: frozenset[Dim] = frozenset()

    @property
    def devices(self) -> IntArray:
        """(devices,) of the tree, in its order."""
        return self.row.array

    @property
    def number(self) -> IntArray:
        """(devices,) index of each one's parts: made when it is asked for, as most questions are
        answered by `cells` alone.
        """
        return self.listed if self.listed is not None else stride_numbers(self.levels, self.dims)


@lru_cache(maxsize=16384)
def projection(stage: StageCells, klass: OperatorClass, dims: frozenset[Dim]) -> Projection:
    """The devices that run operators of a class by their parts of `dims`.

    A tree of equal parts is its levels: on 2 x 4 devices under ``b2 t4``, device 4 i + j has number
    i in the batch and j in the width.
    """
    tree = stage.cells.get(klass)
    return _projection(
        stage, next((k for k, other in stage.cells.items() if other is tree), klass), dims
    )


@lru_cache(maxsize=16384)
def _projection(stage: StageCells, klass: OperatorClass, dims: frozenset[Dim]) -> Projection:
    tree = stage.cells.get(klass, {})
    levels = regular_levels(stage.splits[klass]) if klass in stage.splits else None
    if levels is None or len(tree) != prod(split.num_parts for split in levels):
        return _by_leaf(tree, dims)
    return _by_strides(tree, levels, dims)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """Which tokens the devices of a tree work on: samples and positions apart, as each is cut
    alone. Equal only to itself.

    Args:
        cut: the tree by samples and by positions.
        parts: of samples and of positions, each distinct one once.
        part_of: of each index of `cut`, the number of its part.
        sizes: of each part.
    """

    cut: tuple[Projection, Projection]
    parts: tuple[tuple[Indices, ...], tuple[Indices, ...]]
    part_of: tuple[IntArray, IntArray]
    sizes: tuple[IntArray, IntArray]

    @property
    def row(self) -> DeviceList:
        """Devices of the tree, in its order."""
        return self.cut[0].row

    @property
    def devices(self) -> IntArray:
        """`row` as an array."""
        return self.row.array

    @property
    def number(self) -> IntArray:
        """(2, devices) of the parts of samples and of positions."""
        return np.stack([of[one.number] for of, one in zip(self.part_of, self.cut, strict=True)])

    @property
    def counts(self) -> IntArray:
        """(devices, 2) how many samples and positions each device has."""
        return np.stack(
            [size[number] for size, number in zip(self.sizes, self.number, strict=True)], axis=1
        )

    @property
    def even(self) -> bool:
        """Whether all devices have as many samples and positions."""
        return all(size.min() == size.max() for size in self.sizes)


@lru_cache(maxsize=16384)
def tokens(stage: StageCells, klass: OperatorClass, length: int) -> Tokens:
    """The tokens of every device that runs operators of a class, of a sequence of `length`
    positions.
    """
    return _tokens(
        tuple(projection(stage, klass, frozenset((dim,))) for dim in (Dim.BATCH, Dim.SEQUENCE)),
        (stage.samples, length),
    )


@lru_cache(maxsize=4096)
def _tokens(cut: tuple[Projection, ...], lengths: tuple[int, int]) -> Tokens:
    (samples, of, some), (positions, at, many) = (
        _taken(one.cells, length) for one, length in zip(cut, lengths, strict=True)
    )
    return Tokens(
        cut=(cut[0], cut[1]), parts=(samples, positions), part_of=(of, at), sizes=(some, many)
    )


@lru_cache(maxsize=4096)
def _taken(cells: Cells, length: int) -> tuple[tuple[Indices, ...], IntArray, IntArray]:
    """What cells of one dim take of `length` indices: each distinct part, the number of each cell's
    part, and the sizes of the parts.
    """
    taken = [indices(cell.way(Dim.BATCH, Dim.SEQUENCE), length) for cell in cells]
    known = {part: number for number, part in enumerate(dict.fromkeys(taken))}
    return (
        tuple(known),
        np.array([known[part] for part in taken], dtype=np.int64),
        np.array(list(map(count, known)), dtype=np.int64),
    )


def _by_strides(
    tree: Mapping[int, Cell], levels: tuple[Split, ...], dims: frozenset[Dim]
) -> Projection:
    """The numbers of a tree of equal parts, whose leaves are in the order of its levels."""
    return Projection(
        row=row_of(tree),
        levels=levels,
        dims=dims,
        cells=_cells_of(
            tuple(
                (split.dim, split.num_parts, split.zigzag) for split in levels if split.dim in dims
            )
        ),
    )


def group_of_first(
    levels: tuple[Split, ...], dims: Container[Dim]
) -> tuple[DeviceList, DeviceList]:
    """In a tree of equal parts from device 0: the devices that differ from the first one only in
    some dims, and the first device of each such group. All groups are one pattern.
    """
    steps = [(split.dim in dims, (split.num_parts, cast(int, split.step))) for split in levels]
    inside, outside = (
        DeviceList.mesh(0, [step for of, step in steps if of is wanted]) for wanted in (True, False)
    )
    return inside, outside


def stride_numbers(levels: tuple[Split, ...], dims: frozenset[Dim]) -> IntArray:
    """Of every leaf of a tree of equal parts the index of its parts of some dims;
    see `projection`.
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
def _cells_of(cuts: tuple[tuple[Dim, int, bool], ...]) -> Cells:
    """The cells under cuts in equal parts (dim, parts, zigzag), outermost first."""
    ways = (
        [(dim, (AxisStep(parts=parts, index=i, zigzag=zigzag),)) for i in range(parts)]
        for dim, parts, zigzag in cuts
    )
    return Cells([Cell(ways=way) for way in product(*ways)])


def _by_leaf(tree: Mapping[int, Cell], dims: frozenset[Dim]) -> Projection:
    """The numbers of any tree."""
    numbers: dict[Cell, int] = {}
    number = [
        numbers.setdefault(
            Cell(ways=tuple(way for way in cell.ways if way[0] in dims)), len(numbers)
        )
        for cell in tree.values()
    ]
    return Projection(
        row=row_of(tree), listed=np.array(number, dtype=np.int64), cells=Cells(numbers)
    )
