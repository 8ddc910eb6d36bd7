"""The devices of a tree by their parts of some dims: equal parts by strides, unequal ones leaf by leaf."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor import Dim
from shardwright.program.layout.cells import AxisStep, Cell, Cells, StageCells, devices_of, indices, regular_levels
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
        devices: of the tree, in its order. number: of each, the index of its parts. cells: the ways of each index, those dims alone,
            in the order in which the tree meets them.
    """

    devices: IntArray
    number: IntArray
    cells: Cells


@lru_cache(maxsize=16384)
def projection(stage: StageCells, klass: OperatorClass, dims: frozenset[Dim]) -> Projection:
    """The devices that run operators of a class by their parts of `dims`.

    A tree of equal parts is its levels: on 2 x 4 devices under ``b2 t4``, device 4 i + j has number i in the batch and j in the width.
    """
    tree = stage.cells.get(klass)
    return _projection(stage, next((k for k, other in stage.cells.items() if other is tree), klass), dims)


@lru_cache(maxsize=16384)
def _projection(stage: StageCells, klass: OperatorClass, dims: frozenset[Dim]) -> Projection:
    tree = stage.cells.get(klass, {})
    levels = regular_levels(stage.splits[klass]) if klass in stage.splits else None
    if levels is None or len(tree) != prod(split.num_parts for split in levels):
        return _by_leaf(tree, dims)
    return _by_strides(tree, levels, dims)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """Which tokens the devices of a tree work on: samples and positions apart, as each is cut alone. Equal only to itself.

    Args:
        devices: of the tree, in its order. parts: of samples and of positions, each distinct one once. number: (2, devices) of them.
        counts: (devices, 2) how many samples and positions each device has.
    """

    devices: IntArray
    parts: tuple[tuple[Indices, ...], tuple[Indices, ...]]
    number: IntArray
    counts: IntArray


@lru_cache(maxsize=16384)
def tokens(stage: StageCells, klass: OperatorClass, length: int) -> Tokens:
    """The tokens of every device that runs operators of a class, of a sequence of `length` positions."""
    return _tokens(tuple(projection(stage, klass, frozenset((dim,))) for dim in (Dim.BATCH, Dim.SEQUENCE)), (stage.samples, length))


@lru_cache(maxsize=4096)
def _tokens(cut: tuple[Projection, ...], lengths: tuple[int, int]) -> Tokens:
    (samples, of, some), (positions, at, many) = (_taken(one.cells, length) for one, length in zip(cut, lengths, strict=True))
    number = np.stack([of[cut[0].number], at[cut[1].number]])
    counts = np.stack([some[number[0]], many[number[1]]], axis=1)
    return Tokens(devices=cut[0].devices, parts=(samples, positions), number=number, counts=counts)


@lru_cache(maxsize=4096)
def _taken(cells: Cells, length: int) -> tuple[tuple[Indices, ...], IntArray, IntArray]:
    """What cells of one dim take of `length` indices: each distinct part, the number of each cell's part, and the sizes of the parts."""
    taken = [indices(cell.way(Dim.BATCH, Dim.SEQUENCE), length) for cell in cells]
    known = {part: number for number, part in enumerate(dict.fromkeys(taken))}
    return tuple(known), np.array([known[part] for part in taken], dtype=np.int64), np.array(list(map(count, known)), dtype=np.int64)


def _by_strides(tree: Mapping[int, Cell], levels: tuple[Split, ...], dims: frozenset[Dim]) -> Projection:
    """The numbers of a tree of equal parts, whose leaves are in the order of its levels."""
    return Projection(
        devices=devices_of(tree),
        number=stride_numbers(levels, dims),
        cells=_cells_of(tuple((split.dim, split.num_parts, split.zigzag) for split in levels if split.dim in dims)),
    )


def stride_numbers(levels: tuple[Split, ...], dims: frozenset[Dim]) -> IntArray:
    """Of every leaf of a tree of equal parts the index of its parts of some dims; see `projection`."""
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
    ways = ([(dim, (AxisStep(parts=parts, index=i, zigzag=zigzag),)) for i in range(parts)] for dim, parts, zigzag in cuts)
    return Cells([Cell(ways=way) for way in product(*ways)])


def _by_leaf(tree: Mapping[int, Cell], dims: frozenset[Dim]) -> Projection:
    """The numbers of any tree."""
    numbers: dict[Cell, int] = {}
    number = [numbers.setdefault(Cell(ways=tuple(way for way in cell.ways if way[0] in dims)), len(numbers)) for cell in tree.values()]
    devices = devices_of(tree)
    return Projection(devices=devices, number=np.array(number, dtype=np.int64), cells=Cells(numbers))
