"""What tells devices of a stage apart: what each holds, how far its groups and messages reach, what
it sums and with whom.

A trait is found once for stages that differ by whole units of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import combinations
from math import lcm

import numpy as np

from shardwright.arrays import BoolArray, IntArray, distinct, numbered_rows, rises
from shardwright.hardware.device_list import DeviceList
from shardwright.hardware.graph import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor import Dim
from shardwright.program.layout.cells import (
    Cells,
    StageCells,
    devices_of,
    intervals,
    regular_levels,
    row_of,
)
from shardwright.program.layout.layout import Interval
from shardwright.program.layout.projection import (
    PARTS,
    group_of_first,
    projection,
    stride_numbers,
    tokens,
)
from shardwright.program.same import Same
from shardwright.program.stages.parameter_sums import Sums, numbered


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouping:
    """Devices and the groups that each meets, counted from a base. Equal only to itself.

    Args:
        devices: (n,).
        groups: (groups, members); `of`: (n, groups of a device), rows of `groups`; both filled up
            with -1.
        full: nothing had to be filled up.
    """

    devices: IntArray
    groups: IntArray
    of: IntArray
    full: bool

    @staticmethod
    def by(devices: IntArray, groups: IntArray, of: IntArray) -> Grouping:
        """Of these groups."""
        full = bool(groups.min(initial=0) >= 0 and of.min(initial=0) >= 0)
        return Grouping(devices=devices, groups=groups, of=of, full=full)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trait:
    """Something of some devices of a stage: equal marks mean that they do not differ in it.

    Args:
        meet: the devices, and whom they meet by it: made where something tells devices apart.
        full: `Grouping.full` of it.
        marks: (n,) from 0 on.
        plain: all marks are 0.
    """

    meet: Callable[[], Grouping]
    full: bool
    marks: IntArray
    plain: bool


def _trait(
    meet: Callable[[], Grouping], count: int, columns: Sequence[IntArray], *, full: bool = True
) -> Trait:
    """`count` devices, which differ where one of the columns does."""
    differing = [column for column in columns if len(column) and column.min() != column.max()]
    if not differing:
        return Trait(meet=meet, full=full, marks=_no_marks(count), plain=True)
    return Trait(
        meet=meet, full=full, marks=numbered_rows(np.stack(differing, axis=1)), plain=False
    )


@lru_cache(maxsize=8)
def _no_marks(count: int) -> IntArray:
    """Marks of devices that do not differ."""
    marks = np.zeros(count, dtype=np.int64)
    marks.setflags(write=False)
    return marks


@lru_cache(maxsize=4096)
def _alone(row: DeviceList) -> Grouping:
    """Devices that meet nobody."""
    devices = row.array
    return Grouping.by(
        devices, np.zeros((0, 0), dtype=np.int64), np.zeros((len(devices), 0), dtype=np.int64)
    )


def _by_device(cells: StageCells, devices: IntArray, column: IntArray) -> IntArray:
    """A column of some devices of the cells as one of all of them; -1: it is of others."""
    if len(column) == cells.devices.size and column.min() == column.max():
        return column
    result = np.full(cells.devices.size, -1, dtype=np.int64)
    result[np.searchsorted(cells.devices.array, devices)] = column
    return result


@lru_cache(maxsize=4096)
def held_trait(cells: StageCells, block: Block, lengths: tuple[int, ...]) -> Trait:
    """What devices hold: samples, positions (of each slice) and elements of every extent, by
    operator, and of the block's input.
    """
    columns, trees = list[IntArray](), dict[int, tuple[IntArray, list[IntArray]]]()
    # The input lies as the stream does, though none of the block's operators may.
    for klass in (
        k
        for k in dict.fromkeys((OperatorClass.STREAM, *(o.klass for o in block.operators)))
        if cells.cells.get(k)
    ):
        parts = projection(cells, klass, PARTS)
        held, whole = _elements(parts.cells, block, klass), parts.row.size == cells.devices.size
        if not whole or held.min() != held.max():
            columns.append(_by_device(cells, parts.devices, held[parts.number]))
        of_lengths = [tokens(cells, klass, length) for length in lengths]
        if not whole or not all(one.even for one in of_lengths):
            trees[id(cells.cells[klass])] = parts.devices, [one.counts for one in of_lengths]
    columns += [
        _by_device(cells, devices, column)
        for devices, counts in trees.values()
        for of in counts
        for column in of.T
    ]
    return _trait(partial(_alone, cells.devices), cells.devices.size, columns)


@lru_cache(maxsize=1024)
def _elements(cells: Cells, block: Block, klass: OperatorClass) -> IntArray:
    """Equal numbers for cells under which a device holds as much of every extent of the operators
    of a class.
    """
    held: dict[tuple[Interval, ...], None] = {}
    stream = klass is OperatorClass.STREAM
    for operator in (
        o for o in block.operators if o.klass is klass or (stream and INPUT in o.inputs)
    ):
        if operator.klass is not klass:
            held |= dict.fromkeys(intervals(cells, operator, extent) for extent in operator.reads)
            continue
        for extent in (
            *operator.reads,
            *operator.writes,
            *(e for p in operator.parameters for e in p.extents),
        ):
            held[intervals(cells, operator, extent)] = None
    sizes = [[high - low for low, high in ends] for ends in held]
    return numbered(list(zip(*sizes, strict=True)) or [()] * len(cells))


@lru_cache(maxsize=4096)
def reach_trait(cells: StageCells, base: int, units: tuple[Units, ...]) -> Trait:
    """How the groups of each device lie on the tiers: for each tree and set of dims, of the devices
    that differ only in those.
    """
    columns = []
    for klass in {id(tree): klass for klass, tree in cells.cells.items()}.values():
        if len(cells.cells[klass]) == cells.devices.size and _lie_alike(cells, klass, base, units):
            continue
        devices = devices_of(cells.cells[klass])
        for numbers in _reached(cells, klass):
            of = numbers >= 0
            lying = _lying(devices[of], numbers[of], base, units)
            columns.append(_by_device(cells, devices[of], lying[numbers[of]]))
    return _trait(partial(_alone, cells.devices), cells.devices.size, columns)


def _lie_alike(
    cells: StageCells, klass: OperatorClass, base: int, units: tuple[Units, ...]
) -> bool:
    """Whether in a tree of equal parts all groups of the devices that differ only in some dims lie
    alike, for each set of dims.

    Groups of one set are one pattern from different devices on. How it lies depends on where in the
    units it begins, which repeats: no more groups are looked at than there are such places.
    """
    levels = regular_levels(cells.splits.get(klass))
    if levels is None or any(len(unit.first) > 1 for unit in units):
        return False
    row = row_of(cells.cells[klass])
    repeats = lcm(*(unit.size[0] for unit in units if unit.size[0] <= base + row[-1]))
    dims = tuple(dict.fromkeys(split.dim for split in levels))
    for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
        inside, outside = group_of_first(levels, chosen)
        first = outside.array + row.first
        starts = first[np.unique((first + base) % repeats, return_index=True)[1]]
        if (
            len(starts) > 1
            and _alike(
                [_spread(np.add.outer(starts, inside.array), base, unit) for unit in units]
            ).any()
        ):
            return False
    return True


def _reached(cells: StageCells, klass: OperatorClass) -> Iterator[IntArray]:
    """For each set of dims the number of each device's group, of those that differ only in these;
    -1: its way does not cut them all.
    """
    tree, levels = cells.cells[klass], regular_levels(cells.splits.get(klass))
    if levels is not None:
        dims = tuple(dict.fromkeys(split.dim for split in levels))
        for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
            yield stride_numbers(levels, frozenset(dims) - frozenset(chosen))
        return
    numbers: dict[tuple[Dim, ...], dict[Hashable, int]] = {}
    found: dict[tuple[Dim, ...], IntArray] = {}
    for place, cell in enumerate(tree.values()):
        dims = tuple(dict.fromkeys(dim for dim, _ in cell.ways))
        for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
            own = numbers.setdefault(chosen, {})
            kept = tuple(way for way in cell.ways if way[0] not in chosen)
            found.setdefault(chosen, np.full(len(tree), -1, dtype=np.int64))[place] = (
                own.setdefault(kept, len(own))
            )
    yield from found.values()


def _lying(devices: IntArray, number: IntArray, base: int, units: tuple[Units, ...]) -> IntArray:
    """How each of several groups lies on the tiers, equal numbers for equal ones; `number`: the
    group of each device.
    """
    size = np.bincount(number)
    groups = np.full((len(size), int(size.max(initial=0))), -1, dtype=np.int64)
    groups[
        np.repeat(np.arange(len(size)), size),
        np.arange(len(number)) - np.repeat(np.cumsum(size) - size, size),
    ] = devices[np.argsort(number, kind="stable")]
    return _alike([_spread(groups, base, unit) for unit in units])


@lru_cache(maxsize=4096)
def message_traits(
    messages: Same[IntArray], base: int, units: tuple[Units, ...]
) -> tuple[Trait, Trait]:
    """Of the senders and of the receivers of messages counted from a base: elements on each tier,
    and whom they meet.
    """
    sends = messages.value
    tier = np.full(len(sends), len(units) - 1)
    for index in range(len(units) - 1, -1, -1):
        first, last = (units[index].of(sends[:, way] + base) for way in (0, 1))
        tier[first == last] = index
    result = []
    for way in (0, 1):
        meet = partial(_met_by_messages, messages, way)
        if rises(sends[:, way]):
            result.append(
                _trait(meet, len(sends), (np.where(sends[:, 2] > 0, tier, -1), sends[:, 2]))
            )
            continue
        devices, place = np.unique(sends[:, way], return_inverse=True)
        totals = np.zeros((len(devices), len(units)), dtype=np.int64)
        np.add.at(totals, (place.reshape(-1), tier), sends[:, 2])
        result.append(_trait(meet, len(devices), list(totals.T), full=meet().full))
    return result[0], result[1]


@lru_cache(maxsize=4096)
def _met_by_messages(messages: Same[IntArray], way: int) -> Grouping:
    """The senders (0) or the receivers (1) of messages,
    and those that each sends to or gets from.
    """
    sends = messages.value
    devices, place = np.unique(sends[:, way], return_inverse=True)
    width = int(sends[:, 1 - way].max(initial=0)) + 1
    pairs = np.stack(
        np.divmod(distinct(place.reshape(-1) * width + sends[:, 1 - way]), width), axis=1
    )
    degree = np.bincount(pairs[:, 0], minlength=len(devices))
    groups = np.full((len(devices), int(degree.max(initial=0))), -1, dtype=np.int64)
    groups[pairs[:, 0], np.arange(len(pairs)) - np.repeat(np.cumsum(degree) - degree, degree)] = (
        pairs[:, 1]
    )
    return Grouping.by(devices, groups, np.arange(len(devices)).reshape(-1, 1))


@lru_cache(maxsize=8192)
def sum_trait(
    sums: Sums, use: int, base: int, units: tuple[Units, ...], parties: tuple[int, ...] = ()
) -> Trait:
    """What the devices that are counted at a parameter's use sum of it, and with whom; `base` only
    says how they lie.

    Args:
        parties: number of the party of each use; empty: all are one.
    """
    near = sums.holders(use)
    among = [near] if near is not None else []
    for party in sorted(set(parties)):
        own = frozenset(
            d
            for one, number in zip(sums.uses, parties, strict=True)
            if number == party
            for d in one.devices
        )
        among.append(own if near is None else own & near)
    lying = np.append(_groups_lie(Same(sums.groups), tuple(among), base, units), -1)
    counted = None if len(sums.uses) == 1 else np.isin(sums.devices, list(sums.counted(use)))
    of, elements = (
        column if counted is None else column[counted] for column in (sums.of, sums.elements)
    )
    full = bool(sums.groups.min(initial=0) >= 0 and of.min(initial=0) >= 0)
    columns = [*elements.T, *(lying[of].T if lying[:-1].any() or not full else ())]
    return _trait(partial(_met_by_sums, sums, counted), len(of), columns, full=full)


def _met_by_sums(sums: Sums, counted: BoolArray | None) -> Grouping:
    """Some of the devices that sum, and the members of the sums of each."""
    devices, of = (
        column if counted is None else column[counted] for column in (sums.devices, sums.of)
    )
    return _grouping(
        devices.tobytes(), sums.groups.tobytes(), of.tobytes(), sums.groups.shape[1], of.shape[1]
    )


@lru_cache(maxsize=4096)
def _groups_lie(
    groups: Same[IntArray], among: tuple[frozenset[int], ...], base: int, units: tuple[Units, ...]
) -> IntArray:
    """How groups lie on the tiers, and those of their members that are among others, equal numbers
    for equal ones.
    """
    every = groups.value
    ways = (every, *(np.where(np.isin(every, list(some)), every, -1) for some in among))
    return _alike([_spread(way, base, unit) for way in ways for unit in units])


def _spread(groups: IntArray, base: int, unit: Units) -> IntArray:
    """(groups, members) of each member, how many are in its unit; sorted, so that groups which lie
    alike have equal rows.
    """
    if not groups.size:
        return groups
    place = np.sort(np.where(groups < 0, -1, unit.of(groups + base)), axis=1)
    if place.min() == place.max():
        return np.zeros_like(place)
    first = np.ones(place.shape, dtype=np.bool_)
    first[:, 1:] = place[:, 1:] != place[:, :-1]
    run = np.cumsum(first.reshape(-1)) - 1
    counts = np.where(place < 0, -1, np.bincount(run)[run].reshape(place.shape))
    counts.sort(axis=1)
    return counts


def _alike(tables: Sequence[IntArray]) -> IntArray:
    """Equal rows of the tables side by side as equal numbers."""
    rows = np.concatenate(tables, axis=1)
    if not rows.size or (rows == rows[0]).all():
        return np.zeros(len(rows), dtype=np.int64)
    return numbered_rows(rows)


@lru_cache(maxsize=4096)
def _grouping(devices: bytes, groups: bytes, of: bytes, members: int, each: int) -> Grouping:
    """Devices and the groups of each: one object for equal ones."""
    arrays = (np.frombuffer(one, dtype=np.int64) for one in (devices, groups, of))
    return Grouping.by(
        next(arrays), next(arrays).reshape(-1, members), next(arrays).reshape(-1, each)
    )
