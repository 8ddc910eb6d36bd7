"""Parameters that devices of a general plan hold, and the groups that sum their gradients.

From the contributions of the devices of every stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.model.tensors_without_gradient import runs_backward, without_gradient
from shardwright.program.block.operators_quantised_by_recipe import is_narrow
from shardwright.program.stages.device_shares_of_parameter_use import ParameterUse, device_shares
from shardwright.program.stages.find_gradient_sum_groups import Sums, sums_of
from shardwright.program.stages.gradient_sum_groups import GradientShare
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.stages.uses_of_each_parameter import (
    ParameterPlace,
    Use,
    parameter_stretches,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """Parameters of one layer of a segment that one device holds and sums with the same devices.

    Args:
        klass: class of the parameters.
        elements: local elements.
        group: devices that sum, sorted; one device = nothing to sum.
        near: devices of the group that use the parameters in the same operator: states are sharded
            among them; copies of tied weights in other stages have their own.
        uses: all uses, of all lanes.
        trainable: frozen parameters have no gradient.
        backward: some use on the device has a backward, which needs the parameters again.
        layers: layers of the segment with these uses.
        narrow: a recipe of 8 or 4 bits quantises the parameters.
        parts: number of groups that each sum a part of one parameter, of which this is one: on a
            device that holds more of it than other devices do.
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
        """True if other stages use the parameters too, under another name (tied weights).

        Their gradient is summed once all others are.
        """
        return self.near is not self.group and self.near != self.group


Holdings = dict[tuple[int, int, int, int], tuple[HeldParameters, ...]]
"""By (lane, chunk, segment, device)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summing:
    """Parameters of consecutive layers that the same segments use, and the groups that sum them.

    Args:
        uses: all uses of the parameters.
        layers: number of layers that are used so.
        base: device from which devices are counted.
        sums: groups that sum each parameter.
    """

    uses: tuple[Use, ...]
    layers: int
    base: int
    sums: tuple[Sums, ...]


def plan_holdings(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model, length: int, islands: Units | None
) -> Holdings:
    """Parameters that each family's first device holds, by (lane, chunk, segment, device).

    For each segment's layers.

    Tied weights are uses of their owner: counted where the owner is used, or else at the first use
    on the device.

    Args:
        length: positions of the main sequence.
        islands: islands of the devices; None: no islands.

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
    only_stage: StageParts | None = None,
) -> Holdings:
    """Parameters that each family's first device holds, by its place, from known groups.

    See `plan_holdings`.

    Args:
        summings: see `parameter_sums`.
        only_stage: leave out all other stages.
    """
    held_by_use: dict[Use, dict[int, list[HeldParameters]]] = {}
    shifted_groups: dict[tuple[int, int, int], DeviceList] = {}
    shares_of_device: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}

    def shifted(sums: Sums, row: int, first_device: int) -> DeviceList:
        key = (id(sums.groups), row, first_device)
        if key not in shifted_groups:
            members = sums.groups[row]
            shifted_groups[key] = _interned_group(
                DeviceList.of(members[members >= 0] + first_device)
            )
        return shifted_groups[key]

    for summing in summings:
        base = summing.base
        for sums in summing.sums:
            for number, (use, parameter_use) in enumerate(
                zip(summing.uses, sums.uses, strict=True)
            ):
                if only_stage is not None and use[:2] != (only_stage.lane, only_stage.chunk):
                    continue
                near = None if len(summing.uses) == 1 else sums.holders(number)
                for device in [family.first for family in stages[use[0]][use[1]].families]:
                    key = (id(sums), number, device - base)
                    if key not in shares_of_device:
                        shares_of_device[key] = sums.of_device(number, device - base)
                    for row, elements in shares_of_device[key]:
                        group = shifted(sums, row, base)
                        parameters = HeldParameters(
                            klass=parameter_use.parameter.klass,
                            elements=elements,
                            group=group,
                            near=(
                                group
                                if near is None
                                else DeviceList.of([d for d in group if d - base in near])
                            ),
                            uses=summing.uses,
                            trainable=parameter_use.parameter.trainable,
                            layers=summing.layers,
                            backward=parameter_use.backward
                            or any(u.backward and device - base in u.devices for u in sums.uses),
                            narrow=is_narrow(parameter_use.operator, parameter_use.parameter),
                            parts=len(shares_of_device[key]),
                        )
                        held_by_use.setdefault(use, {}).setdefault(device, []).append(parameters)
    return {
        (*use, device): tuple(items)
        for use, by_device in held_by_use.items()
        for device, items in by_device.items()
    }


def parameter_sums(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model, length: int, islands: Units | None
) -> Iterator[Summing]:
    """Yield the groups that sum each parameter's gradient, layers with the same uses together.

    Stages that differ only by their place (in whole islands) share them.
    """
    sums_of_form: dict[object, tuple[Sums, ...]] = {}
    for stretch in parameter_stretches(stages, model=model):
        spots = [*stretch.spots, *[(p.use, p.stage, p.segment) for p in stretch.others]]
        first_device = min([stage.base for _, stage, _ in spots])
        base, islands_seen = (
            islands.seen_from(first_device, (stage.devices.last for _, stage, _ in spots))
            if islands is not None
            else (first_device, None)
        )
        lanes: dict[tuple[int, int, int], int] = {}
        turns = [
            lanes.setdefault((use[0], segment.run, segment.first), len(lanes))
            for use, _, segment in spots
        ]
        alike = (
            stretch.names,
            islands_seen and (islands_seen.first, islands_seen.size),
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
        if alike not in sums_of_form:
            places_of_names = [
                zip(stretch.places(*name), turns, strict=True) for name in stretch.names
            ]
            sums_of_form[alike] = tuple(
                [
                    sums_of(
                        tuple([_parameter_use(p, turn, base) for p, turn in places]),
                        length,
                        islands_seen,
                    )
                    for places in places_of_names
                ]
            )
        layers = sum([count for _, count in stretch.layers])
        yield Summing(
            uses=tuple([use for use, *_ in spots]),
            layers=layers,
            base=base,
            sums=sums_of_form[alike],
        )


@lru_cache(maxsize=65536)
def _interned_group(group: DeviceList) -> DeviceList:
    """One object for equal device groups."""
    return group


def shares_of(place: ParameterPlace, *, first_device: int, length: int) -> list[GradientShare]:
    """Contribution of each device, from `first_device` on, to a parameter's gradient by one use.

    Devices are counted from `first_device`.

    Args:
        length: positions of the sequence.
    """
    # Layers that share a parameter are in several segments: each does other work on the same
    # tokens.
    return device_shares(
        _parameter_use(place, 0, first_device),
        (place.use[0], place.segment.run, place.segment.first, place.operator.name),
        length,
    )


def _parameter_use(place: ParameterPlace, turn: int, first_device: int) -> ParameterUse:
    """A parameter's use for `sums_of`; its stage starts `offset` devices past `first_device`."""
    offset, cells = place.stage.base - first_device, place.segment.cells
    backward = runs_backward(place.operator, without_gradient(place.segment.block))
    return ParameterUse(
        turn=turn,
        offset=offset,
        cells=cells,
        operator=place.operator,
        parameter=place.parameter,
        backward=backward,
    )
