"""Who sums which gradients with whom: the groups of every stage of a general plan, from what its devices contribute."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from shardwright.model.graph import Model
from shardwright.model.operator import Operator
from shardwright.model.tensor import Dim, Parameter, ParameterClass
from shardwright.program.cells import Cell, StageCells, cut_dims, dims_present, image, interval, reference_runs, token_box
from shardwright.program.contribution import Share, SumGroup, sum_groups
from shardwright.program.layout import Box
from shardwright.program.projection import PARTS, TOKENS, projection
from shardwright.program.stage_parts import Segment, StageParts

Use = tuple[int, int, int]
"""(lane, chunk, segment) of a use of a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters of one layer of a segment that one device holds and sums with the same devices.

    Args:
        klass: of the parameters. elements: local. group: devices that sum, sorted; one device = nothing to sum. near: of them those that
            use it in the same operator: states are sharded among them, copies of tied weights in other stages have their own.
        uses: all uses, of all lanes. trainable: frozen ones have no gradient. layers: layers of the segment with these uses.
    """

    klass: ParameterClass
    elements: int
    group: tuple[int, ...]
    near: tuple[int, ...]
    uses: tuple[Use, ...]
    trainable: bool
    layers: int

    @property
    def is_tied(self) -> bool:
        """Other stages use it too, under another name: its gradient is summed once all others are."""
        return self.near != self.group


Holdings = dict[tuple[int, int, int, int], tuple[Held, ...]]
"""By (lane, chunk, segment, device)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPlace:
    """One use: the operator's segment and its stage."""

    use: Use
    stage: StageParts
    segment: Segment
    operator: Operator
    parameter: Parameter

    def runs_on(self, device: int) -> bool:
        """`device`, as the cluster numbers it, runs the operator."""
        return device - self.stage.base in self.segment.cells.cells.get(self.operator.klass, {})

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices that run the operator."""
        return tuple(d + self.stage.base for d in self.segment.cells.cells.get(self.operator.klass, {}))


def plan_holdings(stages: tuple[tuple[StageParts, ...], ...], *, model: Model, length: int, island: int) -> Holdings:
    """What the first device of every family of every stage holds of each segment's layers.

    Tied weights are uses of their owner: counted where the owner is used, or else at the first use on the device.

    Args:
        length: positions of the main sequence. island: devices a node.

    Raises:
        StrategyError: contributions overlap without being equal (rule ``grad.overlap``).
    """
    found: dict[tuple[int, int, int, int], list[Held]] = {}
    moved: dict[tuple[int, int], tuple[int, ...]] = {}

    def shifted(group: tuple[int, ...], base: int) -> tuple[int, ...]:
        key = (id(group), base)
        if key not in moved:
            moved[key] = tuple(d + base for d in group)
        return moved[key]

    for places, layers, base, sums in parameter_sums(stages, model=model, length=length, island=island):
        uses = tuple(place.use for place in places)
        counted: set[int] = set()
        alone = len({place.operator.name for place in places}) == 1
        for place in places:
            holders = frozenset() if alone else frozenset(d for p in places if p.operator.name == place.operator.name for d in p.devices)
            before = frozenset(counted)
            for family in place.stage.families:
                device = family[0]
                if device in before or not place.runs_on(device):
                    continue
                if len(places) > 1:
                    counted.update(family)
                key = (*place.use, device)
                for elements, group_of in zip(sums.elements, sums.group_of, strict=True):
                    group = group_of.get(device - base)
                    if group is not None:
                        whole = shifted(group, base)
                        held = Held(
                            klass=place.parameter.klass,
                            elements=elements,
                            group=whole,
                            near=whole if alone else tuple(d for d in whole if d in holders),
                            uses=uses,
                            trainable=place.parameter.trainable,
                            layers=layers,
                        )
                        found.setdefault(key, []).append(held)
    return {key: tuple(items) for key, items in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Who sums a parameter, devices counted from a base. Equal only to itself.

    Args:
        found: its sum groups. elements: of each. group_of: of each, the group in which each device sums; a duplicate that is sent the sum
            counts as a member of its sender's. counted: of each use the devices whose part is counted there. holders: of each use the
            devices that run its operator in any stage; None if all uses are of one operator.
    """

    found: tuple[SumGroup, ...]
    elements: tuple[int, ...]
    group_of: tuple[dict[int, tuple[int, ...]], ...]
    counted: tuple[tuple[int, ...], ...]
    holders: tuple[frozenset[int] | None, ...]


def parameter_sums(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model, length: int, island: int
) -> Iterator[tuple[tuple[ParameterPlace, ...], int, int, Sums]]:
    """(all uses, number of layers that are used so, base that devices are counted from, who sums) of each parameter of each block once.

    Stages that differ only by their place (in whole nodes) share what their devices sum.
    """
    known: dict[object, Sums] = {}
    for places, layers in _parameters(stages, model=model):
        base = places[0].stage.base - (places[0].stage.base % island if island else 0)
        lanes: dict[tuple[int, int], int] = {}
        alike = tuple(
            (
                lanes.setdefault((p.use[0], p.segment.run), len(lanes)),
                p.stage.base - base,
                id(p.segment.cells),
                id(p.operator),
                id(p.parameter),
            )
            for p in places
        )
        if alike not in known:
            uses = tuple(
                _Use(turn=turn, offset=offset, cells=p.segment.cells, operator=p.operator, parameter=p.parameter)
                for (turn, offset, *_), p in zip(alike, places, strict=True)
            )
            known[alike] = _sums(uses, length, island)
        yield places, layers, base, known[alike]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """A use of a parameter, its lane and run as the number `turn` among the parameter's uses, its stage `offset` devices after the base."""

    turn: int
    offset: int
    cells: StageCells
    operator: Operator
    parameter: Parameter


@lru_cache(maxsize=4096)
def _sums(uses: tuple[_Use, ...], length: int, island: int) -> Sums:
    shares = tuple(share for use in uses for share in _shares(use, (use.turn, use.operator.name), length))
    found = sum_groups(shares, island=island)
    devices = [tuple(d + use.offset for d in use.cells.cells.get(use.operator.klass, {})) for use in uses]
    before: set[int] = set()
    counted = []
    for own in devices:
        counted.append(tuple(d for d in own if d not in before))
        before.update(own)
    names = [use.operator.name for use in uses]
    alone = len(set(names)) == 1
    holders = {name: frozenset(d for other, own in zip(names, devices, strict=True) if other == name for d in own) for name in names}
    return Sums(
        found=found,
        elements=tuple(group.elements for group in found),
        group_of=tuple(map(_by_device, found)),
        counted=tuple(counted),
        holders=tuple(None if alone else holders[name] for name in names),
    )


def _by_device(found: SumGroup) -> dict[int, tuple[int, ...]]:
    result = {device: _one(group) for group in found.groups for device in group}
    for sender, *others in found.copies:
        whole = result.get(sender, (sender,))
        result |= {d: tuple(sorted({*whole, d})) for d in others}
    return result


@lru_cache(maxsize=65536)
def _one(group: tuple[int, ...]) -> tuple[int, ...]:
    """Equal groups as one object."""
    return group


def parameter_places(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model
) -> dict[tuple[int, int, str, str], tuple[ParameterPlace, ...]]:
    """By (run, layer, operator, parameter) of a parameter's owner, all its uses: the owner's first."""
    stretches = _stretches(stages, model=model).items()
    return {
        (run, layer, operator, name): places
        for (run, first, operator, name), (places, count) in stretches
        for layer in range(first, first + count)
    }


def _stretches(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model
) -> dict[tuple[int, int, str, str], tuple[tuple[ParameterPlace, ...], int]]:
    """By (run, first layer, operator, parameter) of owners that are used alike in a row of layers: all uses, and the number of layers."""
    borders: dict[int, set[int]] = {}
    for segment in (segment for lane in stages for stage in lane for segment in stage.segments):
        borders.setdefault(segment.run, set()).update((segment.first, segment.first + segment.count))
    where: dict[tuple[int, int, str, str], tuple[list[ParameterPlace], int]] = {}
    owners = {f"{b.name}.{p.name}": (i, o.name, p.name) for i, b in enumerate(model.blocks) for o in b.operators for p in o.parameters}
    first_run = {run.block: i for i, run in reversed(list(enumerate(model.runs)))}
    for name in (p.tied_to for b in model.blocks for o in b.operators for p in o.parameters if p.tied_to in owners):
        borders.setdefault(first_run[owners[name][0]], set()).add(1)
    for stage in (stage for lane in stages for stage in lane):
        for number, segment in enumerate(stage.segments):
            own = sorted(b for b in borders[segment.run] if segment.first <= b <= segment.first + segment.count)
            for operator in segment.block.operators:
                for parameter in operator.parameters:
                    use = (stage.lane, stage.chunk, number)
                    place = ParameterPlace(use=use, stage=stage, segment=segment, operator=operator, parameter=parameter)
                    owner = owners.get(parameter.tied_to) if parameter.tied_to else None
                    if owner is not None:
                        where.setdefault((first_run[owner[0]], 0, owner[1], owner[2]), ([], 1))[0].append(place)
                        continue
                    for first, end in pairwise(own):
                        where.setdefault((segment.run, first, operator.name, parameter.name), ([], end - first))[0].append(place)
    return {
        key: (tuple(sorted(places, key=lambda p: (bool(p.parameter.tied_to), p.use))) if len(places) > 1 else tuple(places), count)
        for key, (places, count) in where.items()
    }


def _parameters(stages: tuple[tuple[StageParts, ...], ...], *, model: Model) -> list[tuple[tuple[ParameterPlace, ...], int]]:
    """(all uses of a parameter, number of layers that are used so), each parameter of each block once."""
    alike: dict[tuple[object, ...], tuple[tuple[ParameterPlace, ...], int]] = {}
    for (run, _, operator, name), (places, count) in _stretches(stages, model=model).items():
        key = (run, operator, name, tuple(p.use for p in places))
        alike[key] = (alike[key][0], alike[key][1] + count) if key in alike else (places, count)
    return list(alike.values())


def shares_of(place: ParameterPlace, *, base: int, length: int) -> list[Share]:
    """What each device contributes to the gradient of a parameter by one use, devices counted from `base`.

    Args:
        length: positions of the sequence.
    """
    offset = place.stage.base - base
    use = _Use(turn=0, offset=offset, cells=place.segment.cells, operator=place.operator, parameter=place.parameter)
    return _shares(use, (place.use[0], place.segment.run, place.operator.name), length)


def _shares(use: _Use, name: Hashable, length: int) -> list[Share]:
    """The shares of one use: parts of the tokens and of everything else are looked at once each, not once a device."""
    operator, stage = use.operator, use.cells
    extents = sorted((e for e in use.parameter.extents), key=lambda e: e.dim.value)
    tokens, rest = (projection(stage, operator.klass, dims) for dims in (TOKENS, PARTS))
    boxes = [token_box(cell, samples=stage.samples, length=length) for cell in tokens.cells]
    needs: list[Box] = [tuple((interval(e, operator, cut_dims(cell, operator)),) for e in extents) for cell in rest.cells]
    parts = [_cut_cells(cell, operator) for cell in rest.cells]
    empty = [any(a >= b for ((a, b),) in need) for need in needs]
    return [
        Share(device=device + use.offset, need=needs[part], work=((name, (*boxes[token], *parts[part])),))
        for device, token, part in zip(tokens.devices.tolist(), tokens.number.tolist(), rest.number.tolist(), strict=True)
        if all(boxes[token]) and not empty[part]
    ]


def _cut_cells(cell: Cell, operator: Operator) -> Box:
    """The device's part of every dim that could be cut, in runs of the operator's finest extent."""
    cuts = cut_dims(cell, operator)
    dims = sorted(dims_present(operator), key=lambda d: d.value)
    runs = {d: reference_runs(operator, d) for d in dims if d not in (Dim.BATCH, Dim.SEQUENCE)}
    return tuple((image(cuts.get(d, ()), count, count),) for d, count in runs.items())
