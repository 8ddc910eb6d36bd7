"""Traits that tell devices of a stage apart: holdings, network placement, gradient sums.

Their holdings, how far their groups and messages reach, the gradients that they sum and with which
devices.

A trait is found once for stages that differ by whole units of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import combinations
from math import lcm

import numpy as np

from shardwright.arrays import BoolArray, IntArray, distinct, is_increasing, numbered_rows
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import (
    CellRow,
    StageCells,
    devices_of,
    regular_levels,
    row_of,
)
from shardwright.program.layout.device_parts_of_dims import intervals
from shardwright.program.layout.group_devices_by_parts_of_dims import (
    PARTS,
    group_and_first_members,
    projection,
    stride_numbers,
    tokens,
)
from shardwright.program.layout.tensor_layout import Interval
from shardwright.program.stages.find_gradient_sum_groups import Sums, numbered_values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouping:
    """Devices and the groups that each device belongs to; equal only to itself.

    Counted from a base.

    Args:
        devices: (n,).
        groups: (groups, members), filled up with -1.
        of: (n, groups of a device), rows of `groups`, filled up with -1.
        full: nothing had to be filled up.
    """

    devices: IntArray
    groups: IntArray
    of: IntArray
    full: bool

    @staticmethod
    def by(devices: IntArray, groups: IntArray, of: IntArray) -> Grouping:
        """The Grouping of these arrays, with `full` computed."""
        full = bool(groups.min(initial=0) >= 0 and of.min(initial=0) >= 0)
        return Grouping(devices=devices, groups=groups, of=of, full=full)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trait:
    """A property of some devices of a stage: devices with equal marks do not differ in it.

    Args:
        meet: the devices, and the groups that they meet by it: made where something tells devices
            apart.
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
    """The trait of `count` devices that differ where one of the columns differs."""
    differing = [column for column in columns if len(column) and column.min() != column.max()]
    if not differing:
        return Trait(meet=meet, full=full, marks=_no_marks(count), plain=True)
    return Trait(
        meet=meet, full=full, marks=numbered_rows(np.stack(differing, axis=1)), plain=False
    )


@lru_cache(maxsize=8)
def _no_marks(count: int) -> IntArray:
    """Marks of devices that do not differ: zeros."""
    marks = np.zeros(count, dtype=np.int64)
    marks.setflags(write=False)
    return marks


@lru_cache(maxsize=4096)
def _without_groups(row: DeviceList) -> Grouping:
    """A Grouping of devices that belong to no group."""
    devices = row.array
    return Grouping.by(
        devices, np.zeros((0, 0), dtype=np.int64), np.zeros((len(devices), 0), dtype=np.int64)
    )


def _by_device(cells: StageCells, devices: IntArray, column: IntArray) -> IntArray:
    """A column of some devices of the cells as a column of all devices; -1 for the others."""
    if len(column) == cells.devices.size and column.min() == column.max():
        return column
    full_column = np.full(cells.devices.size, -1, dtype=np.int64)
    full_column[np.searchsorted(cells.devices.array, devices)] = column
    return full_column


@lru_cache(maxsize=4096)
def held_trait(cells: StageCells, block: Block, lengths: tuple[int, ...]) -> Trait:
    """Trait of the samples, positions and elements that devices hold.

    Positions of each slice, elements of every extent, by operator, and of the block's input.
    """
    columns, trees = list[IntArray](), dict[int, tuple[IntArray, list[IntArray]]]()
    # The input lies as the stream does, though none of the block's operators may.
    for klass in (
        k
        for k in dict.fromkeys((OperatorClass.STREAM, *(o.klass for o in block.operators)))
        if cells.cells.get(k)
    ):
        parts = projection(cells, klass, PARTS)
        elements, on_all_devices = (
            _holding_numbers(parts.cells, block, klass),
            parts.row.size == cells.devices.size,
        )
        if not on_all_devices or elements.min() != elements.max():
            columns.append(_by_device(cells, parts.devices, elements[parts.number]))
        of_lengths = [tokens(cells, klass, length) for length in lengths]
        if not on_all_devices or not all(token_parts.even for token_parts in of_lengths):
            trees[id(cells.cells[klass])] = (
                parts.devices,
                [token_parts.counts for token_parts in of_lengths],
            )
    columns += [
        _by_device(cells, devices, column)
        for devices, counts in trees.values()
        for count_table in counts
        for column in count_table.T
    ]
    return _trait(partial(_without_groups, cells.devices), cells.devices.size, columns)


@lru_cache(maxsize=1024)
def _holding_numbers(cells: CellRow, block: Block, klass: OperatorClass) -> IntArray:
    """Number for each cell: equal for cells under which a device holds as many elements.

    Of every extent of the operators of a class.
    """
    intervals_held: dict[tuple[Interval, ...], None] = {}
    stream = klass is OperatorClass.STREAM
    for operator in (
        o for o in block.operators if o.klass is klass or (stream and INPUT in o.inputs)
    ):
        if operator.klass is not klass:
            intervals_held |= dict.fromkeys(
                intervals(cells, operator, extent) for extent in operator.reads
            )
            continue
        for extent in (
            *operator.reads,
            *operator.writes,
            *(e for p in operator.parameters for e in p.extents),
        ):
            intervals_held[intervals(cells, operator, extent)] = None
    sizes = [[high - low for low, high in ends] for ends in intervals_held]
    return numbered_values(list(zip(*sizes, strict=True)) or [()] * len(cells))


@lru_cache(maxsize=4096)
def reach_trait(cells: StageCells, first_device: int, units: tuple[Units, ...]) -> Trait:
    """Trait of how each device's groups lie on network tiers, stage from `first_device` on.

    For each tree and set of dims, the devices that differ only in those dims.
    """
    columns = []
    for klass in {id(tree): klass for klass, tree in cells.cells.items()}.values():
        if len(cells.cells[klass]) == cells.devices.size and _lie_alike(
            cells, klass, first_device, units
        ):
            continue
        devices = devices_of(cells.cells[klass])
        for numbers in _groups_by_dims(cells, klass):
            in_group = numbers >= 0
            lying = _placement_numbers(devices[in_group], numbers[in_group], first_device, units)
            columns.append(_by_device(cells, devices[in_group], lying[numbers[in_group]]))
    return _trait(partial(_without_groups, cells.devices), cells.devices.size, columns)


def _lie_alike(
    cells: StageCells, klass: OperatorClass, first_device: int, units: tuple[Units, ...]
) -> bool:
    """True if all groups along any set of dims lie alike on the network; False for unequal parts.

    In a tree of equal parts: groups of devices that differ only in these dims.

    Groups of one set are one pattern from different first devices. How a group lies depends on
    where in the units it begins, which repeats: no more groups are compared than there are such
    places.
    """
    levels = regular_levels(cells.splits.get(klass))
    if levels is None or any(len(unit.first) > 1 for unit in units):
        return False
    row = row_of(cells.cells[klass])
    repeats = lcm(*(unit.size[0] for unit in units if unit.size[0] <= first_device + row[-1]))
    dims = tuple(dict.fromkeys(split.dim for split in levels))
    for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
        inside, outside = group_and_first_members(levels, chosen)
        first_devices = outside.array + row.first
        starts = first_devices[
            np.unique((first_devices + first_device) % repeats, return_index=True)[1]
        ]
        if (
            len(starts) > 1
            and _row_numbers(
                [
                    _members_in_same_unit(np.add.outer(starts, inside.array), first_device, unit)
                    for unit in units
                ]
            ).any()
        ):
            return False
    return True


def _groups_by_dims(cells: StageCells, klass: OperatorClass) -> Iterator[IntArray]:
    """For each set of dims, each device's group number along them; -1: not cut in all of them.

    Devices of a group differ only in these dims; -1: the device's way does not cut them all.
    """
    tree, levels = cells.cells[klass], regular_levels(cells.splits.get(klass))
    if levels is not None:
        dims = tuple(dict.fromkeys(split.dim for split in levels))
        for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
            yield stride_numbers(levels, frozenset(dims) - frozenset(chosen))
        return
    numbers: dict[tuple[Dim, ...], dict[Hashable, int]] = {}
    group_numbers: dict[tuple[Dim, ...], IntArray] = {}
    for place, cell in enumerate(tree.values()):
        dims = tuple(dict.fromkeys(dim for dim, _ in cell.ways))
        for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
            numbers_of_dims = numbers.setdefault(chosen, {})
            other_ways = tuple(way for way in cell.ways if way[0] not in chosen)
            group_numbers.setdefault(chosen, np.full(len(tree), -1, dtype=np.int64))[place] = (
                numbers_of_dims.setdefault(other_ways, len(numbers_of_dims))
            )
    yield from group_numbers.values()


def _placement_numbers(
    devices: IntArray, number: IntArray, first_device: int, units: tuple[Units, ...]
) -> IntArray:
    """(groups,) number of how each group lies on the network tiers, equal for equal placements.

    Args:
        number: the group of each device.
    """
    size = np.bincount(number)
    groups = np.full((len(size), int(size.max(initial=0))), -1, dtype=np.int64)
    groups[
        np.repeat(np.arange(len(size)), size),
        np.arange(len(number)) - np.repeat(np.cumsum(size) - size, size),
    ] = devices[np.argsort(number, kind="stable")]
    return _row_numbers([_members_in_same_unit(groups, first_device, unit) for unit in units])


@lru_cache(maxsize=4096)
def message_traits(
    messages: Same[IntArray], first_device: int, units: tuple[Units, ...]
) -> tuple[Trait, Trait]:
    """Marks of senders, of receivers: equal for devices with equal elements on each tier.

    Messages are counted from a base.
    """
    sends = messages.value
    tier = np.full(len(sends), len(units) - 1)
    for index in range(len(units) - 1, -1, -1):
        first, last = (units[index].of(sends[:, way] + first_device) for way in (0, 1))
        tier[first == last] = index
    traits = []
    for way in (0, 1):
        meet = partial(_message_partners, messages, way)
        if is_increasing(sends[:, way]):
            traits.append(
                _trait(meet, len(sends), (np.where(sends[:, 2] > 0, tier, -1), sends[:, 2]))
            )
            continue
        devices, place = np.unique(sends[:, way], return_inverse=True)
        totals = np.zeros((len(devices), len(units)), dtype=np.int64)
        np.add.at(totals, (place.reshape(-1), tier), sends[:, 2])
        traits.append(_trait(meet, len(devices), list(totals.T), full=meet().full))
    return traits[0], traits[1]


@lru_cache(maxsize=4096)
def _message_partners(messages: Same[IntArray], way: int) -> Grouping:
    """The senders (0) or the receivers (1) of messages, with the partners of each."""
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
    sums: Sums, use: int, first_device: int, units: tuple[Units, ...], parties: tuple[int, ...] = ()
) -> Trait:
    """Trait of the gradients that devices sum at a parameter's use, and of their partners.

    `first_device` only decides how the groups lie.

    Args:
        parties: number of the reduction group of each use; empty: all are one.
    """
    same_operator = sums.holders(use)
    among = [same_operator] if same_operator is not None else []
    for party in sorted(set(parties)):
        devices_of_party = frozenset(
            d
            for use_there, number in zip(sums.uses, parties, strict=True)
            if number == party
            for d in use_there.devices
        )
        among.append(
            devices_of_party if same_operator is None else devices_of_party & same_operator
        )
    lying = np.append(
        _placement_of_groups(Same(sums.groups), tuple(among), first_device, units), -1
    )
    counted = None if len(sums.uses) == 1 else np.isin(sums.devices, list(sums.counted(use)))
    group_rows, elements = (
        column if counted is None else column[counted] for column in (sums.of, sums.elements)
    )
    full = bool(sums.groups.min(initial=0) >= 0 and group_rows.min(initial=0) >= 0)
    columns = [*elements.T, *(lying[group_rows].T if lying[:-1].any() or not full else ())]
    return _trait(partial(_sum_partners, sums, counted), len(group_rows), columns, full=full)


def _sum_partners(sums: Sums, counted: BoolArray | None) -> Grouping:
    """Devices that sum gradients, those that are `counted`, with the members of their groups."""
    devices, of = (
        column if counted is None else column[counted] for column in (sums.devices, sums.of)
    )
    return _grouping(
        devices.tobytes(), sums.groups.tobytes(), of.tobytes(), sums.groups.shape[1], of.shape[1]
    )


@lru_cache(maxsize=4096)
def _placement_of_groups(
    groups: Same[IntArray],
    among: tuple[frozenset[int], ...],
    first_device: int,
    units: tuple[Units, ...],
) -> IntArray:
    """(groups,) number of how groups and their members in each set lie on the tiers.

    Sets of `among`; equal numbers for equal placements.
    """
    all_groups = groups.value
    ways = (
        all_groups,
        *(np.where(np.isin(all_groups, list(member_set)), all_groups, -1) for member_set in among),
    )
    return _row_numbers(
        [_members_in_same_unit(way, first_device, unit) for way in ways for unit in units]
    )


def _members_in_same_unit(groups: IntArray, first_device: int, unit: Units) -> IntArray:
    """(groups, members) number of members in each member's unit, sorted.

    Sorted, so that groups which lie the same way have equal rows.
    """
    if not groups.size:
        return groups
    place = np.sort(np.where(groups < 0, -1, unit.of(groups + first_device)), axis=1)
    if place.min() == place.max():
        return np.zeros_like(place)
    starts_unit = np.ones(place.shape, dtype=np.bool_)
    starts_unit[:, 1:] = place[:, 1:] != place[:, :-1]
    run = np.cumsum(starts_unit.reshape(-1)) - 1
    counts = np.where(place < 0, -1, np.bincount(run)[run].reshape(place.shape))
    counts.sort(axis=1)
    return counts


def _row_numbers(tables: Sequence[IntArray]) -> IntArray:
    """Numbers of the rows of the tables side by side, equal for equal rows."""
    rows = np.concatenate(tables, axis=1)
    if not rows.size or (rows == rows[0]).all():
        return np.zeros(len(rows), dtype=np.int64)
    return numbered_rows(rows)


@lru_cache(maxsize=4096)
def _grouping(
    devices: bytes, groups: bytes, group_rows: bytes, members: int, each: int
) -> Grouping:
    """The Grouping of arrays given as bytes: one object for equal ones."""
    arrays = (np.frombuffer(buffer, dtype=np.int64) for buffer in (devices, groups, group_rows))
    return Grouping.by(
        next(arrays), next(arrays).reshape(-1, members), next(arrays).reshape(-1, each)
    )
