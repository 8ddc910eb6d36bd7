"""Who sums one parameter with whom: as arrays where parts are equal or apart, else from each
device's share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from operator import le, lt

import numpy as np

from shardwright.arrays import IntArray, distinct, distinct_rows
from shardwright.hardware.device_list import DeviceList
from shardwright.hardware.graph import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor import Dim, Extent, Parameter
from shardwright.program.layout.cells import (
    Cells,
    StageCells,
    dims_present,
    images,
    intervals,
    reference_runs,
    row_of,
)
from shardwright.program.layout.layout import Box, Indices, volume
from shardwright.program.layout.partners import meeting, transversals
from shardwright.program.layout.projection import PARTS, Projection, Tokens, projection, tokens
from shardwright.program.stages.contribution import Share, atoms, sum_groups


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Who sums a parameter, devices counted from a base; rows are filled up with -1. Equal only to
    itself.

    Args:
        uses: of the parameter.
        devices: (n,) that sum, sorted.
        groups: (groups, members), each sorted; a duplicate that is sent the sum counts as a member
            of its sender's.
        of: (n, k) groups of each device.
        elements: (n, k) that it sums in them.
    """

    uses: tuple[ParameterUse, ...]
    devices: IntArray
    groups: IntArray
    of: IntArray
    elements: IntArray

    def holders(self, use: int) -> frozenset[int] | None:
        """Devices that run the operator of a use in any stage; None if all uses are of one
        operator.

        An operator that reads another block's weight under its own name (a further embedding of a
        prediction module) is another one.
        """
        return _holders(self, use)

    def counted(self, use: int) -> frozenset[int]:
        """Devices whose part is counted at a use: those of no use before it."""
        return _counted(self, use)

    def of_device(self, use: int, device: int) -> tuple[tuple[int, int], ...]:
        """(row of `groups`, elements) of what a device sums; nothing where it is not counted at the
        use.
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
    names = [(one.operator.name, one.parameter.tied_to) for one in sums.uses]
    if len(set(names)) == 1:
        return None
    return frozenset(
        d
        for name, one in zip(names, sums.uses, strict=True)
        if name == names[use]
        for d in one.devices
    )


@lru_cache(maxsize=4096)
def _counted(sums: Sums, use: int) -> frozenset[int]:
    return frozenset(sums.uses[use].devices).difference(
        d for one in sums.uses[:use] for d in one.devices
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterUse:
    """A use of a parameter, its lane, run and first layer as the number `turn` among the
    parameter's uses, its stage `offset` devices after the base.

    Args:
        backward: the operator has a backward there.
    """

    turn: int
    offset: int
    cells: StageCells
    operator: Operator
    parameter: Parameter
    backward: bool

    @property
    def devices(self) -> DeviceList:
        """Devices that run the operator, counted from the base."""
        return row_of(self.cells.cells.get(self.operator.klass, {})).shifted(self.offset)


@lru_cache(maxsize=4096)
def sums_of(uses: tuple[ParameterUse, ...], length: int, islands: Units | None) -> Sums:
    """Who sums the parameter of these uses.

    Args:
        length: positions of the sequence.
        islands: that devices lie in, counted as those of the uses.

    Raises:
        StrategyError: contributions overlap without being equal (rule ``grad.overlap``).
    """
    return (
        _sums_of_equals(uses, length, islands)
        or _sums_by_tokens(uses, length, islands)
        or _sums_by_device(uses, length, islands)
    )


def _sums_of_equals(
    uses: tuple[ParameterUse, ...], length: int, islands: Units | None
) -> Sums | None:
    """The sums where parts are equal or apart, every device holds one part, and as many hold each:
    `sum_groups` as arrays.

    None: it is not so, or duplicates of a contribution do not lie alike in the islands.
    """
    looked = [_looked(use, length) for use in uses]
    needs = dict.fromkeys(need for one in looked for need in one.needs)
    cuts = [
        *zip(*needs, strict=True),
        *(lists for one in looked for lists in (*one.tokens.parts, *zip(*one.parts, strict=True))),
    ]
    names = {(use.turn, use.operator.name) for use in uses}
    if len(names) < len(uses) or not all(one.parts for one in looked) or not all(map(_apart, cuts)):
        return None
    number = {need: i for i, need in enumerate(needs)}
    found = _equal_groups(
        tuple(
            (
                one.tokens,
                one.rest,
                use.offset,
                tuple(number[n] for n in one.needs),
                tuple(numbered(one.parts).tolist()),
            )
            for one, use in zip(looked, uses, strict=True)
        ),
        islands,
    )
    if found is None:
        return None
    devices, need, groups, of = found
    volumes = np.array([volume(one) for one in needs], dtype=np.int64)
    same = volumes.min() == volumes.max()
    elements = np.broadcast_to(volumes[0], (len(devices), 1)) if same else volumes[need][:, None]
    return Sums(uses=uses, devices=devices, groups=groups, of=of, elements=elements)


@lru_cache(maxsize=4096)
def _equal_groups(
    uses: tuple[tuple[Tokens, Projection, int, tuple[int, ...], tuple[int, ...]], ...],
    islands: Units | None,
) -> tuple[IntArray, IntArray, IntArray, IntArray] | None:
    """(devices, part of the parameter of each, groups, group of each) of parameters that are cut
    alike.

    Args:
        uses: devices by tokens and by all else, their offset, and of each index of all else the
            numbers of its need and of its part.
    """
    devices = distinct(
        np.concatenate([tokens.devices + offset for tokens, _, offset, _, _ in uses])
    )
    need, code = np.full(len(devices), -1, dtype=np.int64), np.zeros(len(devices), dtype=np.int64)
    works = []
    for held, rest, offset, needs, parts in uses:
        here = np.searchsorted(devices, held.devices + offset)
        own = np.array(needs, dtype=np.int64)[rest.number]
        if ((need[here] >= 0) & (need[here] != own)).any():
            return None
        need[here] = own
        work = np.zeros(len(devices), dtype=np.int64)
        samples, positions = held.number
        work[here] = (
            1
            + (samples * len(held.parts[1]) + positions) * len(parts)
            + np.array(parts, dtype=np.int64)[rest.number]
        )
        works.append(work)
        code = np.unique(code * (int(work.max()) + 1) + work, return_inverse=True)[1].reshape(-1)
    for work in works if len(works) > 1 else ():
        there = work > 0
        pairs = np.stack([need[there], work[there], code[there]], axis=1)
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
    groups = meeting(table, islands)
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
    """The sums where every device holds one part, parts may overlap, and what devices contribute to
    an element is equal or of other tokens: `sum_groups` as arrays.

    None: it is not so, or contributions have unequal numbers of duplicates.
    """
    looked = [_looked(use, length) for use in uses]
    names = {(use.turn, use.operator.name) for use in uses}
    if len(names) < len(uses) or not all(
        _apart(lists) for one in looked for lists in one.tokens.parts
    ):
        return None
    needs = {
        need: number
        for number, need in enumerate(dict.fromkeys(need for one in looked for need in one.needs))
    }
    columns, works, parts = list[IntArray](), 0, 0
    for use, one in zip(uses, looked, strict=True):
        samples, positions = one.tokens.number
        own = np.array([needs[need] for need in one.needs], dtype=np.int64)
        work = works + samples * len(one.tokens.parts[1]) + positions
        columns.append(
            np.stack(
                [
                    one.tokens.devices + use.offset,
                    own[one.rest.number],
                    work,
                    parts + numbered(one.parts)[one.rest.number],
                ]
            )
        )
        works, parts = (
            works + len(one.tokens.parts[0]) * len(one.tokens.parts[1]),
            parts + len(one.parts),
        )
    devices, need, work, part = np.concatenate(columns, axis=1)[
        :, np.argsort(np.concatenate([column[0] for column in columns]), kind="stable")
    ]
    if (devices[1:] == devices[:-1]).any():
        return None
    number: dict[tuple[int, ...], int] = {}
    elements: dict[bytes, int] = {}
    of = list[IntArray]()
    for boxes, covering in atoms(needs):
        covered = np.zeros(len(needs), dtype=np.bool_)
        covered[[needs[one] for one in covering]] = True
        here = np.flatnonzero(covered[need])
        groups = _apart_groups(devices[here], work[here], part[here], islands)
        if groups is None:
            return None
        key = groups.tobytes()
        if key not in elements:
            rows = [number.setdefault(tuple(group), len(number)) for group in groups.tolist()]
            of.append(np.full(len(devices), -1, dtype=np.int64))
            of[-1][np.searchsorted(devices, groups)] = np.array(rows, dtype=np.int64)[:, None]
        elements[key] = elements.get(key, 0) + sum(map(volume, boxes))
    return _sums_in_rows(
        uses, devices, np.stack(of, axis=1), list(elements.values()), filled(list(number))
    )


def _apart_groups(
    devices: IntArray, work: IntArray, part: IntArray, islands: Units | None
) -> IntArray | None:
    """(groups, members) that sum an element, of devices with equal or disjoint work; None where
    parts of equal work differ, or not as many devices do each.

    Args:
        devices: that hold it, sorted.
        work: tokens of each, by number.
        part: of all else, by number.
    """
    _, first, place, times = np.unique(
        work, return_index=True, return_inverse=True, return_counts=True
    )
    if (times != times[0]).any() or (part != part[first][place]).any():
        return None
    if times[0] == 1:
        return devices[None]
    classes = devices[np.argsort(place, kind="stable")].reshape(1, len(times), int(times[0]))
    groups = meeting(classes, islands)
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
    """Args:
    of: (devices, kinds of elements) group of each device, -1 = it holds none of them. elements:
    (kinds,).
    """
    order = np.argsort(of < 0, axis=1, kind="stable")
    each, sums = (of >= 0).sum(axis=1), np.take_along_axis(of, order, axis=1)
    some, width = each > 0, int(each.max(initial=0))
    counts = np.where(sums < 0, -1, np.array(elements, dtype=np.int64)[order])
    return Sums(
        uses=uses,
        devices=devices[some],
        groups=groups,
        of=sums[some, :width],
        elements=counts[some, :width],
    )


def _sums_by_device(uses: tuple[ParameterUse, ...], length: int, islands: Units | None) -> Sums:
    """The sums of any shares."""
    every = tuple(
        share for use in uses for share in shares(use, (use.turn, use.operator.name), length)
    )
    number: dict[tuple[int, ...], int] = {}
    own: dict[int, list[tuple[int, int]]] = {}
    for found in sum_groups(every, islands=islands):
        of = {device: group for group in found.groups for device in group}
        for sender, *others in found.copies:
            whole = of.get(sender, (sender,))
            of |= {d: tuple(sorted({*whole, d})) for d in others}
        for device, group in of.items():
            own.setdefault(device, []).append(
                (number.setdefault(group, len(number)), found.elements)
            )
    devices = sorted(own)
    return Sums(
        uses=uses,
        devices=np.array(devices, dtype=np.int64),
        groups=filled(list(number)),
        of=filled([[row for row, _ in own[d]] for d in devices]),
        elements=filled([[elements for _, elements in own[d]] for d in devices]),
    )


@lru_cache(maxsize=4096)
def _apart(lists: tuple[Indices, ...]) -> bool:
    """Whether any two index lists are equal or have no index in common,
    and none of them is empty.
    """
    ends = sorted([interval for one in dict.fromkeys(lists) for interval in one])
    lows, highs = [low for low, _ in ends], [high for _, high in ends]
    return all(lists) and all(map(lt, lows, highs)) and all(map(le, highs, lows[1:]))


def numbered(values: Iterable[Hashable]) -> IntArray:
    """Equal values as equal numbers, from 0 on in the order in which they come."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def filled(rows: Sequence[Sequence[int]]) -> IntArray:
    """Rows of unequal length as an array, filled up with -1."""
    lengths = {len(row) for row in rows}
    if len(lengths) == 1:
        return np.array(rows, dtype=np.int64)
    result = np.full((len(rows), max(lengths, default=0)), -1, dtype=np.int64)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """The shares of one use: parts of the tokens and of everything else are looked at once each,
    not once a device.

    Args:
        tokens, rest: devices by them.
        needs, parts: of each part of the rest, the elements of the parameter, and its part of every
            dim that could be cut.
    """

    tokens: Tokens
    rest: Projection
    needs: tuple[Box, ...]
    parts: tuple[Box, ...]


def _looked(use: ParameterUse, length: int) -> _Looked:
    operator, stage = use.operator, use.cells
    extents = tuple(sorted(use.parameter.extents, key=lambda e: e.dim.value))
    rest = projection(stage, operator.klass, PARTS)
    return _Looked(
        tokens=tokens(stage, operator.klass, length),
        rest=rest,
        needs=_needs(rest.cells, operator, extents),
        parts=_cut_cells(rest.cells, operator),
    )


@lru_cache(maxsize=1024)
def _needs(cells: Cells, operator: Operator, extents: tuple[Extent, ...]) -> tuple[Box, ...]:
    """The elements of a parameter that a device needs under each of some cells."""
    return tuple(
        zip(*[zip(intervals(cells, operator, extent)) for extent in extents], strict=True)
    ) or ((),) * len(cells)


def shares(use: ParameterUse, name: Hashable, length: int) -> list[Share]:
    """The shares of one use."""
    looked = _looked(use, length)
    empty = [any(a >= b for ((a, b),) in need) for need in looked.needs]
    devices, numbers = (
        looked.tokens.devices.tolist(),
        (*looked.tokens.number.tolist(), looked.rest.number.tolist()),
    )
    samples, positions = looked.tokens.parts
    return [
        Share(
            device=device + use.offset,
            need=looked.needs[part],
            work=((name, (samples[b], positions[s], *looked.parts[part])),),
        )
        for device, b, s, part in zip(devices, *numbers, strict=True)
        if samples[b] and positions[s] and not empty[part]
    ]


@lru_cache(maxsize=1024)
def _cut_cells(cells: Cells, operator: Operator) -> tuple[Box, ...]:
    """The part of every dim that could be cut under each of some cells, in runs of the operator's
    finest extent.
    """
    dims = sorted(dims_present(operator) - {Dim.BATCH, Dim.SEQUENCE}, key=lambda d: d.value)
    found = [zip(images(cells, operator, dim, reference_runs(operator, dim))) for dim in dims]
    return tuple(zip(*found, strict=True)) or ((),) * len(cells)
