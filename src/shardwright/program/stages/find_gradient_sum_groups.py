"""Devices that sum the gradient of one parameter, as arrays of groups.

As arrays where parts are equal or disjoint, else from each device's share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from operator import le, lt

import numpy as np

from shardwright.arrays import IntArray, distinct, distinct_rows
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.group_devices_by_parts_of_dims import (
    DevicesByPart,
    DeviceTokens,
)
from shardwright.program.layout.groups_of_one_device_per_class import (
    transversals,
    transversals_in_order,
)
from shardwright.program.layout.tensor_layout import Indices, volume
from shardwright.program.stages.device_shares_of_parameter_use import (
    ParameterUse,
    device_shares,
    shares_by_part,
)
from shardwright.program.stages.gradient_sum_groups import parameter_atoms, sum_groups


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Groups of devices that sum a parameter's gradient; equal only to itself.

    Devices are counted from a base; rows are filled up with -1.

    Args:
        uses: uses of the parameter.
        devices: (n,) devices that sum, sorted.
        groups: (groups, members), each sorted; a duplicate that is sent the sum counts as a member
            of its sender's group.
        of: (n, k) groups of each device.
        elements: (n, k) elements that the device sums in them.
    """

    uses: tuple[ParameterUse, ...]
    devices: IntArray
    groups: IntArray
    of: IntArray
    elements: IntArray

    def holders(self, use: int) -> frozenset[int] | None:
        """Devices that run use number `use`'s operator in any stage; None if all uses have one.

        None if all uses are of one operator.

        An operator that reads another block's weight under its own name (a further embedding of a
        prediction module) is another operator.
        """
        return _holders(self, use)

    def counted(self, use: int) -> frozenset[int]:
        """Devices whose part counts at use number `use`: those of no use before it."""
        return _counted(self, use)

    def of_device(self, use: int, device: int) -> tuple[tuple[int, int], ...]:
        """(row of `groups`, elements) of each gradient sum of a device at a use; () if not counted.

        Empty where the device is not counted at the use.
        """
        place = int(np.searchsorted(self.devices, device))
        if (
            place == len(self.devices)
            or self.devices[place] != device
            or (len(self.uses) > 1 and device not in self.counted(use))
        ):
            return ()
        return tuple(
            [
                (row, n)
                for row, n in zip(
                    self.of[place].tolist(), self.elements[place].tolist(), strict=True
                )
                if row >= 0
            ]
        )


@lru_cache(maxsize=4096)
def _holders(sums: Sums, use: int) -> frozenset[int] | None:
    """Devices that run the operator of a use in any stage; None if all uses are of one operator."""
    names = [(use_there.operator.name, use_there.parameter.tied_to) for use_there in sums.uses]
    if len(set(names)) == 1:
        return None
    return frozenset(
        d
        for name, use_there in zip(names, sums.uses, strict=True)
        if name == names[use]
        for d in use_there.devices
    )


@lru_cache(maxsize=4096)
def _counted(sums: Sums, use: int) -> frozenset[int]:
    """Devices of a use that no use before it has."""
    return frozenset(sums.uses[use].devices).difference(
        d for use_before in sums.uses[:use] for d in use_before.devices
    )


@lru_cache(maxsize=4096)
def sums_of(uses: tuple[ParameterUse, ...], length: int, islands: Units | None) -> Sums:
    """The groups of devices that sum the gradient of the parameter of these uses.

    Args:
        length: positions of the sequence.
        islands: islands of the devices, counted as the uses are.

    Raises:
        StrategyError: contributions overlap without being equal (rule ``grad.overlap``).
    """
    return (
        _sums_of_equal_parts(uses, length, islands)
        or _sums_by_tokens(uses, length, islands)
        or _sums_by_device(uses, length, islands)
    )


def _sums_of_equal_parts(
    uses: tuple[ParameterUse, ...], length: int, islands: Units | None
) -> Sums | None:
    """Reduction groups as arrays where parts are equal or disjoint; None elsewhere.

    `sum_groups`, where every device holds one part, and as many devices hold each. None too where
    duplicates of a contribution do not lie the same way in the islands.
    """
    shares_of_uses = [shares_by_part(use, length) for use in uses]
    needs = dict.fromkeys(need for use_shares in shares_of_uses for need in use_shares.needs)
    cuts = [
        *zip(*needs, strict=True),
        *(
            lists
            for use_shares in shares_of_uses
            for lists in (*use_shares.tokens.parts, *zip(*use_shares.parts, strict=True))
        ),
    ]
    names = {(use.turn, use.operator.name) for use in uses}
    if (
        len(names) < len(uses)
        or not all(use_shares.parts for use_shares in shares_of_uses)
        or not all(map(_equal_or_disjoint, cuts))
    ):
        return None
    number = {need: i for i, need in enumerate(needs)}
    groups_found = _equal_groups(
        tuple(
            (
                use_shares.tokens,
                use_shares.rest,
                use.offset,
                tuple(number[n] for n in use_shares.needs),
                tuple(numbered_values(use_shares.parts).tolist()),
            )
            for use_shares, use in zip(shares_of_uses, uses, strict=True)
        ),
        islands,
    )
    if groups_found is None:
        return None
    devices, need, groups, of = groups_found
    volumes = np.array([volume(need) for need in needs], dtype=np.int64)
    all_equal = volumes.min() == volumes.max()
    elements = (
        np.broadcast_to(volumes[0], (len(devices), 1)) if all_equal else volumes[need][:, None]
    )
    return Sums(uses=uses, devices=devices, groups=groups, of=of, elements=elements)


@lru_cache(maxsize=4096)
def _equal_groups(
    uses: tuple[tuple[DeviceTokens, DevicesByPart, int, tuple[int, ...], tuple[int, ...]], ...],
    islands: Units | None,
) -> tuple[IntArray, IntArray, IntArray, IntArray] | None:
    """Devices, their parts, groups and each device's group for equally cut parameters, or None.

    (devices, part of the parameter of each, groups, group of each).

    Args:
        uses: devices by tokens and by all other dims, their offset, and for each index of the other
            dims the numbers of its need and of its part.
    """
    devices = distinct(
        np.concatenate([tokens.devices + offset for tokens, _, offset, _, _ in uses])
    )
    need, code = np.full(len(devices), -1, dtype=np.int64), np.zeros(len(devices), dtype=np.int64)
    works = []
    for token_parts, other_parts, offset, needs, parts in uses:
        places = np.searchsorted(devices, token_parts.devices + offset)
        needs_of_devices = np.array(needs, dtype=np.int64)[other_parts.number]
        if ((need[places] >= 0) & (need[places] != needs_of_devices)).any():
            return None
        need[places] = needs_of_devices
        work = np.zeros(len(devices), dtype=np.int64)
        samples, positions = token_parts.number
        work[places] = (
            1
            + (samples * len(token_parts.parts[1]) + positions) * len(parts)
            + np.array(parts, dtype=np.int64)[other_parts.number]
        )
        works.append(work)
        code = np.unique(code * (int(work.max()) + 1) + work, return_inverse=True)[1].reshape(-1)
    for work in works if len(works) > 1 else ():
        works_here = work > 0
        pairs = np.stack([need[works_here], work[works_here], code[works_here]], axis=1)
        if len(distinct_rows(pairs)) > len(distinct_rows(pairs[:, :2])):
            return None
    key = need * (int(code.max()) + 1) + code
    kinds, times = np.unique(key, return_counts=True)
    classes = np.bincount(kinds // (int(code.max()) + 1))
    if (times != times[0]).any() or (classes != classes[0]).any():
        return None
    table = devices[np.argsort(key, kind="stable")].reshape(
        len(classes), int(classes[0]), int(times[0])
    )
    groups = transversals_in_order(table, islands)
    if groups is None:
        return None
    of = np.zeros((len(devices), 1), dtype=np.int64)
    of[np.searchsorted(devices, groups), 0] = np.arange(len(groups))[:, None]
    for array in (devices, need, groups, of):
        array.setflags(write=False)
    return devices, need, groups, of


def _sums_by_tokens(
    uses: tuple[ParameterUse, ...], length: int, islands: Units | None
) -> Sums | None:
    """Reduction groups as arrays where contributions have equal or disjoint tokens, or None.

    `sum_groups`, where every device holds one part, parts may overlap, and contributions to an
    element are equal or of other tokens. None too where contributions have unequal numbers of
    duplicates.
    """
    shares_of_uses = [shares_by_part(use, length) for use in uses]
    names = {(use.turn, use.operator.name) for use in uses}
    if len(names) < len(uses) or not all(
        _equal_or_disjoint(lists)
        for use_shares in shares_of_uses
        for lists in use_shares.tokens.parts
    ):
        return None
    needs = {
        need: number
        for number, need in enumerate(
            dict.fromkeys(need for use_shares in shares_of_uses for need in use_shares.needs)
        )
    }
    columns, works, parts = list[IntArray](), 0, 0
    for use, use_shares in zip(uses, shares_of_uses, strict=True):
        samples, positions = use_shares.tokens.number
        need_numbers = np.array([needs[need] for need in use_shares.needs], dtype=np.int64)
        work = works + samples * len(use_shares.tokens.parts[1]) + positions
        columns.append(
            np.stack(
                [
                    use_shares.tokens.devices + use.offset,
                    need_numbers[use_shares.rest.number],
                    work,
                    parts + numbered_values(use_shares.parts)[use_shares.rest.number],
                ]
            )
        )
        works, parts = (
            works + len(use_shares.tokens.parts[0]) * len(use_shares.tokens.parts[1]),
            parts + len(use_shares.parts),
        )
    devices, need, work, part = np.concatenate(columns, axis=1)[
        :, np.argsort(np.concatenate([column[0] for column in columns]), kind="stable")
    ]
    if (devices[1:] == devices[:-1]).any():
        return None
    number: dict[tuple[int, ...], int] = {}
    elements: dict[bytes, int] = {}
    of = list[IntArray]()
    for boxes, covering in parameter_atoms(needs):
        covered = np.zeros(len(needs), dtype=np.bool_)
        covered[[needs[need] for need in covering]] = True
        holders = np.flatnonzero(covered[need])
        groups = _disjoint_work_groups(devices[holders], work[holders], part[holders], islands)
        if groups is None:
            return None
        key = groups.tobytes()
        if key not in elements:
            rows = [number.setdefault(tuple(group), len(number)) for group in groups.tolist()]
            of.append(np.full(len(devices), -1, dtype=np.int64))
            of[-1][np.searchsorted(devices, groups)] = np.array(rows, dtype=np.int64)[:, None]
        elements[key] = elements.get(key, 0) + sum(map(volume, boxes))
    return _sums_in_rows(
        uses, devices, np.stack(of, axis=1), list(elements.values()), padded_rows(list(number))
    )


def _disjoint_work_groups(
    devices: IntArray, work: IntArray, part: IntArray, islands: Units | None
) -> IntArray | None:
    """(groups, members) that sum an element, of devices with equal or disjoint work; else None.

    None where parts of equal work differ, or unequal numbers of devices do each.

    Args:
        devices: devices that hold the element, sorted.
        work: tokens of each device, by number.
        part: parts of all other dims, by number.
    """
    _, first_device, place, times = np.unique(
        work, return_index=True, return_inverse=True, return_counts=True
    )
    if (times != times[0]).any() or (part != part[first_device][place]).any():
        return None
    if times[0] == 1:
        return devices[None]
    classes = devices[np.argsort(place, kind="stable")].reshape(1, len(times), int(times[0]))
    groups = transversals_in_order(classes, islands)
    if groups is None:
        assert islands is not None
        groups = np.array(
            transversals(sorted(map(tuple, classes[0].tolist())), island=islands.at), dtype=np.int64
        )
    return groups[np.argsort(groups[:, 0])]


def _sums_in_rows(
    uses: tuple[ParameterUse, ...],
    devices: IntArray,
    of: IntArray,
    elements: list[int],
    groups: IntArray,
) -> Sums:
    """`Sums` of the devices that have a group, each device's groups at the front of its row.

    Args:
        of: (devices, kinds of elements) group of each device, -1 = it holds none of them.
        elements: (kinds,) elements of each kind.
    """
    order = np.argsort(of < 0, axis=1, kind="stable")
    groups_each, sums = (of >= 0).sum(axis=1), np.take_along_axis(of, order, axis=1)
    has_group, width = groups_each > 0, int(groups_each.max(initial=0))
    counts = np.where(sums < 0, -1, np.array(elements, dtype=np.int64)[order])
    return Sums(
        uses=uses,
        devices=devices[has_group],
        groups=groups,
        of=sums[has_group, :width],
        elements=counts[has_group, :width],
    )


def _sums_by_device(uses: tuple[ParameterUse, ...], length: int, islands: Units | None) -> Sums:
    """Reduction groups of arbitrary shares, found device by device."""
    all_shares = tuple(
        share for use in uses for share in device_shares(use, (use.turn, use.operator.name), length)
    )
    number: dict[tuple[int, ...], int] = {}
    groups_of_device: dict[int, list[tuple[int, int]]] = {}
    for sum_group in sum_groups(all_shares, islands=islands):
        group_of = {device: group for group in sum_group.groups for device in group}
        for sender, *duplicates in sum_group.copies:
            senders_group = group_of.get(sender, (sender,))
            group_of |= {d: tuple(sorted({*senders_group, d})) for d in duplicates}
        for device, group in group_of.items():
            groups_of_device.setdefault(device, []).append(
                (number.setdefault(group, len(number)), sum_group.elements)
            )
    devices = sorted(groups_of_device)
    return Sums(
        uses=uses,
        devices=np.array(devices, dtype=np.int64),
        groups=padded_rows(list(number)),
        of=padded_rows([[row for row, _ in groups_of_device[d]] for d in devices]),
        elements=padded_rows([[elements for _, elements in groups_of_device[d]] for d in devices]),
    )


@lru_cache(maxsize=4096)
def _equal_or_disjoint(lists: tuple[Indices, ...]) -> bool:
    """True if any two index lists are equal or disjoint, and none is empty."""
    ends = sorted([interval for index_list in dict.fromkeys(lists) for interval in index_list])
    lows, highs = [low for low, _ in ends], [high for _, high in ends]
    return all(lists) and all(map(lt, lows, highs)) and all(map(le, highs, lows[1:]))


def numbered_values(values: Iterable[Hashable]) -> IntArray:
    """Number values in the order of their first occurrence: equal values get equal numbers."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def padded_rows(rows: Sequence[Sequence[int]]) -> IntArray:
    """Rows of unequal length as one array, filled up with -1."""
    lengths = {len(row) for row in rows}
    if len(lengths) == 1:
        return np.array(rows, dtype=np.int64)
    table = np.full((len(rows), max(lengths, default=0)), -1, dtype=np.int64)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return table
