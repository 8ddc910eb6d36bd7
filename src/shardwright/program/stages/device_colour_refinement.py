"""Families of devices of a stage that are lowered as one, by colour refinement.

They have parts of equal size and lie the same way on the tiers of the network.

A device's first colour is its holdings and how far its groups and
messages reach; then devices whose partners have different colours are told apart until nothing
changes. Colours are numbers in one array; traits that tell devices apart follow from their parts
and are found once for stages that differ by whole units of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import lcm

import numpy as np

from shardwright.arrays import IntArray, distinct, numbered_rows, split_by
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.hardware.strided_device_list import DeviceList, are_disjoint
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.identity_cache_keys import Same
from shardwright.program.stages.device_equivalence_traits import (
    Grouping,
    Trait,
    held_trait,
    message_traits,
    reach_trait,
    sum_trait,
)
from shardwright.program.stages.held_parameters import Summing
from shardwright.program.stages.stage_messages import LaneEdge, Messages
from shardwright.program.stages.stage_segments import Segment, StageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDevices:
    """Properties besides the stages that make devices differ.

    Args:
        lengths: positions of a segment's sequence in a lane, of each slice.
        units: units of each level of the network, innermost first.
        kinds: first device after each kind of node; empty if there is one kind.
        parties: number of the reduction group of each lane; empty: all lanes are one group.
    """

    lengths: Callable[[int, Segment], tuple[int, ...]]
    units: tuple[Units, ...]
    kinds: tuple[int, ...] = ()
    parties: tuple[int, ...] = ()


class _Colours:
    """The colour of every device in colour refinement."""

    def __init__(self, size: int, kinds: tuple[int, ...]) -> None:
        self.colour = np.zeros(size + 1, dtype=np.int64)
        if kinds:
            self.colour[:size] = np.searchsorted(
                np.array(kinds, dtype=np.int64), np.arange(size), side="right"
            )
        self.colour[size] = -1  # what stands for a member that is none
        self.used = len(kinds) + 1

    def split(self, devices: IntArray, marks: IntArray) -> None:
        """Recolour `devices` in place: equal old colour and mark, equal new colour; all new."""
        old_colours = self.colour[devices]
        new_colours = np.zeros(len(old_colours), dtype=np.int64)
        if marks.any() or (old_colours != old_colours[:1]).any():
            new_colours[:] = np.unique(
                old_colours * (int(marks.max(initial=0)) + 1) + marks, return_inverse=True
            )[1].reshape(-1)
        self.colour[devices] = self.used + new_colours
        self.used += int(new_colours.max(initial=-1)) + 1

    def split_by_partners(self, grouping: Grouping, first_device: int) -> None:
        """Recolour `first_device` + devices in place by their partners' number of each colour.

        In each of their groups.
        """
        members = np.where(grouping.groups < 0, -1, grouping.groups + first_device)
        member_colours = self.colour[members]
        if (
            member_colours.size
            and member_colours.min() == member_colours.max()
            and grouping.of.min() >= 0
        ):
            return
        member_colours.sort(axis=1)
        kinds = np.append(numbered_rows(member_colours), -1)
        marks = kinds[grouping.of]
        self.split(
            grouping.devices + first_device,
            marks[:, 0] if marks.shape[1] == 1 else numbered_rows(marks),
        )

    def are_one(self, families: tuple[DeviceList, ...]) -> bool:
        """True if all devices of a stage are one family and have one colour."""
        colours = self.colour[families[0].array]
        return len(families) == 1 and bool((colours == colours[0]).all())

    @property
    def number(self) -> int:
        """Number of different colours in use."""
        return len(distinct(self.colour))


def refine_families(
    stages: tuple[tuple[StageParts, ...], ...],
    *,
    edges: Iterable[LaneEdge],
    summings: Iterable[Summing],
    ground: StageDevices,
    exchanges: Iterable[Grouping] = (),
) -> tuple[tuple[StageParts, ...], ...]:
    """Divide the families of each stage by colour refinement until a family's devices are equal.

    Args:
        edges: edges between stages.
        summings: see `parameter_sums`.
        ground: properties besides the stages that make devices differ.
        exchanges: groups that devices meet inside stages.
    """
    all_stages = [stage for lane in stages for stage in lane]
    families = {id(stage.families): stage.families for stage in all_stages}
    traits_of_form: dict[object, list[Trait]] = {}
    # What tells devices apart, each once: traits by the device that they are counted from.
    telling: dict[tuple[int, int], tuple[Trait, int]] = {}
    size = 1 + max([stage.devices.last for stage in all_stages])
    period = _period(ground.units, size)
    for stage in all_stages:
        form = (
            stage.lane,
            stage.base % period,
            *[(id(s.cells), id(s.block)) for s in stage.segments],
        )
        if form not in traits_of_form:
            held_traits = [
                held_trait(s.cells, s.block, ground.lengths(stage.lane, s)) for s in stage.segments
            ]
            reach_traits = (
                reach_trait(cells, stage.base % period, ground.units)
                for cells in dict.fromkeys(s.cells for s in stage.segments)
            )
            traits_of_form[form] = [
                trait
                for trait in (*held_traits, *reach_traits)
                if not trait.plain or len(trait.marks) < len(stage.devices)
            ]
        for trait in traits_of_form[form]:
            telling[id(trait), stage.base] = trait, stage.base
    communication: dict[tuple[int, int], tuple[Trait, int]] = {}
    alike = True
    for trait, bases, count, inside in _communication_traits(
        stages, edges, summings, ground, period
    ):
        if not len(trait.marks):
            continue
        communication |= {(id(trait), base): (trait, base) for base in bases}
        alike &= inside and trait.plain and trait.full
        if not trait.plain or len(trait.marks) != count:
            alike = False
            telling |= {(id(trait), base): (trait, base) for base in bases}
    shared_groupings = [
        *exchanges,
        *(
            grouping
            for unit in ground.units[1:-1]
            if (grouping := _uplink_sharers(all_stages, unit)) is not None
        ),
    ]
    alike = alike and not shared_groupings
    if alike and not telling and _only_traits_differ(families.values(), ground.kinds):
        return stages
    colours = _Colours(size, ground.kinds)
    for families_of_stage in families.values():
        colours.split(
            np.concatenate([family.array for family in families_of_stage]),
            np.repeat(
                np.arange(len(families_of_stage)), [family.size for family in families_of_stage]
            ),
        )
    for trait, base in telling.values():
        colours.split(trait.meet().devices + base, trait.marks)
    if alike and all(map(colours.are_one, families.values())):
        return stages
    groupings = ((trait.meet(), base) for trait, base in communication.values())
    meetings = {(id(grouping), base): (grouping, base) for grouping, base in groupings}
    before = 0
    while before != (before := colours.number):
        for grouping, base in (*meetings.values(), *((shared, 0) for shared in shared_groupings)):
            colours.split_by_partners(grouping, base)
    split: dict[int, tuple[DeviceList, ...]] = {}
    return tuple(
        tuple(_divided_by_colour(stage, colours.colour, split) for stage in lane) for lane in stages
    )


def _only_traits_differ(families: Iterable[tuple[DeviceList, ...]], kinds: tuple[int, ...]) -> bool:
    """True if each stage is one family, all of one kind, and stages coincide or are disjoint.

    Then nothing but a trait can tell devices of a stage apart.
    """
    sets = dict.fromkeys(family for families_of_stage in families for family in families_of_stage)
    return (
        not kinds
        and all(len(families_of_stage) == 1 for families_of_stage in families)
        and are_disjoint(sets)
    )


def _period(units: tuple[Units, ...], devices: int) -> int:
    """Number of devices after which the network's levels repeat; `devices` where one does not.

    All devices where some level does not.
    """
    if any(len(level.size) > 1 for level in units):
        return devices
    return lcm(*(level.size[0] for level in units if level.size[0] < devices))


def _communication_traits(
    stages: tuple[tuple[StageParts, ...], ...],
    edges: Iterable[LaneEdge],
    summings: Iterable[Summing],
    ground: StageDevices,
    period: int,
) -> Iterator[tuple[Trait, Iterable[int], int, bool]]:
    """Yield traits that tell devices apart by partners: (trait, bases, stage size, all inside)."""
    units = ground.units
    messages_by_form: dict[tuple[int, int, tuple[int, ...]], tuple[Messages, dict[int, None]]] = {}
    for lane_edge in edges:
        ends = tuple(
            [
                stages[lane_edge.lane][chunk].devices.size
                for chunk in (lane_edge.edge.source, lane_edge.edge.target)
            ]
        )
        for messages, sizes in ((lane_edge.forward, ends), (lane_edge.backward, ends[::-1])):
            messages_by_form.setdefault(
                (id(messages.sends), messages.base % period, sizes), (messages, {})
            )[1][messages.base] = None
    for (_, base, sizes), (messages, bases) in messages_by_form.items():
        for trait, size in zip(
            message_traits(Same(messages.sends), base, units), sizes, strict=True
        ):
            yield trait, bases, size, True
    summings_by_form: dict[
        tuple[int, int, tuple[int, ...], bool, tuple[int, ...]], tuple[Summing, dict[int, None]]
    ] = {}
    for summing in summings:
        sizes = tuple([stages[lane][chunk].devices.size for lane, chunk, _ in summing.uses])
        parties = tuple([ground.parties[use[0]] for use in summing.uses]) if ground.parties else ()
        form = (
            id(summing.sums),
            summing.base % period,
            sizes,
            len({use[:2] for use in summing.uses}) == 1,
            parties,
        )
        summings_by_form.setdefault(form, (summing, {}))[1][summing.base] = None
    for (_, base, sizes, inside, parties), (summing, bases) in summings_by_form.items():
        for sums in summing.sums:
            for number, size in enumerate(sizes):
                yield sum_trait(sums, number, base, units, parties), bases, size, inside


def _uplink_sharers(all_stages: Sequence[StageParts], unit: Units) -> Grouping | None:
    """Devices that share a network unit's uplinks, as partners; None if stages fill units."""
    sets = dict.fromkeys(stage.devices for stage in all_stages)
    if all(_fills_units(devices, unit) for devices in sets):
        return None
    devices = distinct(np.concatenate([stage_devices.array for stage_devices in sets]))
    _, unit_of_device, size = np.unique(unit.of(devices), return_inverse=True, return_counts=True)
    groups = np.full((len(size), int(size.max())), -1, dtype=np.int64)
    groups[unit_of_device, np.arange(len(devices)) - np.repeat(np.cumsum(size) - size, size)] = (
        devices
    )
    return Grouping.by(devices, groups, unit_of_device.reshape(-1, 1))


@lru_cache(maxsize=4096)
def _fills_units(devices: DeviceList, unit: Units) -> bool:
    """True if a stage's devices are whole units, or lie in one unit."""
    device_array = devices.array
    place, first_device, count = np.unique(
        unit.of(device_array), return_index=True, return_counts=True
    )
    return len(place) == 1 or bool((count == unit.sizes(device_array[first_device])).all())


def _divided_by_colour(
    stage: StageParts, colour: IntArray, new_families: dict[int, tuple[DeviceList, ...]]
) -> StageParts:
    """The stage with its families divided by colour.

    Stages with the same families share the result.
    """
    if id(stage.families) not in new_families:
        families: list[DeviceList] = []
        for family in stage.families:
            devices = family.array
            colours = colour[devices]
            if (colours == colours[0]).all():
                families.append(family)
            else:
                families += map(DeviceList.of, split_by(devices, colours))
        new_families[id(stage.families)] = (
            tuple(families) if len(families) > len(stage.families) else stage.families
        )
    return replace(stage, families=new_families[id(stage.families)])
