"""Devices of a stage that are lowered as one: those of one family have parts of equal size and lie alike on the tiers of the network.

Colour refinement, as `program.fold` does for grids: a device's first colour is what it holds and how far its groups and messages reach;
then devices whose partners have different colours are told apart until nothing changes. Colours are numbers in one array; what tells
devices apart follows from their parts and is found once for stages that differ by whole units of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import lcm

import numpy as np
import numpy.typing as npt

from shardwright.model.block import Block
from shardwright.model.graph import Model
from shardwright.model.operator import OperatorClass
from shardwright.model.tensor import Dim
from shardwright.program.cells import Cell, StageCells, cut_dims, indices, interval
from shardwright.program.layout import count
from shardwright.program.plan_sync import Sums, parameter_sums
from shardwright.program.projection import PARTS, TOKENS, projection, regular_levels
from shardwright.program.stage_edges import Messages
from shardwright.program.stage_parts import Segment, StageParts

Int64 = npt.NDArray[np.int64]
Units = tuple[int, ...]
"""Devices of one unit of each tier of the network, innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What beside the stages makes devices differ.

    Args:
        model: of the problem. length: positions of its main sequence. lengths: positions of a segment's sequence in a lane, of each slice.
        units: of the network. island: devices of the innermost for the sums of gradients.
        kinds: first device after each kind of node; empty if there is one kind.
    """

    model: Model
    length: int
    lengths: Callable[[int, Segment], tuple[int, ...]]
    units: Units
    island: int
    kinds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouping:
    """Devices and the groups that each meets, counted from a base. Equal only to itself.

    Args:
        devices: (n,). groups: (groups, members); `of`: (n, groups of a device), rows of `groups`; both filled up with -1.
    """

    devices: Int64
    groups: Int64
    of: Int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trait:
    """Something of some devices of a stage: equal marks mean that they do not differ in it.

    Args:
        grouping: the devices, and whom they meet by it. marks: (n,) from 0 on. plain: all marks are 0.
    """

    grouping: Grouping
    marks: Int64
    plain: bool


class _Colours:
    """The colour of every device."""

    def __init__(self, size: int, kinds: tuple[int, ...]) -> None:
        self.colour = np.zeros(size + 1, dtype=np.int64)
        self.colour[:size] = np.searchsorted(np.array(kinds, dtype=np.int64), np.arange(size), side="right")
        self.colour[size] = -1  # what stands for a member that is none
        self.used = len(kinds) + 1
        self.told: set[object] = set()

    def tell(self, devices: Int64, marks: Int64, *, key: object) -> None:
        """Tell apart devices of one colour that differ in their marks, and all of them from all others; nothing if it has been told."""
        if key in self.told:
            return
        self.told.add(key)
        self.recolour(devices, marks)

    def recolour(self, devices: Int64, marks: Int64) -> None:
        found, place = np.unique(self.colour[devices] * (int(marks.max(initial=0)) + 1) + marks, return_inverse=True)
        self.colour[devices] = self.used + place.reshape(-1)
        self.used += len(found)

    def tell_partners(self, grouping: Grouping, base: int) -> None:
        """Tell apart devices by how many partners they have of each colour, in each of their groups."""
        members = np.where(grouping.groups < 0, -1, grouping.groups + base)
        there = self.colour[members]
        if there.size and there.min() == there.max() and grouping.of.min() >= 0:
            return
        there.sort(axis=1)
        kinds = np.append(np.unique(there, axis=0, return_inverse=True)[1].reshape(-1), -1)
        marks = kinds[grouping.of]
        one = marks[:, 0] if marks.shape[1] == 1 else np.unique(marks, axis=0, return_inverse=True)[1].reshape(-1)
        self.recolour(grouping.devices + base, one)

    @property
    def number(self) -> int:
        """Different colours."""
        return len(np.unique(self.colour))


def refine_families(
    stages: tuple[tuple[StageParts, ...], ...], *, crossings: Iterable[Messages], ground: Ground
) -> tuple[tuple[StageParts, ...], ...]:
    """The stages with families of devices that are alike.

    Args:
        crossings: messages of all edges, both ways. ground: what devices lie on.
    """
    every = [stage for lane in stages for stage in lane]
    colours = _Colours(1 + max(stage.devices[-1] for stage in every), ground.kinds)
    sizes = {}
    meetings: dict[tuple[int, int], tuple[Grouping, int]] = {}
    known: dict[object, list[Trait]] = {}
    period = lcm(*(unit for unit in ground.units if unit < len(colours.colour) - 1))
    for stage in every:
        sizes[stage.lane, stage.chunk] = len(stage.devices)
        if id(stage.families) not in colours.told:
            where = np.concatenate([np.array(family, dtype=np.int64) for family in stage.families])
            marks = np.repeat(np.arange(len(stage.families)), [len(family) for family in stage.families])
            colours.tell(where, marks, key=id(stage.families))
        lengths = [ground.lengths(stage.lane, segment) for segment in stage.segments]
        form = (stage.base % period, *((id(s.cells), id(s.block), n) for s, n in zip(stage.segments, lengths, strict=True)))
        if form not in known:
            held = (_sized(s.cells, s.block, n) for s, n in zip(stage.segments, lengths, strict=True))
            reached = (_reach(cells, stage.base % period, ground.units) for cells in dict.fromkeys(s.cells for s in stage.segments))
            known[form] = [trait for trait in (*held, *reached) if not trait.plain or len(trait.marks) < len(stage.devices)]
        for trait in known[form]:
            colours.tell(trait.grouping.devices + stage.base, trait.marks, key=(id(trait), stage.base))
    found = [(trait, messages.base, 0) for messages in crossings for trait in _crossed(messages, ground.units)]
    for places, _, base, sums in parameter_sums(stages, model=ground.model, length=ground.length, island=ground.island):
        for number, place in enumerate(places):
            found.append((_summed(sums, number, base % period, ground.units), base, sizes[place.use[:2]]))
    for trait, base, size in found:
        if len(trait.marks):
            meetings[id(trait.grouping), base] = (trait.grouping, base)
            if not trait.plain or len(trait.marks) != size:
                colours.tell(trait.grouping.devices + base, trait.marks, key=(id(trait), base))
    before = 0
    while before != (before := colours.number):
        for grouping, base in meetings.values():
            colours.tell_partners(grouping, base)
    split: dict[int, tuple[tuple[int, ...], ...]] = {}
    return tuple(tuple(_split(stage, colours.colour, split) for stage in lane) for lane in stages)


def _split(stage: StageParts, colour: Int64, known: dict[int, tuple[tuple[int, ...], ...]]) -> StageParts:
    """The stage with its families cut by colour; stages with the same families share what they become."""
    if id(stage.families) not in known:
        families: list[tuple[int, ...]] = []
        for family in stage.families:
            parts: dict[int, list[int]] = {}
            own = colour[np.array(family)]
            if (own == own[0]).all():
                families.append(family)
                continue
            for device, one in zip(family, own.tolist(), strict=True):
                parts.setdefault(one, []).append(device)
            families += [tuple(part) for part in parts.values()]
        known[id(stage.families)] = tuple(families) if len(families) > len(stage.families) else stage.families
    return replace(stage, families=known[id(stage.families)])


def _numbered(values: Iterable[Hashable]) -> Int64:
    """Equal values as equal numbers, from 0 on in the order in which they come."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def _trait(grouping: Grouping, columns: Sequence[Int64]) -> Trait:
    """Devices differ where one of the columns does."""
    differing = [column for column in columns if len(column) and column.min() != column.max()]
    if not differing:
        return Trait(grouping=grouping, marks=np.zeros(len(grouping.devices), dtype=np.int64), plain=True)
    marks = np.unique(np.stack(differing, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    return Trait(grouping=grouping, marks=marks, plain=False)


def _alone(devices: Int64) -> Grouping:
    """Devices that meet nobody."""
    return Grouping(devices=devices, groups=np.zeros((0, 0), dtype=np.int64), of=np.zeros((len(devices), 0), dtype=np.int64))


def _by_device(cells: StageCells, devices: Int64, column: Int64) -> Int64:
    """A column of some devices of the cells as one of all of them; -1: it is of others."""
    result = np.full(len(cells.devices), -1, dtype=np.int64)
    result[np.searchsorted(np.array(cells.devices), devices)] = column
    return result


@lru_cache(maxsize=4096)
def _sized(cells: StageCells, block: Block, lengths: tuple[int, ...]) -> Trait:
    """What devices hold: samples, positions (of each slice) and elements of every extent, by operator."""
    columns: list[Int64] = []
    for klass in dict.fromkeys(o.klass for o in block.operators if cells.cells.get(o.klass)):
        tokens, parts = projection(cells, klass, TOKENS), projection(cells, klass, PARTS)
        sizes = _numbered(
            (
                count(indices(cell.way(Dim.BATCH), cells.samples)),
                *(count(indices(cell.way(Dim.SEQUENCE), length)) for length in lengths),
            )
            for cell in tokens.cells
        )
        held = _numbered(tuple(_elements(cell, block, klass)) for cell in parts.cells)
        columns += [_by_device(cells, one.devices, of[one.number]) for one, of in ((tokens, sizes), (parts, held))]
    return _trait(_alone(np.array(cells.devices, dtype=np.int64)), columns)


def _elements(cell: Cell, block: Block, klass: OperatorClass) -> Iterator[int]:
    """Elements of every extent of the operators of a class that a device with these parts holds."""
    for operator in (o for o in block.operators if o.klass is klass):
        cuts = cut_dims(cell, operator)
        for extent in (*operator.reads, *operator.writes, *(e for p in operator.parameters for e in p.extents)):
            low, high = interval(extent, operator, cuts)
            yield high - low


@lru_cache(maxsize=4096)
def _reach(cells: StageCells, base: int, units: Units) -> Trait:
    """How the groups of each device lie on the tiers: for each tree and set of dims, of the devices that differ only in those."""
    columns = []
    for klass in {id(tree): klass for klass, tree in cells.cells.items()}.values():
        devices = np.fromiter(cells.cells[klass], dtype=np.int64)
        for numbers in _reached(cells, klass):
            of = numbers >= 0
            groups = [devices[numbers == number] + base for number in range(int(numbers.max(initial=-1)) + 1)]
            lying = _numbered(_lying(group, units) for group in groups)
            columns.append(_by_device(cells, devices[of], lying[numbers[of]]))
    return _trait(_alone(np.array(cells.devices, dtype=np.int64)), columns)


def _reached(cells: StageCells, klass: OperatorClass) -> Iterator[Int64]:
    """For each set of dims the number of each device's group, of those that differ only in these; -1: its way does not cut them all."""
    tree, levels = cells.cells[klass], regular_levels(cells.splits.get(klass))
    if levels is not None:
        dims = tuple(dict.fromkeys(split.dim for split in levels))
        for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
            yield projection(cells, klass, frozenset(dims) - frozenset(chosen)).number
        return
    numbers: dict[tuple[Dim, ...], dict[Hashable, int]] = {}
    found: dict[tuple[Dim, ...], Int64] = {}
    for place, cell in enumerate(tree.values()):
        dims = tuple(dict.fromkeys(dim for dim, _ in cell.ways))
        for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
            own = numbers.setdefault(chosen, {})
            kept = tuple(way for way in cell.ways if way[0] not in chosen)
            found.setdefault(chosen, np.full(len(tree), -1, dtype=np.int64))[place] = own.setdefault(kept, len(own))
    yield from found.values()


def _lying(devices: Int64, units: Units) -> Hashable:
    """How a group lies on the tiers: numbers of its members in the units of each."""
    return tuple(tuple(np.sort(np.unique(devices // unit, return_counts=True)[1]).tolist()) for unit in units)


@lru_cache(maxsize=4096)
def _crossed(messages: Messages, units: Units) -> tuple[Trait, Trait]:
    """Of the senders and of the receivers, from the messages' base on: elements on each tier, and whom they meet."""
    sends = messages.sends
    tier = np.full(len(sends), len(units) - 1)
    for index in range(len(units) - 1, -1, -1):
        first, last = ((sends[:, way] + messages.base) // units[index] for way in (0, 1))
        tier[first == last] = index
    result = []
    for way in (0, 1):
        devices, place = np.unique(sends[:, way], return_inverse=True)
        totals = np.zeros((len(devices), len(units)), dtype=np.int64)
        np.add.at(totals, (place.reshape(-1), tier), sends[:, 2])
        pairs = np.unique(np.stack([place.reshape(-1), sends[:, 1 - way]], axis=1), axis=0)
        degree = np.bincount(pairs[:, 0], minlength=len(devices))
        groups = np.full((len(devices), int(degree.max(initial=0))), -1, dtype=np.int64)
        groups[pairs[:, 0], np.arange(len(pairs)) - np.repeat(np.cumsum(degree) - degree, degree)] = pairs[:, 1]
        grouping = Grouping(devices=devices, groups=groups, of=np.arange(len(devices)).reshape(-1, 1))
        result.append(_trait(grouping, list(totals.T)))
    return result[0], result[1]


@lru_cache(maxsize=8192)
def _summed(sums: Sums, use: int, base: int, units: Units) -> Trait:
    """What the devices that are counted at a parameter's use sum of it, and with whom; `base` only says how they lie."""
    own: dict[int, list[tuple[int, tuple[int, ...]]]] = {device: [] for device in sums.counted[use]}
    for elements, of in zip(sums.elements, sums.group_of, strict=True):
        for device in of.keys() & own.keys():
            own[device].append((elements, of[device]))
    own = {device: items for device, items in own.items() if items}
    near = sums.holders[use]
    known: dict[Hashable, int] = {}
    lying: dict[tuple[int, ...], int] = {}
    for group in dict.fromkeys(group for items in own.values() for _, group in items):
        ways = (group,) if near is None else (group, tuple(d for d in group if d in near))
        alike = tuple(_lying(np.array(way, dtype=np.int64) + base, units) for way in ways)
        lying[group] = known.setdefault(alike, len(known))
    marks = _numbered(tuple((elements, lying[group]) for elements, group in items) for items in own.values())
    return _trait(_grouping(tuple(own), tuple(tuple(group for _, group in items) for items in own.values())), [marks])


@lru_cache(maxsize=4096)
def _grouping(devices: tuple[int, ...], met: tuple[tuple[tuple[int, ...], ...], ...]) -> Grouping:
    """Devices and the groups of each: one object for equal ones."""
    number: dict[tuple[int, ...], int] = {}
    of = [[number.setdefault(group, len(number)) for group in groups] for groups in met]
    return Grouping(devices=np.array(devices, dtype=np.int64), groups=_filled(list(number)), of=_filled(of))


def _filled(rows: Sequence[Sequence[int]]) -> Int64:
    """Rows of unequal length as an array, filled up with -1."""
    result = np.full((len(rows), max(map(len, rows), default=0)), -1, dtype=np.int64)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result
