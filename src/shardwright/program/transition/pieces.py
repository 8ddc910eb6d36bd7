"""Two layouts of a tensor as pieces: who has what, who wants it. Independent sets of devices become
components; equal ones look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from shardwright.errors import StrategyError
from shardwright.hardware.graph import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.layout import Box, Layout, count, ticks

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Elements that the same devices hold and the same devices want, as the range [low, high) of
    the component's elements.

    Attributes:
        full: devices that hold the values, in order. parts: where nobody does, the holders of each
            part of the sum. wanted: devices that want it, in order.
    """

    low: int
    high: int
    full: Group
    parts: tuple[Group, ...]
    wanted: Group

    @property
    def size(self) -> int:
        """Elements."""
        return self.high - self.low

    @property
    def lacking(self) -> Group:
        """Devices that want it and do not hold it."""
        held = set(self.full)
        return tuple(device for device in self.wanted if device not in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Pieces whose devices have nothing to do with other devices; devices are numbered 0, 1, ..

    Attributes:
        keeps: devices that hold some of what they want before anything moves. islands: of each
        device, numbered by first appearance. sides: devices of the source and of the wanted layout
        between two stages; None inside one stage. collectives: whether copies may be made by
        collectives.
    """

    pieces: tuple[Piece, ...]
    islands: tuple[int, ...]
    keeps: frozenset[int] = frozenset()
    sides: tuple[frozenset[int], frozenset[int]] | None = None
    collectives: bool = True

    def island(self, device: int) -> int:
        """Island of a device."""
        return self.islands[device]

    def may_gather(self, devices: Group) -> bool:
        """The devices may run one collective."""
        return self.sides is None or any(side.issuperset(devices) for side in self.sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPiece:
    """A component with the devices and boxes that it stands for; boxes of each piece in the order
    of its elements.
    """

    component: Component
    devices: Group
    boxes: tuple[tuple[Box, ...], ...]


@dataclass(frozen=True, slots=True)
class _Found:
    size: int
    full: Group
    parts: tuple[Group, ...]
    wanted: Group
    boxes: tuple[Box, ...]


def _holders(entries: list[tuple[int, object]], *, where: Box) -> tuple[Group, tuple[Group, ...]]:
    """(devices with full values, devices of each part) of one place; parts only where nobody has
    full values.
    """
    if full := {device for device, part in entries if part is None}:
        return tuple(sorted(full)), ()
    held: dict[int, set[object]] = {}
    for device, part in entries:
        held.setdefault(device, set()).add(part)
    classes: dict[frozenset[object], list[int]] = {}
    for device in sorted(held):
        classes.setdefault(frozenset(held[device]), []).append(device)
    if not classes:
        raise StrategyError(
            f"nobody holds {where}",
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


def _found(source: Layout, wanted: Layout) -> Iterator[_Found]:
    """Atoms of both layouts, those with equal holders as one, in the order of the wanted layout."""
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
        for atom in product(*[cut.inside[one] for cut, one in zip(cuts, box, strict=True)]):
            atoms.setdefault(atom, ([], []))[1].append(box)
    for box in sources:
        for atom in product(*[cut.inside[one] for cut, one in zip(cuts, box, strict=True)]):
            if atom in atoms:
                atoms[atom][0].append(box)
    number = {
        box: i for i, box in enumerate((*sources, *(box for box in targets if box not in sources)))
    }
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, ...]]] = {}
    for atom, (have, want) in atoms.items():
        alike.setdefault(
            (tuple([number[box] for box in have]), tuple([number[box] for box in want])), []
        ).append(atom)
    lengths = [[count(indices) for indices in cut.indices] for cut in cuts]
    held: dict[tuple[int, ...], tuple[Group, tuple[Group, ...]]] = {}
    wants: dict[tuple[int, ...], Group] = {}
    for (have_key, want_key), places in alike.items():
        have, want = atoms[places[0]]
        boxes = tuple(
            tuple(cut.indices[tick] for cut, tick in zip(cuts, atom, strict=True))
            for atom in places
        )
        if have_key not in held:
            held[have_key] = _holders(
                [entry for box in have for entry in sources[box]], where=boxes[0]
            )
        if want_key not in wants:
            wants[want_key] = tuple(sorted({device for box in want for device in targets[box]}))
        size = sum(
            prod(length[tick] for length, tick in zip(lengths, atom, strict=True))
            for atom in places
        )
        yield _Found(size, *held[have_key], wants[want_key], boxes)


class _Sets:
    """Disjoint sets of devices."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        self.seen: set[Group] = set()

    def root(self, device: int) -> int:
        parent = self.parent.setdefault(device, device)
        while parent != self.parent[parent]:
            parent = self.parent[parent]
        self.parent[device] = parent
        return parent

    def join(self, devices: Group) -> None:
        if devices in self.seen:
            return
        self.seen.add(devices)
        first = self.root(devices[0])
        for device in devices[1:]:
            self.parent[self.root(device)] = first


def connected(groups: list[Group]) -> dict[int, int]:
    """Device -> a device that stands for all that are connected with it through the groups."""
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
    """What has to move, by sets of devices that have nothing to do with each other; empty if every
    device has what it wants.
    """
    if not wanted:
        return ()
    missing = []
    keeping: set[int] = set()
    for found in _found(source, wanted):
        kept = set(found.full).intersection(found.wanted)
        keeping |= kept
        if len(kept) < len(found.wanted):
            missing.append(found)
    joints = [
        group for found in missing for group in (found.full, *found.parts, found.wanted) if group
    ]
    joints += [
        (found.wanted[0], *(group[0] for group in (found.full, *found.parts) if group))
        for found in missing
    ]
    stands = connected(joints)
    by_root: dict[int, list[_Found]] = {}
    members: dict[int, list[int]] = {}
    for found in missing:
        by_root.setdefault(stands[found.wanted[0]], []).append(found)
    for device, root in stands.items():
        members.setdefault(root, []).append(device)
    from_side = {holding.device for holding in source}
    to_side = {holding.device for holding in wanted}
    placed = []
    for root, founds in by_root.items():
        devices = tuple(members[root])
        local = {device: i for i, device in enumerate(devices)}
        places: dict[int, int] = {}
        lying = (
            islands.of(np.array(devices)).tolist() if islands is not None else [0] * len(devices)
        )
        component = Component(
            pieces=tuple(_pieces(founds, local)),
            islands=tuple(places.setdefault(place, len(places)) for place in lying),
            keeps=_side(keeping, local),
            sides=(_side(from_side, local), _side(to_side, local)) if across else None,
            collectives=collectives,
        )
        placed.append(
            PlacedPiece(
                component=component, devices=devices, boxes=tuple(found.boxes for found in founds)
            )
        )
    return tuple(placed)


def _side(devices: set[int], local: dict[int, int]) -> frozenset[int]:
    return frozenset(i for device, i in local.items() if device in devices)


def _pieces(founds: list[_Found], local: dict[int, int]) -> Iterator[Piece]:
    renamed: dict[Group, Group] = {}

    def rename(group: Group) -> Group:
        if group not in renamed:
            renamed[group] = tuple(local[device] for device in group)
        return renamed[group]

    low = 0
    for found in founds:
        parts = tuple(map(rename, found.parts))
        yield Piece(
            low=low,
            high=low + found.size,
            full=rename(found.full),
            parts=parts,
            wanted=rename(found.wanted),
        )
        low += found.size
