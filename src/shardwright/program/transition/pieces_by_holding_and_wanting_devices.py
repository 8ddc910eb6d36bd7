"""Pieces of two layouts: elements that the same devices hold and the same devices want.

Independent sets of devices become components; equal ones look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from shardwright.errors import StrategyError
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Box, Layout, count, ticks

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPiece:
    """Elements that the same devices hold and the same devices want.

    As the range [low, high) of the component's elements.

    Attributes:
        full: devices that hold the values, in order.
        parts: where no device does, the holders of each part of the sum.
        wanted: devices that want the elements, in order.
    """

    low: int
    high: int
    full: Group
    parts: tuple[Group, ...]
    wanted: Group

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.high - self.low

    @property
    def lacking(self) -> Group:
        """Devices that want the piece and do not hold it."""
        held = set(self.full)
        return tuple(device for device in self.wanted if device not in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Pieces whose devices exchange nothing with other devices; devices are numbered from 0.

    Attributes:
        keeps: devices that hold some of the elements that they want before anything moves.
        islands: island of each device, numbered by first appearance.
        sides: devices of the source and of the wanted layout between two stages; None inside one
            stage.
        collectives: copies may be made by collectives.
    """

    pieces: tuple[LayoutPiece, ...]
    islands: tuple[int, ...]
    keeps: frozenset[int] = frozenset()
    sides: tuple[frozenset[int], frozenset[int]] | None = None
    collectives: bool = True

    def island(self, device: int) -> int:
        """Island number of a device."""
        return self.islands[device]

    def may_gather(self, devices: Group) -> bool:
        """True if no stage border divides the devices, so that they may run one collective."""
        return self.sides is None or any(side.issuperset(devices) for side in self.sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPiece:
    """A component with its real devices and boxes.

    Boxes of each piece in the order of its elements.
    """

    component: Component
    devices: Group
    boxes: tuple[tuple[Box, ...], ...]


@dataclass(frozen=True, slots=True)
class _Atom:
    """Elements that the same devices hold and want, with their boxes, before numbering."""

    size: int
    full: Group
    parts: tuple[Group, ...]
    wanted: Group
    boxes: tuple[Box, ...]


def _holders(entries: list[tuple[int, object]], *, where: Box) -> tuple[Group, tuple[Group, ...]]:
    """(devices with full values, devices of each part of a sum) of one place.

    Parts only where no device has full values.
    """
    if full := {device for device, part in entries if part is None}:
        return tuple(sorted(full)), ()
    parts_of_device: dict[int, set[object]] = {}
    for device, part in entries:
        parts_of_device.setdefault(device, set()).add(part)
    classes: dict[frozenset[object], list[int]] = {}
    for device in sorted(parts_of_device):
        classes.setdefault(frozenset(parts_of_device[device]), []).append(device)
    if not classes:
        raise StrategyError(
            f"no device holds {where}",
            hint="the source layout must cover the wanted one",
            rule="layout.coverage",
        )
    if len(frozenset().union(*classes)) != sum(map(len, classes)):
        raise StrategyError(
            f"parts of a sum overlap at {where}",
            hint="parts are equal or disjoint",
            rule="layout.overlap",
        )
    if len(classes) == 1:
        return tuple(next(iter(classes.values()))), ()
    return (), tuple(tuple(devices) for devices in classes.values())


def _atoms_of_layouts(source: Layout, wanted: Layout) -> Iterator[_Atom]:
    """Atoms of two layouts, merged by equal holders, in the order of the wanted layout."""
    sources: dict[Box, list[tuple[int, object]]] = {}
    targets: dict[Box, list[int]] = {}
    for holding in sorted(source, key=lambda holding: holding.device):
        sources.setdefault(holding.box, []).append((holding.device, holding.part))
    for holding in sorted(wanted, key=lambda holding: holding.device):
        assert holding.part is None, "what is wanted is full"
        targets.setdefault(holding.box, []).append(holding.device)
    cuts = [ticks(lists) for lists in zip(*sources, *targets, strict=True)]
    atoms: dict[tuple[int, ...], tuple[list[Box], list[Box]]] = {}
    for box in targets:
        for atom in product(
            *[cut.inside[index_list] for cut, index_list in zip(cuts, box, strict=True)]
        ):
            atoms.setdefault(atom, ([], []))[1].append(box)
    for box in sources:
        for atom in product(
            *[cut.inside[index_list] for cut, index_list in zip(cuts, box, strict=True)]
        ):
            if atom in atoms:
                atoms[atom][0].append(box)
    number = {
        box: i for i, box in enumerate((*sources, *(box for box in targets if box not in sources)))
    }
    atoms_by_holders: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, ...]]] = {}
    for atom, (makers, readers) in atoms.items():
        atoms_by_holders.setdefault(
            (tuple([number[box] for box in makers]), tuple([number[box] for box in readers])), []
        ).append(atom)
    lengths = [[count(indices) for indices in cut.indices] for cut in cuts]
    holders_of: dict[tuple[int, ...], tuple[Group, tuple[Group, ...]]] = {}
    wants: dict[tuple[int, ...], Group] = {}
    for (have_key, want_key), places in atoms_by_holders.items():
        makers, readers = atoms[places[0]]
        boxes = tuple(
            tuple(cut.indices[tick] for cut, tick in zip(cuts, atom, strict=True))
            for atom in places
        )
        if have_key not in holders_of:
            holders_of[have_key] = _holders(
                [entry for box in makers for entry in sources[box]], where=boxes[0]
            )
        if want_key not in wants:
            wants[want_key] = tuple(sorted({device for box in readers for device in targets[box]}))
        size = sum(
            prod(length[tick] for length, tick in zip(lengths, atom, strict=True))
            for atom in places
        )
        yield _Atom(size, *holders_of[have_key], wants[want_key], boxes)


class _Sets:
    """Disjoint sets of devices (union-find)."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        self.seen: set[Group] = set()

    def root(self, device: int) -> int:
        """The device that represents the set of a device (union-find)."""
        parent = self.parent.setdefault(device, device)
        while parent != self.parent[parent]:
            parent = self.parent[parent]
        self.parent[device] = parent
        return parent

    def join(self, devices: Group) -> None:
        """Merge the sets of the given devices."""
        if devices in self.seen:
            return
        self.seen.add(devices)
        first_root = self.root(devices[0])
        for device in devices[1:]:
            self.parent[self.root(device)] = first_root


def connected(groups: list[Group]) -> dict[int, int]:
    """For each device, a representative of all devices connected with it through groups."""
    sets = _Sets()
    for group in groups:
        sets.join(group)
    return {device: sets.root(device) for device in sorted(sets.parent)}


def components(
    source: Layout,
    wanted: Layout,
    *,
    across: bool = False,
    collectives: bool = True,
    islands: Units | None = None,
) -> tuple[PlacedPiece, ...]:
    """Pieces that must move, by sets of devices that exchange only inside; () if nothing moves.

    Empty if every device holds the elements that it wants.
    """
    if not wanted:
        return ()
    missing = []
    keeping: set[int] = set()
    for atom in _atoms_of_layouts(source, wanted):
        already_there = set(atom.full).intersection(atom.wanted)
        keeping |= already_there
        if len(already_there) < len(atom.wanted):
            missing.append(atom)
    connected_groups = [
        group for atom in missing for group in (atom.full, *atom.parts, atom.wanted) if group
    ]
    connected_groups += [
        (atom.wanted[0], *(group[0] for group in (atom.full, *atom.parts) if group))
        for atom in missing
    ]
    root_of = connected(connected_groups)
    by_root: dict[int, list[_Atom]] = {}
    members: dict[int, list[int]] = {}
    for atom in missing:
        by_root.setdefault(root_of[atom.wanted[0]], []).append(atom)
    for device, root in root_of.items():
        members.setdefault(root, []).append(device)
    from_side = {holding.device for holding in source}
    to_side = {holding.device for holding in wanted}
    placed = []
    for root, atoms_there in by_root.items():
        devices = tuple(members[root])
        local = {device: i for i, device in enumerate(devices)}
        places: dict[int, int] = {}
        island_numbers = (
            islands.of(np.array(devices)).tolist() if islands is not None else [0] * len(devices)
        )
        component = Component(
            pieces=tuple(_pieces(atoms_there, local)),
            islands=tuple(places.setdefault(place, len(places)) for place in island_numbers),
            keeps=_local_side(keeping, local),
            sides=(_local_side(from_side, local), _local_side(to_side, local)) if across else None,
            collectives=collectives,
        )
        placed.append(
            PlacedPiece(
                component=component,
                devices=devices,
                boxes=tuple(atom.boxes for atom in atoms_there),
            )
        )
    return tuple(placed)


def _local_side(devices: set[int], local: dict[int, int]) -> frozenset[int]:
    """Local numbers of the devices of `devices` that a component has."""
    return frozenset(i for device, i in local.items() if device in devices)


def _pieces(atoms_there: list[_Atom], local: dict[int, int]) -> Iterator[LayoutPiece]:
    """Pieces of a component, with local device numbers and consecutive element ranges."""
    renamed: dict[Group, Group] = {}

    def rename(group: Group) -> Group:
        """Group of local device numbers for a group of devices (cached)."""
        if group not in renamed:
            renamed[group] = tuple(local[device] for device in group)
        return renamed[group]

    low = 0
    for atom in atoms_there:
        parts = tuple(map(rename, atom.parts))
        yield LayoutPiece(
            low=low,
            high=low + atom.size,
            full=rename(atom.full),
            parts=parts,
            wanted=rename(atom.wanted),
        )
        low += atom.size
