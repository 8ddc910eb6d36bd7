"""Cells: the samples, positions and parts of other dims that each device works on.

By operator class, for the devices of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import cast

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import StrategyError
from shardwright.hardware.strided_device_list import DeviceList, union
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.layout.tensor_layout import (
    Box,
    Indices,
    Interval,
    Layout,
    count,
    joined_intervals,
)
from shardwright.strategy.plan.pipeline_stages import Placement
from shardwright.strategy.plan.split_tree import Exchange, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisStep:
    """One cut on the way down a placement tree to a device: the parts and the index taken.

    Parts are equal (a count) or weights; pieces may be taken zigzag.
    """

    parts: int | tuple[int, ...]
    index: int
    zigzag: bool = False

    @property
    def total(self) -> int:
        """Sum of the weights of the parts; the number of parts where they are equal."""
        return self.parts if isinstance(self.parts, int) else sum(self.parts)


Way = tuple[AxisStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The cuts of each dim on a device's way down one placement tree, outermost first.

    `Dim.REPLICATE`: which copy it is.
    """

    ways: tuple[tuple[Dim, Way], ...]

    def way(self, *dims: Dim) -> Way:
        """All cuts of the given dims, in the order of the tree."""
        return tuple([step for dim, way in self.ways for step in way if dim in dims])


class CellRow(tuple[Cell, ...]):
    """A row of cells that equals only itself: a cheap key for caches."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def largest_remainder(count: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Divide `count` by weights into whole numbers by the largest-remainder method.

    Rounded down, with one more for the largest remainders, ties to the lower index.
    """
    total = sum(weights)
    floors = [count * w // total for w in weights]
    if left := count - sum(floors):
        for i in sorted(range(len(weights)), key=lambda i: (-(count * weights[i] % total), i))[
            :left
        ]:
            floors[i] += 1
    return tuple(floors)


def cut(indices: Indices, step: AxisStep) -> Indices:
    """The part of an index list that `step` takes.

    Zigzag takes pieces i and 2n - 1 - i of 2n.
    """
    pieces = _pieces(indices, step.parts, step.zigzag)
    return (
        joined_intervals((*pieces[step.index], *pieces[-1 - step.index]))
        if step.zigzag
        else pieces[step.index]
    )


@lru_cache(maxsize=1024)
def _pieces(indices: Indices, parts: int | tuple[int, ...], zigzag: bool) -> tuple[Indices, ...]:
    """An index list cut into pieces, one for each part, or two for each zigzag part."""
    weights = (1,) * parts if isinstance(parts, int) else parts
    ends = list(
        accumulate(
            largest_remainder(count(indices), (*weights, *reversed(weights)) if zigzag else weights)
        )
    )
    pieces: list[list[Interval]] = [[] for _ in ends]
    piece = passed = 0
    for low, high in indices:
        while low < high:
            while ends[piece] == passed:
                piece += 1
            taken = min(high - low, ends[piece] - passed)
            pieces[piece].append((low, low + taken))
            low, passed = low + taken, passed + taken
    return tuple(map(tuple, pieces))


@lru_cache(maxsize=65536)
def indices(way: Way, length: int) -> Indices:
    """The indices that a sequence of cuts takes of a list of `length`.

    Empty where more parts than indices leave none.
    """
    taken: Indices = ((0, length),) if length else ()
    for step in way:
        taken = cut(taken, step)
    return taken


@lru_cache(maxsize=65536)
def covered_runs(way: Way, runs: int, reference: int) -> Interval:
    """Interval of runs of a coarser list that a sequence of cuts touches.

    [low, high), where the way cuts a list of `reference` runs; copies where a part would have none.

    Key heads under query heads: a part of the query heads needs every key head that one of them
    reads.
    """
    parts, fine = 1, max(reference, runs)
    smallest = fine
    for step in way:
        parts *= step.total
        smallest = min(
            largest_remainder(
                smallest, (1,) * step.parts if isinstance(step.parts, int) else step.parts
            )
        )
    if not smallest:
        fine *= -(-parts // fine)
    taken = indices(way, fine)
    if not taken:
        return (0, 0)
    low, high = taken[0][0], taken[-1][1]
    return (low * runs // fine, -(-high * runs // fine))


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


def leaves(split: Split | None, base: int) -> Iterator[tuple[int, Cell, tuple[int, ...]]]:
    """(device, its cell, its family) of every leaf of a placement tree.

    The family is the unequal choices on the way, -1 for equal parts.
    """
    levels = regular_levels(split)
    if levels is None:
        return _leaves(split, base, (), ())
    return ((device, cell, (-1,) * len(levels)) for device, cell in TreeCells(levels, base).items())


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
    split: Split | None, base: int, ways: tuple[tuple[Dim, Way], ...], family: tuple[int, ...]
) -> Iterator[tuple[int, Cell, tuple[int, ...]]]:
    """(device, its cell, its family) of every leaf below `split`, whose parts may be unequal."""
    if split is None:
        yield base, Cell(ways=ways), family
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
        yield from _leaves(child, base + offset, (*ways, (split.dim, (step,))), (*family, choice))


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
    """The placement tree of every operator class for block number `block` of a stage.

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
    """The cells of a stage's devices, given the placement tree of each operator class.

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


@lru_cache(maxsize=4096)
def dims_present(operator: Operator) -> frozenset[Dim]:
    """The dims of `operator`, besides tokens, that a cut can apply to."""
    present = {e.dim for e in (*operator.reads, *operator.writes)}
    if operator.experts is not None and operator.klass is OperatorClass.EXPERTS:
        present.add(Dim.EXPERTS)
    if operator.attention is not None or operator.scan is not None:
        present.add(Dim.HEADS)
    return frozenset(present)


@lru_cache(maxsize=4096)
def dims_cut(operator: Operator) -> dict[Dim, Dim]:
    """By cut dim, the dim of `operator` that the cut applies to.

    ``t`` is the operator's own width. Dims that the operator lacks, and tokens, are left out.
    """
    width, present = (
        operator.width(),
        dims_present(operator) - {Dim.BATCH, Dim.SEQUENCE, Dim.REPLICATE},
    )
    applied = {dim: width if dim is Dim.WIDTH else dim for dim in Dim}
    return {dim: operator_dim for dim, operator_dim in applied.items() if operator_dim in present}


def cut_dims(cell: Cell, operator: Operator) -> dict[Dim, Way]:
    """The cuts of a cell that apply to `operator`, by the operator's dim.

    See `dims_cut`; a cut of a dim that the operator lacks makes copies.
    """
    cuts: dict[Dim, Way] = {}
    applied = dims_cut(operator)
    for dim, way in cell.ways:
        if dim in applied:
            cuts[applied[dim]] = (*cuts.get(applied[dim], ()), *way)
    return cuts


@lru_cache(maxsize=4096)
def reference_runs(operator: Operator, dim: Dim) -> int:
    """Number of runs of the operator's finest extent on a dim.

    The list in which cuts are made.
    """
    runs = [e.runs for e in (*operator.reads, *operator.writes) if e.dim is dim]
    if dim is Dim.HEADS and operator.attention is not None:
        runs.append(operator.attention.heads)
    if dim is Dim.HEADS and operator.scan is not None:
        runs.append(operator.scan.heads)
    if dim is Dim.EXPERTS and operator.experts is not None:
        runs.append(operator.experts.experts)
    return max(runs, default=1)


def interval(extent: Extent, operator: Operator, cuts: dict[Dim, Way]) -> Interval:
    """Elements [low, high) of `extent` that a device with the given cuts holds."""
    low, high = covered_runs(
        cuts.get(extent.dim, ()), extent.runs, reference_runs(operator, extent.dim)
    )
    return (low * extent.quantum, high * extent.quantum)


@lru_cache(maxsize=4096)
def intervals(cells: CellRow, operator: Operator, extent: Extent) -> tuple[Interval, ...]:
    """Elements [low, high) of `extent` under each of several cells (`interval`)."""
    runs = covered_runs_of_cells(cells, operator, extent.dim, extent.runs)
    return (
        runs
        if extent.quantum == 1
        else tuple([(low * extent.quantum, high * extent.quantum) for low, high in runs])
    )


def covered_runs_of_cells(
    cells: CellRow, operator: Operator, dim: Dim, runs: int
) -> tuple[Interval, ...]:
    """Interval of `runs` that each of several cells touches, as the operator cuts a dim.

    See `covered_runs`.
    """
    cuts = frozenset([cut for cut, meant in dims_cut(operator).items() if meant is dim])
    return _covered_runs_of_cells(cells, cuts, runs, reference_runs(operator, dim))


@lru_cache(maxsize=4096)
def _covered_runs_of_cells(
    cells: CellRow, dims: frozenset[Dim], runs: int, reference: int
) -> tuple[Interval, ...]:
    """`covered_runs` of each cell's cuts of `dims` (cached)."""
    return tuple([covered_runs(cell.way(*dims), runs, reference) for cell in cells])


def token_box(cell: Cell, *, samples: int, length: int) -> Box:
    """The box of samples and positions that a device works on."""
    return indices(cell.way(Dim.BATCH), samples), indices(cell.way(Dim.SEQUENCE), length)
