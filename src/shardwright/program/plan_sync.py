"""Who sums which gradients with whom: the groups of every stage of a general plan, from what its devices contribute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.model.graph import Model
from shardwright.model.operator import Operator
from shardwright.model.tensor import Dim, Parameter, ParameterClass
from shardwright.program.cells import Cell, cut_dims, dims_present, image, interval, reference_runs, token_box
from shardwright.program.contribution import Share, SumGroup, sum_groups
from shardwright.program.layout import Box
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
    cache: dict[object, tuple[SumGroup, ...]] = {}
    for places, layers in _parameters(stages, model=model):
        base, groups = _groups(places, length=length, island=island, cache=cache)
        by_device = [_by_device(group, base) for group in groups]
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
                counted.update(family)
                key = (*place.use, device)
                for group, of in zip(groups, by_device, strict=True):
                    whole = of.get(device)
                    if whole is not None:
                        held = Held(
                            klass=place.parameter.klass,
                            elements=group.elements,
                            group=whole,
                            near=whole if alone else tuple(d for d in whole if d in holders),
                            uses=uses,
                            trainable=place.parameter.trainable,
                            layers=layers,
                        )
                        found.setdefault(key, []).append(held)
    return {key: tuple(items) for key, items in found.items()}


def groups_used_often(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model, length: int, island: int
) -> Iterator[tuple[int, tuple[SumGroup, ...]]]:
    """(base that devices are counted from, sum groups) of each parameter that several stages or segments use, each kind once."""
    cache: dict[object, tuple[SumGroup, ...]] = {}
    for places, _ in _parameters(stages, model=model):
        if len(places) > 1:
            yield _groups(places, length=length, island=island, cache=cache)


def _by_device(found: SumGroup, base: int) -> dict[int, tuple[int, ...]]:
    """The group in which each device sums; a duplicate that is sent the sum counts as a member of its sender's."""
    result: dict[int, tuple[int, ...]] = {}
    for group in found.groups:
        whole = tuple(sorted(d + base for d in group))
        result |= dict.fromkeys(whole, whole)
    for sender, *others in found.copies:
        whole = result.get(sender + base, (sender + base,))
        result |= {d + base: tuple(sorted({*whole, d + base})) for d in others}
    return result


def parameter_places(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model
) -> dict[tuple[int, int, str, str], tuple[ParameterPlace, ...]]:
    """By (run, layer, operator, parameter) of a parameter's owner, all its uses: the owner's first."""
    where: dict[tuple[int, int, str, str], list[ParameterPlace]] = {}
    owners = {f"{b.name}.{p.name}": (i, o.name, p.name) for i, b in enumerate(model.blocks) for o in b.operators for p in o.parameters}
    first_run = {run.block: i for i, run in reversed(list(enumerate(model.runs)))}
    for lane in stages:
        for stage in lane:
            for number, segment in enumerate(stage.segments):
                for operator in segment.block.operators:
                    for parameter in operator.parameters:
                        place = ParameterPlace(
                            use=(stage.lane, stage.chunk, number), stage=stage, segment=segment, operator=operator, parameter=parameter
                        )
                        owner = owners.get(parameter.tied_to) if parameter.tied_to else None
                        if owner is not None:
                            where.setdefault((first_run[owner[0]], 0, owner[1], owner[2]), []).append(place)
                            continue
                        for layer in range(segment.first, segment.first + segment.count):
                            where.setdefault((segment.run, layer, operator.name, parameter.name), []).append(place)
    return {key: tuple(sorted(places, key=lambda p: (bool(p.parameter.tied_to), p.use))) for key, places in where.items()}


def _parameters(stages: tuple[tuple[StageParts, ...], ...], *, model: Model) -> list[tuple[tuple[ParameterPlace, ...], int]]:
    """(all uses of a parameter, number of layers that are used so), each parameter of each block once."""
    alike: dict[tuple[object, ...], list[object]] = {}
    for (run, _, operator_name, name), ordered in parameter_places(stages, model=model).items():
        key = (run, operator_name, name, tuple(p.use for p in ordered))
        entry = alike.setdefault(key, [ordered, 0])
        entry[1] += 1  # type: ignore[operator]
    return [(places, layers) for places, layers in alike.values()]  # type: ignore[misc]


def _groups(
    places: tuple[ParameterPlace, ...], *, length: int, island: int, cache: dict[object, tuple[SumGroup, ...]]
) -> tuple[int, tuple[SumGroup, ...]]:
    """The sum groups of a parameter, counted from a base; stages that differ only by their place (in whole nodes) share them."""
    base = places[0].stage.base - (places[0].stage.base % island if island else 0)
    key = tuple((p.stage.lane, p.stage.base - base, id(p.segment.cells), p.operator, p.parameter.name) for p in places)
    if key not in cache:
        shares = tuple(share for place in places for share in shares_of(place, base=base, length=length))
        cache[key] = sum_groups(shares, island=island)
    return base, cache[key]


def shares_of(place: ParameterPlace, *, base: int, length: int) -> list[Share]:
    """What each device contributes to the gradient of a parameter by one use, devices counted from `base`.

    Args:
        length: positions of the sequence.
    """
    operator = place.operator
    order = sorted(range(len(place.parameter.extents)), key=lambda i: place.parameter.extents[i].dim.value)
    extents = [place.parameter.extents[i] for i in order]
    result = []
    for device, cell in place.segment.cells.cells.get(operator.klass, {}).items():
        cuts = cut_dims(cell, operator)
        need: Box = tuple((interval(e, operator, cuts),) for e in extents)
        tokens = token_box(cell, samples=place.stage.samples, length=length)
        if not all(tokens) or any(a >= b for indices in need for a, b in indices):
            continue
        use = (place.use[0], place.segment.run, operator.name)
        result.append(Share(device=device + place.stage.base - base, need=need, work=((use, (*tokens, *_cut_cells(cell, operator))),)))
    return result


def _cut_cells(cell: Cell, operator: Operator) -> Box:
    """The device's part of every dim that could be cut, in runs of the operator's finest extent."""
    cuts = cut_dims(cell, operator)
    dims = sorted(dims_present(operator), key=lambda d: d.value)
    runs = {d: reference_runs(operator, d) for d in dims if d not in (Dim.BATCH, Dim.SEQUENCE)}
    return tuple((image(cuts.get(d, ()), count, count),) for d, count in runs.items())
