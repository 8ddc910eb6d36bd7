"""Who sums which gradients with whom: the groups of every stage of a general plan, from what its
devices contribute.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from shardwright.hardware.device_list import DeviceList
from shardwright.hardware.graph import Units
from shardwright.lazy_dataclass import dataclass
from shardwright.model.gradients import runs_backward, without_gradient
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor import Parameter, ParameterClass
from shardwright.program.block.narrow import is_narrow
from shardwright.program.layout.cells import row_of
from shardwright.program.stages.contribution import Share
from shardwright.program.stages.parameter_sums import ParameterUse, Sums, shares, sums_of
from shardwright.program.stages.parts import Segment, StageParts

Use = tuple[int, int, int]
"""(lane, chunk, segment) of a use of a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """Parameters of one layer of a segment that one device holds and sums with the same devices.

    Args:
        klass: of the parameters.
        elements: local.
        group: devices that sum, sorted; one device = nothing to sum.
        near: of them those that use it in the same operator: states are sharded among them, copies
            of tied weights in other stages have their own.
        uses: all uses, of all lanes.
        trainable: frozen ones have no gradient.
        backward: some use on the device has a backward, which needs it again.
        layers: layers of the segment with these uses.
        narrow: a recipe of few bits quantises them.
        parts: of how many groups that each sum a part of one parameter this is one: those of a
            device that holds more of it than others do.
    """

    klass: ParameterClass
    elements: int
    group: DeviceList
    near: DeviceList
    uses: tuple[Use, ...]
    trainable: bool
    layers: int
    backward: bool = True
    narrow: bool = False
    parts: int = 1

    @property
    def is_tied(self) -> bool:
        """Other stages use it too, under another name:
        its gradient is summed once all others are.
        """
        return self.near is not self.group and self.near != self.group


Holdings = dict[tuple[int, int, int, int], tuple[HeldParameters, ...]]
"""By (lane, chunk, segment, device)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPlace:
    """One use: the operator's segment and its stage."""

    use: Use
    stage: StageParts
    segment: Segment
    operator: Operator
    parameter: Parameter

    @property
    def devices(self) -> DeviceList:
        """Devices that run the operator."""
        return row_of(self.segment.cells.cells.get(self.operator.klass, {})).shifted(
            self.stage.base
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summing:
    """Parameters of a row of layers that the same segments use.

    Args:
        uses: all of them.
        layers: number of layers that are used so.
        base: that devices are counted from.
        sums: of each parameter.
    """

    uses: tuple[Use, ...]
    layers: int
    base: int
    sums: tuple[Sums, ...]


def plan_holdings(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model, length: int, islands: Units | None
) -> Holdings:
    """What the first device of every family of every stage holds of each segment's layers.

    Tied weights are uses of their owner: counted where the owner is used, or else at the first use
    on the device.

    Args:
        length: positions of the main sequence.
        islands: that devices lie in; None: no islands.

    Raises:
        StrategyError: contributions overlap without being equal (rule ``grad.overlap``).
    """
    return held_by_families(
        stages, parameter_sums(stages, model=model, length=length, islands=islands)
    )


def held_by_families(
    stages: tuple[tuple[StageParts, ...], ...],
    summings: Iterable[Summing],
    *,
    of: StageParts | None = None,
) -> Holdings:
    """`plan_holdings` where it is known who sums what; `of`: by the families of one stage."""
    found: dict[Use, dict[int, list[HeldParameters]]] = {}
    moved: dict[tuple[int, int, int], DeviceList] = {}
    shares_of_device: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}

    def shifted(sums: Sums, row: int, base: int) -> DeviceList:
        key = (id(sums.groups), row, base)
        if key not in moved:
            members = sums.groups[row]
            moved[key] = _one(DeviceList.of(members[members >= 0] + base))
        return moved[key]

    for one in summings:
        base = one.base
        for sums in one.sums:
            for number, (use, how) in enumerate(zip(one.uses, sums.uses, strict=True)):
                if of is not None and use[:2] != (of.lane, of.chunk):
                    continue
                near = None if len(one.uses) == 1 else sums.holders(number)
                for device in [family.first for family in stages[use[0]][use[1]].families]:
                    key = (id(sums), number, device - base)
                    if key not in shares_of_device:
                        shares_of_device[key] = sums.of_device(number, device - base)
                    for row, elements in shares_of_device[key]:
                        whole = shifted(sums, row, base)
                        held = HeldParameters(
                            klass=how.parameter.klass,
                            elements=elements,
                            group=whole,
                            near=(
                                whole
                                if near is None
                                else DeviceList.of([d for d in whole if d - base in near])
                            ),
                            uses=one.uses,
                            trainable=how.parameter.trainable,
                            layers=one.layers,
                            backward=how.backward
                            or any(u.backward and device - base in u.devices for u in sums.uses),
                            narrow=is_narrow(how.operator, how.parameter),
                            parts=len(shares_of_device[key]),
                        )
                        found.setdefault(use, {}).setdefault(device, []).append(held)
    return {
        (*use, device): tuple(items)
        for use, by_device in found.items()
        for device, items in by_device.items()
    }


def parameter_sums(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model, length: int, islands: Units | None
) -> Iterator[Summing]:
    """Who sums each parameter of each block, once.

    Stages that differ only by their place (in whole islands) share what their devices sum.
    """
    known: dict[object, tuple[Sums, ...]] = {}
    for stretch in _stretches(stages, model=model):
        spots = [*stretch.spots, *[(p.use, p.stage, p.segment) for p in stretch.others]]
        first = min([stage.base for _, stage, _ in spots])
        base, near = (
            islands.seen_from(first, (stage.devices.last for _, stage, _ in spots))
            if islands is not None
            else (first, None)
        )
        lanes: dict[tuple[int, int, int], int] = {}
        turns = [
            lanes.setdefault((use[0], segment.run, segment.first), len(lanes))
            for use, _, segment in spots
        ]
        alike = (
            stretch.names,
            near and (near.first, near.size),
            tuple(
                [
                    (turn, stage.base - base, id(segment.cells), id(segment.block))
                    for turn, (_, stage, segment) in zip(turns, spots, strict=True)
                ]
            ),
            (
                tuple([(id(p.operator), id(p.parameter)) for p in stretch.others])
                if stretch.others
                else ()
            ),
        )
        if alike not in known:
            each = [zip(stretch.places(*name), turns, strict=True) for name in stretch.names]
            known[alike] = tuple(
                [
                    sums_of(tuple([_use(p, turn, base) for p, turn in places]), length, near)
                    for places in each
                ]
            )
        layers = sum([count for _, count in stretch.layers])
        yield Summing(
            uses=tuple([use for use, *_ in spots]), layers=layers, base=base, sums=known[alike]
        )


@lru_cache(maxsize=65536)
def _one(group: DeviceList) -> DeviceList:
    """Equal groups as one object."""
    return group


def parameter_places(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model
) -> dict[tuple[int, int, str, str], tuple[ParameterPlace, ...]]:
    """By (run, layer, operator, parameter) of a parameter's owner, all its uses:
    the owner's first.
    """
    return {
        (stretch.run, layer, *name): places
        for stretch in _stretches(stages, model=model)
        for name in stretch.names
        for places in (stretch.places(*name),)
        for first, count in stretch.layers
        for layer in range(first, first + count)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Parameters of layers of a run that the same segments use.

    Args:
        layers: (first, number) of each row of them.
        names: (operator, parameter) of their owner.
        spots: segments that use them by the owner's own name.
        others: uses by another name.
    """

    run: int
    layers: tuple[tuple[int, int], ...]
    names: tuple[tuple[str, str], ...]
    spots: tuple[tuple[Use, StageParts, Segment], ...]
    others: tuple[ParameterPlace, ...] = ()

    def places(self, operator: str, parameter: str) -> tuple[ParameterPlace, ...]:
        """All uses of one of the parameters."""
        return (
            *(
                ParameterPlace(use=use, stage=stage, segment=segment, operator=o, parameter=p)
                for use, stage, segment in self.spots
                for o in segment.block.operators
                if o.name == operator
                for p in o.parameters
                if p.name == parameter
            ),
            *self.others,
        )


def _stretches(stages: tuple[tuple[StageParts, ...], ...], *, model: Model) -> Iterator[_Stretch]:
    """Every parameter of every layer once, in the order in which the stages meet them."""
    every = [
        ((s.lane, s.chunk, number), s, segment)
        for lane in stages
        for s in lane
        for number, segment in enumerate(s.segments)
    ]
    owners = {
        f"{b.name}.{p.name}": (i, o.name, p.name)
        for i, b in enumerate(model.blocks)
        for o in b.operators
        for p in o.parameters
    }
    first_run = {run.block: i for i, run in reversed(list(enumerate(model.runs)))}
    named = [
        p.tied_to
        for b in model.blocks
        for o in b.operators
        for p in o.parameters
        if p.tied_to in owners
    ]
    owner_of: dict[str, tuple[int, str, str]] = {
        name: (first_run[owners[name][0]], *owners[name][1:]) for name in named
    }
    borders: dict[int, set[int]] = {run: {1} for run, *_ in owner_of.values()}
    for _, _, segment in every:
        borders.setdefault(segment.run, set()).update(
            (segment.first, segment.first + segment.count)
        )
    owner_runs = {run for run, *_ in owner_of.values()}
    spots: dict[tuple[int, int], list[tuple[Use, StageParts, Segment]]] = {}
    others: dict[tuple[int, str, str], list[ParameterPlace]] = {
        owner: [] for owner in owner_of.values()
    }
    rows: dict[Use, list[tuple[int, int]]] = {}
    ordered = {run: sorted(own) for run, own in borders.items()}
    blocks = {id(segment.block): segment.block for _, _, segment in every}
    tied = {
        key: [(o, p) for o in b.operators for p in o.parameters if p.tied_to in owner_of]
        for key, b in blocks.items()
    }
    for use, stage, segment in every:
        ends = ordered[segment.run]
        own = ends[
            bisect_left(ends, segment.first) : bisect_right(ends, segment.first + segment.count)
        ]
        rows[use] = [(first, end - first) for first, end in pairwise(own)]
        for first, _ in rows[use]:
            spots.setdefault((segment.run, first), []).append((use, stage, segment))
        for operator, parameter in tied[id(segment.block)]:
            place = ParameterPlace(
                use=use, stage=stage, segment=segment, operator=operator, parameter=parameter
            )
            others[owner_of[parameter.tied_to]].append(place)
    told: set[tuple[int, int, str, str]] = set()
    # Rows of which all parameters have been told together; by block its parameters, none where one
    # is tied.
    told_whole: set[tuple[int, int]] = set()
    names_of = {
        key: tuple([(o.name, p.name) for o in b.operators for p in o.parameters])
        for key, b in blocks.items()
        if not tied[key]
    }
    for use, _, segment in every:
        block, together = segment.block, spots[segment.run, segment.first]
        names = None if segment.run in owner_runs else names_of.get(id(block))
        alike: dict[tuple[Use, ...], list[tuple[int, int]]] = {}
        for row in rows[use]:
            alike.setdefault(tuple([spot[0] for spot in spots[segment.run, row[0]]]), []).append(
                row
            )
        if (
            names is not None
            and len(alike) == 1
            and {id(other.block) for _, _, other in together} == {id(block)}
        ):
            if together[0][0] == use:
                told_whole.add((segment.run, segment.first))
                yield _Stretch(
                    run=segment.run, layers=tuple(rows[use]), names=names, spots=tuple(together)
                )
            continue
        for name, p in ((o.name, p) for o in block.operators for p in o.parameters):
            owner = owner_of.get(p.tied_to or "", (segment.run, name, p.name))
            parts = [[(0, 1)]] if p.tied_to in owner_of else list(alike.values())
            if owner in others:
                parts = [
                    part
                    for some in parts
                    for part in ([r for r in some if not r[0]], [r for r in some if r[0]])
                    if part
                ]
            for layers in parts:
                run, first = owner[0], layers[0][0]
                if (run, first) not in told_whole and (run, first, *owner[1:]) not in told:
                    told.add((run, first, *owner[1:]))
                    yield _Stretch(
                        run=run,
                        layers=tuple(layers),
                        names=(owner[1:],),
                        spots=tuple(
                            s
                            for s in spots.get((run, first), ())
                            if any(o.name == owner[1] for o in s[2].block.operators)
                        ),
                        others=() if first else tuple(others.get(owner, ())),
                    )


def shares_of(place: ParameterPlace, *, base: int, length: int) -> list[Share]:
    """What each device contributes to the gradient of a parameter by one use, devices counted from
    `base`.

    Args:
        length: positions of the sequence.
    """
    # Layers that share a parameter are in several segments: each does other work on the same
    # tokens.
    return shares(
        _use(place, 0, base),
        (place.use[0], place.segment.run, place.segment.first, place.operator.name),
        length,
    )


def _use(place: ParameterPlace, turn: int, base: int) -> ParameterUse:
    """A use as `sums_of` takes it."""
    offset, cells = place.stage.base - base, place.segment.cells
    backward = runs_backward(place.operator, without_gradient(place.segment.block))
    return ParameterUse(
        turn=turn,
        offset=offset,
        cells=cells,
        operator=place.operator,
        parameter=place.parameter,
        backward=backward,
    )
