"""The devices of a tree by their parts of some dims: equal parts by strides, unequal ones leaf by leaf."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor import Dim
from shardwright.program.layout.cells import AxisStep, Cell, StageCells, regular_levels, token_box
from shardwright.program.layout.layout import Box, count
from shardwright.strategy.plan.split import Split

Int64 = npt.NDArray[np.int64]

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

    devices: Int64
    number: Int64
    cells: tuple[Cell, ...]


def projection(stage: StageCells, klass: OperatorClass, dims: frozenset[Dim]) -> Projection:
    """The devices that run operators of a class by their parts of `dims`.

    A tree of equal parts is its levels: on 2 x 4 devices under ``b2 t4``, device 4 i + j has number i in the batch and j in the width.
    """
    tree = stage.cells.get(klass)
    return _projection(stage, next((k for k, other in stage.cells.items() if other is tree), klass), dims)


@lru_cache(maxsize=16384)
def _projection(stage: StageCells, klass: OperatorClass, dims: frozenset[Dim]) -> Projection:
    tree = stage.cells.get(klass, {})
    levels = regular_levels(stage.splits.get(klass))
    if levels is None or len(tree) != prod(split.num_parts for split in levels):
        return _by_leaf(tree, dims)
    return _by_strides(tree, levels, dims)


@lru_cache(maxsize=4096)
def token_boxes(tokens: Projection, samples: int, length: int) -> tuple[Box, ...]:
    """Samples and positions of each part of a projection on the tokens."""
    return tuple(token_box(cell, samples=samples, length=length) for cell in tokens.cells)


@lru_cache(maxsize=4096)
def token_counts(tokens: Projection, samples: int, length: int) -> Int64:
    """(parts, 2) how many samples and positions there are in each."""
    counts = [(count(batch), count(positions)) for batch, positions in token_boxes(tokens, samples, length)]
    return np.array(counts, dtype=np.int64).reshape(-1, 2)


def _by_strides(tree: dict[int, Cell], levels: tuple[Split, ...], dims: frozenset[Dim]) -> Projection:
    """The numbers of a tree of equal parts, whose leaves are in the order of its levels."""
    parts = [split.num_parts for split in levels]
    number = np.zeros(parts, dtype=np.int64)
    below = 1
    for axis, split in reversed(list(enumerate(levels))):
        if split.dim in dims:
            index = np.arange(parts[axis], dtype=np.int64) * below
            number += index.reshape([-1 if i == axis else 1 for i in range(len(parts))])
            below *= parts[axis]
    chosen = [
        [(s.dim, (AxisStep(parts=s.num_parts, index=i, zigzag=s.zigzag),)) for i in range(s.num_parts)] for s in levels if s.dim in dims
    ]
    devices = np.fromiter(tree, dtype=np.int64, count=prod(parts))
    return Projection(devices=devices, number=number.reshape(-1), cells=tuple(Cell(ways=ways) for ways in product(*chosen)))


def _by_leaf(tree: dict[int, Cell], dims: frozenset[Dim]) -> Projection:
    """The numbers of any tree."""
    numbers: dict[Cell, int] = {}
    number = [numbers.setdefault(Cell(ways=tuple(way for way in cell.ways if way[0] in dims)), len(numbers)) for cell in tree.values()]
    devices = np.fromiter(tree, dtype=np.int64, count=len(tree))
    return Projection(devices=devices, number=np.array(number, dtype=np.int64), cells=tuple(numbers))
