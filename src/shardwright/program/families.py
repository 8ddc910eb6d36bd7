"""Families as coarse as they may be: devices of one family have parts of equal size and lie alike on the tiers of the network.

Colour refinement, as `program.fold` does for grids: a device's first colour is what it holds and how far its groups and messages reach;
then devices whose partners have different colours are told apart until nothing changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import lcm, prod

import numpy as np

from shardwright.model.graph import Model
from shardwright.model.operator import Operator
from shardwright.model.tensor import Dim
from shardwright.program.cells import Cell, StageCells, Way, cut_dims, indices, interval, reference_runs
from shardwright.program.layout import count
from shardwright.program.plan_sync import Held, parameter_sums, plan_holdings
from shardwright.program.stage_edges import Messages
from shardwright.program.stage_parts import Segment, StageParts
from shardwright.strategy.split import Split

Crossing = tuple[int, int, int, Messages]
"""(lane, source, target, messages) of an edge in one direction."""
_Colours = dict[int, Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What beside the stages makes devices differ.

    Args:
        model: of the problem. length: positions of its main sequence. lengths: positions of a segment's sequence in a lane, of each slice.
        units: devices of one unit of each tier of the network, innermost first. island: of the innermost for the sums of gradients.
        kinds: first device after each kind of node; empty if there is one kind.
    """

    model: Model
    length: int
    lengths: Callable[[int, Segment], tuple[int, ...]]
    units: tuple[int, ...]
    island: int
    kinds: tuple[int, ...] = ()

    def kind(self, device: int) -> int:
        """Kind of node that a device is in."""
        return bisect_right(self.kinds, device)

    def lying(self, devices: Iterable[int]) -> Hashable:
        """How a group lies on the tiers: numbers of its members in the units of each."""
        there = tuple(devices)
        return tuple(tuple(sorted(Counter(d // unit for d in there).values())) for unit in self.units)


def refine_families(
    stages: tuple[tuple[StageParts, ...], ...], *, crossings: Iterable[Crossing], ground: Ground
) -> tuple[tuple[StageParts, ...], ...]:
    """The stages with families of devices that are alike.

    Args:
        crossings: messages of all edges, both ways. ground: what devices lie on.
    """
    listed = list(crossings)
    if _plain(stages, listed, ground):
        return stages
    colours: dict[int, list[Hashable]] = {d: [ground.kind(d)] for lane in stages for stage in lane for d in stage.devices}
    for stage in (stage for lane in stages for stage in lane):
        families = {d: i for i, family in enumerate(stage.families) for d in family}
        reach = [_reach(cells, stage.base, ground) for cells in _distinct(stage)]
        for device in stage.devices:
            local = device - stage.base
            sizes = tuple(_sizes(s, local, length) for s in stage.segments for length in ground.lengths(stage.lane, s))
            colours[device].append((stage.lane, stage.chunk, families[device], sizes, tuple(one.get(local) for one in reach)))
    for lane, source, target, messages in listed:
        for device, crossed in _crossed(messages, ground.units).items():
            colours[device].append((lane, source, target, crossed))
    partners = _partners(stages, listed)
    for device, place, held in _held(stages, ground):
        colours[device].append((place, held.klass, held.elements, held.layers, ground.lying(held.group), ground.lying(held.near)))
        partners.setdefault(device, []).append(((place, "sum"), held.group))
    final = _stable({d: tuple(c) for d, c in colours.items()}, partners)
    return tuple(tuple(_split(stage, final) for stage in lane) for lane in stages)


def _held(stages: tuple[tuple[StageParts, ...], ...], ground: Ground) -> Iterator[tuple[int, Hashable, Held]]:
    """(device, place, what it holds there) of every device."""
    single = tuple(tuple(replace(stage, families=tuple((d,) for d in stage.devices)) for stage in lane) for lane in stages)
    for (*place, device), items in plan_holdings(single, model=ground.model, length=ground.length, island=ground.island).items():
        for held in items:
            yield device, tuple(place), held


def _plain(stages: tuple[tuple[StageParts, ...], ...], crossings: list[Crossing], ground: Ground) -> bool:
    """All devices of a stage are alike: all parts are even, all groups lie alike, all senders and receivers of an edge do the same.

    Stages that repeat are looked at once.
    """
    period = lcm(*ground.units)
    sets = {stage.devices for lane in stages for stage in lane}
    if len({d for devices in sets for d in devices}) < sum(map(len, sets)):
        return False
    seen: dict[Hashable, bool] = {}
    for stage in (stage for lane in stages for stage in lane):
        if len(stage.families) > 1 or ground.kind(stage.devices[0]) != ground.kind(stage.devices[-1]):
            return False
        for segment in stage.segments:
            lengths = ground.lengths(stage.lane, segment)
            key = (id(segment.cells), id(segment.block), stage.samples, lengths, stage.base % period)
            if key not in seen:
                even = all(_even(segment, stage, length) for length in lengths)
                seen[key] = even and _aligned(segment.cells, stage.base, ground.units)
            if not seen[key]:
                return False
    for *_, messages in crossings:
        edge = (id(messages.sends), messages.base % period)
        if edge not in seen:
            by_device = _crossed(messages, ground.units)
            ways = [{entry for entries in by_device.values() for entry in entries if entry[0] == way} for way in (0, 1)]
            seen[edge] = all(len(way) < 2 for way in ways)
        if not seen[edge]:
            return False
    for places, _, base, sums in parameter_sums(stages, model=ground.model, length=ground.length, island=ground.island):
        whole = (sums, base % period)
        if len(places) > 1 and whole not in seen:
            lying = {ground.lying(d + base for d in group) for found in sums.found for group in found.groups}
            seen[whole] = len(lying) < 2 and not any(found.copies for found in sums.found)
        if len(places) > 1 and not seen[whole]:
            return False
    return True


def _distinct(stage: StageParts) -> list[StageCells]:
    return list({id(s.cells): s.cells for s in stage.segments}.values())


def _split(stage: StageParts, colours: _Colours) -> StageParts:
    families: list[tuple[int, ...]] = []
    for family in stage.families:
        parts: dict[Hashable, list[int]] = {}
        for device in family:
            parts.setdefault(colours[device], []).append(device)
        families += [tuple(part) for part in parts.values()]
    return replace(stage, families=tuple(families))


def _stable(colours: _Colours, partners: dict[int, list[tuple[Hashable, tuple[int, ...]]]]) -> _Colours:
    """Colours numbered; refined by those of the devices' partners until their number stays."""
    number = _numbered(colours)
    while True:
        finer = _numbered(
            {
                d: (c, *((name, tuple(sorted(Counter(number[o] for o in others).items()))) for name, others in partners.get(d, ())))
                for d, c in number.items()
            }
        )
        if len(set(finer.values())) == len(set(number.values())):
            return dict(number)
        number = finer


def _numbered(colours: _Colours) -> dict[int, int]:
    numbers: dict[Hashable, int] = {}
    return {d: numbers.setdefault(c, len(numbers)) for d, c in colours.items()}


def _partners(stages: tuple[tuple[StageParts, ...], ...], crossings: list[Crossing]) -> dict[int, list[tuple[Hashable, tuple[int, ...]]]]:
    """Of each device the members of each of its groups inside stages, and those that it sends to and receives from, by edge."""
    found: dict[int, list[tuple[Hashable, tuple[int, ...]]]] = {}
    for stage in (stage for lane in stages for stage in lane):
        for number, cells in enumerate(_distinct(stage)):
            for tree, split in enumerate(_trees(cells)):
                for local in split:
                    members = tuple(d + stage.base for d in split)
                    found.setdefault(local + stage.base, []).append(((stage.lane, stage.chunk, number, tree), members))
    for lane, source, target, messages in crossings:
        ends: dict[tuple[int, int], set[int]] = {}
        for one, other, _ in messages.sends.tolist():
            ends.setdefault((one + messages.base, 0), set()).add(other + messages.base)
            ends.setdefault((other + messages.base, 1), set()).add(one + messages.base)
        for (device, way), others in ends.items():
            found.setdefault(device, []).append(((lane, source, target, way), tuple(sorted(others))))
    return found


def _trees(cells: StageCells) -> list[dict[int, Cell]]:
    """The distinct trees of a stage: device -> cell."""
    return list({id(tree): tree for tree in cells.cells.values()}.values())


def _present(segment: Segment) -> Iterator[tuple[Operator, dict[int, Cell]]]:
    for operator in segment.block.operators:
        tree = segment.cells.cells.get(operator.klass)
        if tree:
            yield operator, tree


def _even(segment: Segment, stage: StageParts, length: int) -> bool:
    """Equal parts leave no remainder anywhere: a family's first device, which has the largest part, has as much as all."""
    for operator, tree in _present(segment):
        for family in stage.families:
            cell = tree.get(family[0] - stage.base)
            if cell is None:
                continue
            ways = {Dim.BATCH: cell.way(Dim.BATCH), Dim.SEQUENCE: cell.way(Dim.SEQUENCE)} | cut_dims(cell, operator)
            for dim, way in ways.items():
                size = {Dim.BATCH: stage.samples, Dim.SEQUENCE: length}.get(dim) or reference_runs(operator, dim)
                if not _divides(way, size):
                    return False
                if any(e.dim is dim and not _divides(way, e.runs) for e in (*operator.reads, *operator.writes)):
                    return False
    return True


def _divides(way: Way, size: int) -> bool:
    equal = prod((step.parts for step in way if isinstance(step.parts, int)), start=1) * (2 if any(s.zigzag for s in way) else 1)
    if equal == 1:
        return True
    whole = count(indices(tuple(step for step in way if not isinstance(step.parts, int)), size))
    return whole % equal == 0 and count(indices(way, size)) * prod(s.parts for s in way if isinstance(s.parts, int)) == whole


def _sizes(segment: Segment, local: int, length: int) -> Hashable:
    """What a device holds: samples, positions and elements of every extent, by operator."""
    held: list[Hashable] = []
    for operator, tree in _present(segment):
        cell = tree.get(local)
        if cell is None:
            held.append(None)
            continue
        cuts = cut_dims(cell, operator)
        tokens = (count(indices(cell.way(Dim.BATCH), segment.cells.samples)), count(indices(cell.way(Dim.SEQUENCE), length)))
        extents = (*operator.reads, *operator.writes, *(e for p in operator.parameters for e in p.extents))
        ends = (interval(e, operator, cuts) for e in extents)
        held.append((*tokens, tuple(high - low for low, high in ends)))
    return tuple(held)


def _levels(split: Split | None) -> list[tuple[int, int]] | None:
    """(step, parts) of each cut of a tree of equal parts; None if some are unequal."""
    found: list[tuple[int, int]] = []
    while split is not None:
        if isinstance(split.parts, tuple) or isinstance(split.step, tuple):
            return None
        found.append((split.step, split.parts))
        split = split.children[0]
    return found


def _aligned(cells: StageCells, base: int, units: tuple[int, ...]) -> bool:
    """All groups of a stage lie alike whatever the device: in one unit of every tier, or along strides that fit into units or fill them."""
    first, last = base + cells.devices[0], base + cells.devices[-1]
    inner = [u for u in units if first // u != last // u]
    if not inner:
        return True
    for split in {id(s): s for s in cells.splits.values()}.values():
        levels = _levels(split)
        if levels is None:
            return False
        for unit in inner:
            if any(step % unit and unit % (step * parts) for step, parts in levels):
                return False
            spread = 1 + sum(step * (parts - 1) for step, parts in levels if unit % (step * parts) == 0)
            if base % unit + spread > unit:
                return False
    return True


def _reach(cells: StageCells, base: int, ground: Ground) -> dict[int, Hashable]:
    """How the groups of each device lie on the tiers: for each tree and set of dims, of the devices that differ only in those."""
    found: dict[int, dict[Hashable, Hashable]] = {}
    for number, tree in enumerate(_trees(cells)):
        groups: dict[tuple[tuple[Dim, ...], Hashable], list[int]] = {}
        for device, cell in tree.items():
            dims = tuple(dict.fromkeys(dim for dim, _ in cell.ways))
            for chosen in (c for n in range(1, len(dims) + 1) for c in combinations(dims, n)):
                kept = tuple(way for way in cell.ways if way[0] not in chosen)
                groups.setdefault((chosen, kept), []).append(device)
        for (chosen, _), devices in groups.items():
            lying = ground.lying(d + base for d in devices)
            for device in devices:
                found.setdefault(device, {})[number, chosen] = lying
    return {device: frozenset(reach.items()) for device, reach in found.items()}


def _crossed(messages: Messages, units: tuple[int, ...]) -> dict[int, tuple[tuple[int, tuple[int, ...]], ...]]:
    """Of each device (0 = sends, 1 = receives; elements on each tier)."""
    if not len(messages.sends):
        return {}
    ends, elements = messages.sends[:, :2] + messages.base, messages.sends[:, 2]
    tier = np.full(len(elements), len(units) - 1)
    for index in range(len(units) - 1, -1, -1):
        tier[ends[:, 0] // units[index] == ends[:, 1] // units[index]] = index
    result: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {}
    for way in (0, 1):
        devices, place = np.unique(ends[:, way], return_inverse=True)
        totals = np.zeros((len(devices), len(units)), dtype=np.int64)
        np.add.at(totals, (place.reshape(-1), tier), elements)
        for device, row in zip(devices.tolist(), totals.tolist(), strict=True):
            result[device] = (*result.get(device, ()), (way, tuple(row)))
    return result
