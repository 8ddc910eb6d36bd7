"""Devices of a stage that are lowered as one: those of one family have parts of equal size and lie
alike on the tiers of the network.

Colour refinement, as `program.fold` does for grids: a device's first colour is what it holds and
how far its groups and messages reach; then devices whose partners have different colours are told
apart until nothing changes. Colours are numbers in one array; what tells devices apart follows from
their parts and is found once for stages that differ by whole units of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import lcm

import numpy as np

from shardwright.arrays import IntArray, distinct, numbered_rows, split_by
from shardwright.hardware.device_list import DeviceList, apart
from shardwright.hardware.graph import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.program.same import Same
from shardwright.program.stages.edges import LaneEdge, Messages
from shardwright.program.stages.holdings import Summing
from shardwright.program.stages.parts import Segment, StageParts
from shardwright.program.stages.traits import (
    Grouping,
    Trait,
    held_trait,
    message_traits,
    reach_trait,
    sum_trait,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDevices:
    """What beside the stages makes devices differ.

    Args:
        lengths: positions of a segment's sequence in a lane, of each slice.
        units: of each level of the network, innermost first.
        kinds: first device after each kind of node; empty if there is one kind.
        parties: number of the party of each lane that sums gradients for itself; empty: all are
            one.
    """

    lengths: Callable[[int, Segment], tuple[int, ...]]
    units: tuple[Units, ...]
    kinds: tuple[int, ...] = ()
    parties: tuple[int, ...] = ()


class _Colours:
    """The colour of every device."""

    def __init__(self, size: int, kinds: tuple[int, ...]) -> None:
        self.colour = np.zeros(size + 1, dtype=np.int64)
        if kinds:
            self.colour[:size] = np.searchsorted(
                np.array(kinds, dtype=np.int64), np.arange(size), side="right"
            )
        self.colour[size] = -1  # what stands for a member that is none
        self.used = len(kinds) + 1

    def tell(self, devices: IntArray, marks: IntArray) -> None:
        """Tell apart devices of one colour that differ in their marks, and all of them from all
        others.
        """
        own = self.colour[devices]
        place = np.zeros(len(own), dtype=np.int64)
        if marks.any() or (own != own[:1]).any():
            place[:] = np.unique(
                own * (int(marks.max(initial=0)) + 1) + marks, return_inverse=True
            )[1].reshape(-1)
        self.colour[devices] = self.used + place
        self.used += int(place.max(initial=-1)) + 1

    def tell_partners(self, grouping: Grouping, base: int) -> None:
        """Tell apart devices by how many partners they have of each colour, in each of their
        groups.
        """
        members = np.where(grouping.groups < 0, -1, grouping.groups + base)
        there = self.colour[members]
        if there.size and there.min() == there.max() and grouping.of.min() >= 0:
            return
        there.sort(axis=1)
        kinds = np.append(numbered_rows(there), -1)
        marks = kinds[grouping.of]
        self.tell(
            grouping.devices + base, marks[:, 0] if marks.shape[1] == 1 else numbered_rows(marks)
        )

    def are_one(self, families: tuple[DeviceList, ...]) -> bool:
        """Whether a stage's devices have one colour."""
        own = self.colour[families[0].array]
        return len(families) == 1 and bool((own == own[0]).all())

    @property
    def number(self) -> int:
        """Different colours."""
        return len(distinct(self.colour))


def refine_families(
    stages: tuple[tuple[StageParts, ...], ...],
    *,
    edges: Iterable[LaneEdge],
    summings: Iterable[Summing],
    ground: StageDevices,
    exchanges: Iterable[Grouping] = (),
) -> tuple[tuple[StageParts, ...], ...]:
    """The stages with families of devices that are alike.

    Args:
        edges: between stages.
        summings: see `parameter_sums`.
        ground: what devices lie on.
        exchanges: whom devices meet inside stages.
    """
    every = [stage for lane in stages for stage in lane]
    families = {id(stage.families): stage.families for stage in every}
    known: dict[object, list[Trait]] = {}
    # What tells devices apart, each once: traits by the device that they are counted from.
    told: dict[tuple[int, int], tuple[Trait, int]] = {}
    size = 1 + max([stage.devices.last for stage in every])
    period = _period(ground.units, size)
    for stage in every:
        form = (
            stage.lane,
            stage.base % period,
            *[(id(s.cells), id(s.block)) for s in stage.segments],
        )
        if form not in known:
            held = [
                held_trait(s.cells, s.block, ground.lengths(stage.lane, s)) for s in stage.segments
            ]
            reached = (
                reach_trait(cells, stage.base % period, ground.units)
                for cells in dict.fromkeys(s.cells for s in stage.segments)
            )
            known[form] = [
                trait
                for trait in (*held, *reached)
                if not trait.plain or len(trait.marks) < len(stage.devices)
            ]
        for trait in known[form]:
            told[id(trait), stage.base] = trait, stage.base
    meeting: dict[tuple[int, int], tuple[Trait, int]] = {}
    alike = True
    for trait, bases, count, inside in _met(stages, edges, summings, ground, period):
        if not len(trait.marks):
            continue
        meeting |= {(id(trait), base): (trait, base) for base in bases}
        alike &= inside and trait.plain and trait.full
        if not trait.plain or len(trait.marks) != count:
            alike = False
            told |= {(id(trait), base): (trait, base) for base in bases}
    shared = [
        *exchanges,
        *(
            grouping
            for unit in ground.units[1:-1]
            if (grouping := _neighbours(every, unit)) is not None
        ),
    ]
    alike = alike and not shared
    if alike and not told and _are_one(families.values(), ground.kinds):
        return stages
    colours = _Colours(size, ground.kinds)
    for own in families.values():
        colours.tell(
            np.concatenate([one.array for one in own]),
            np.repeat(np.arange(len(own)), [one.size for one in own]),
        )
    for trait, base in told.values():
        colours.tell(trait.meet().devices + base, trait.marks)
    if alike and all(map(colours.are_one, families.values())):
        return stages
    met = ((trait.meet(), base) for trait, base in meeting.values())
    meetings = {(id(grouping), base): (grouping, base) for grouping, base in met}
    before = 0
    while before != (before := colours.number):
        for grouping, base in (*meetings.values(), *((one, 0) for one in shared)):
            colours.tell_partners(grouping, base)
    split: dict[int, tuple[DeviceList, ...]] = {}
    return tuple(tuple(_split(stage, colours.colour, split) for stage in lane) for lane in stages)


def _are_one(families: Iterable[tuple[DeviceList, ...]], kinds: tuple[int, ...]) -> bool:
    """Whether each stage is one family of devices of one kind, and any two stages are on the same
    devices or on others: then nothing tells devices of a stage apart that no trait does.
    """
    sets = dict.fromkeys(one for own in families for one in own)
    return not kinds and all(len(own) == 1 for own in families) and apart(sets)


def _period(units: tuple[Units, ...], devices: int) -> int:
    """Devices after which the levels repeat; all of them where some level does not."""
    if any(len(level.size) > 1 for level in units):
        return devices
    return lcm(*(level.size[0] for level in units if level.size[0] < devices))


def _met(
    stages: tuple[tuple[StageParts, ...], ...],
    edges: Iterable[LaneEdge],
    summings: Iterable[Summing],
    ground: StageDevices,
    period: int,
) -> Iterator[tuple[Trait, Iterable[int], int, bool]]:
    """What devices do with others: (trait, bases that it is counted from, devices of its stage, all
    partners are of one stage).
    """
    units = ground.units
    crossed: dict[tuple[int, int, tuple[int, ...]], tuple[Messages, dict[int, None]]] = {}
    for one in edges:
        ends = tuple(
            [stages[one.lane][chunk].devices.size for chunk in (one.edge.source, one.edge.target)]
        )
        for messages, sizes in ((one.forward, ends), (one.backward, ends[::-1])):
            crossed.setdefault((id(messages.sends), messages.base % period, sizes), (messages, {}))[
                1
            ][messages.base] = None
    for (_, base, sizes), (messages, bases) in crossed.items():
        for trait, size in zip(
            message_traits(Same(messages.sends), base, units), sizes, strict=True
        ):
            yield trait, bases, size, True
    summed: dict[
        tuple[int, int, tuple[int, ...], bool, tuple[int, ...]], tuple[Summing, dict[int, None]]
    ] = {}
    for summing in summings:
        sizes = tuple([stages[lane][chunk].devices.size for lane, chunk, _ in summing.uses])
        parties = tuple([ground.parties[use[0]] for use in summing.uses]) if ground.parties else ()
        known = (
            id(summing.sums),
            summing.base % period,
            sizes,
            len({use[:2] for use in summing.uses}) == 1,
            parties,
        )
        summed.setdefault(known, (summing, {}))[1][summing.base] = None
    for (_, base, sizes, inside, parties), (summing, bases) in summed.items():
        for sums in summing.sums:
            for number, size in enumerate(sizes):
                yield sum_trait(sums, number, base, units, parties), bases, size, inside


def _neighbours(every: Sequence[StageParts], unit: Units) -> Grouping | None:
    """Devices that share the uplinks of a unit, as partners: what one waits for there depends on
    what the others send. None if each stage is made of whole units, or lies in one.
    """
    sets = dict.fromkeys(stage.devices for stage in every)
    if all(_fills(devices, unit) for devices in sets):
        return None
    devices = distinct(np.concatenate([one.array for one in sets]))
    _, of, size = np.unique(unit.of(devices), return_inverse=True, return_counts=True)
    groups = np.full((len(size), int(size.max())), -1, dtype=np.int64)
    groups[of, np.arange(len(devices)) - np.repeat(np.cumsum(size) - size, size)] = devices
    return Grouping.by(devices, groups, of.reshape(-1, 1))


@lru_cache(maxsize=4096)
def _fills(devices: DeviceList, unit: Units) -> bool:
    """Whether a stage's devices are whole units, or lie in one unit."""
    every = devices.array
    place, first, count = np.unique(unit.of(every), return_index=True, return_counts=True)
    return len(place) == 1 or bool((count == unit.sizes(every[first])).all())


def _split(
    stage: StageParts, colour: IntArray, known: dict[int, tuple[DeviceList, ...]]
) -> StageParts:
    """The stage with its families cut by colour; stages with the same families share what they
    become.
    """
    if id(stage.families) not in known:
        families: list[DeviceList] = []
        for family in stage.families:
            devices = family.array
            own = colour[devices]
            if (own == own[0]).all():
                families.append(family)
            else:
                families += map(DeviceList.of, split_by(devices, own))
        known[id(stage.families)] = (
            tuple(families) if len(families) > len(stage.families) else stage.families
        )
    return replace(stage, families=known[id(stage.families)])
