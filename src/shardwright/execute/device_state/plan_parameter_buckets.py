"""Buckets of parameters: the devices that sum each one, and those that share its states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import cast

from shardwright.cost.gradients.reduction_groups_of_plan_gradient_buckets import bucket_of
from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import Key
from shardwright.execute.device_state.sum_each_parameter_gradient_over_devices import (
    Groups,
    in_own_order,
)
from shardwright.execute.device_state.zero_bucket_collectives import Bucket, ShardGroup
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.model.tensors_without_gradient import runs_backward, without_gradient
from shardwright.program.layout.tensor_layout import Box
from shardwright.program.stages.gradient_sum_groups import SumGroup
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.stages.uses_of_each_parameter import ParameterPlace, parameter_places
from shardwright.program.zero_sharding import Party, ShardRules, Sharing
from shardwright.strategy.plan.plan import Cadence

Stages = frozenset[tuple[int, int]]


def plan_buckets(
    stages: tuple[tuple[StageParts, ...], ...], groups: Groups, *, model: Model, rules: ShardRules
) -> tuple[Bucket, ...]:
    """Group a plan's parameters into buckets by the devices that sum them and share their states.

    A bucket holds parameters of one layer where several devices sum it (so that the sum may begin
    when the layer is done), and where parameters are gathered at each use or gradients summed after
    each microbatch. Frozen parameters have separate buckets, with others for those that no backward
    pass needs, and none where every holder has the full parameter.

    Args:
        groups: sum groups of all parameters, trained or not.

    Left out: units ``dim0`` and ``whole`` and shares by memory: a bucket is cut evenly, as one flat
    tensor.

    Raises:
        StrategyError: zero.nested if degrees of a group do not divide each other.
    """
    places = parameter_places(stages, model=model)
    parts_by_bucket: dict[tuple[object, ...], list[tuple[Key, tuple[Box, ...], int]]] = {}
    by_layer = any(
        (rule.gather, rule.reduce) != (Cadence.STEP, Cadence.STEP) for rule in rules.lanes
    )
    users = {key: _parameter_uses(places[key]) for key in sorted(groups)}
    beside = _holders_by_position(groups, users)
    for key, uses in users.items():
        for group in groups[key]:
            for number, summing in enumerate(group.groups):
                holders, sharers = _holders(summing, group), []
                for devices in _state_sharing_groups(holders, uses, beside):
                    sharers.append(
                        _shard_group(
                            rules.sharing(uses.klass, DeviceList.of(devices)),
                            key,
                            trainable=uses.trainable,
                        )
                    )
                if not uses.trainable and all(
                    g.degrees[2] == 1 for s in sharers for g in (s.reduction_groups or (s,))
                ):
                    continue
                in_same_stages = frozenset(
                    d
                    for sharer in sharers
                    for reduction_group in (sharer.reduction_groups or (sharer,))
                    for d in _devices_in_same_stages(reduction_group.devices, holders, sharer, uses)
                )
                bucket_key = (
                    tuple(sorted(summing)),
                    group.copies,
                    tuple(sharers),
                    number == 0,
                    in_same_stages,
                    uses.trainable,
                    uses.backward,
                    key[:2] if by_layer or len(summing) > 1 else (),
                )
                parts_by_bucket.setdefault(bucket_key, []).append(
                    (
                        key,
                        tuple(in_own_order(model, key, box) for box in group.boxes),
                        group.elements,
                    )
                )
    return tuple(
        Bucket(
            number=number,
            boxes=tuple((key, boxes) for key, boxes, _ in parts),
            sizes=tuple(size for _, _, size in parts),
            members=cast(tuple[int, ...], members),
            copies=cast(tuple[tuple[int, ...], ...], copies),
            sharers=cast(tuple[ShardGroup, ...], sharers),
            counted=bool(counted),
            in_same_stages=cast(frozenset[int], in_same_stages),
            trainable=bool(trainable),
        )
        for number, (
            (members, copies, sharers, counted, in_same_stages, trainable, *_),
            parts,
        ) in enumerate(parts_by_bucket.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParameterUses:
    """Uses of a parameter: the stages in which each device has it, and its first operator.

    `backward`: some use has a backward pass.
    """

    klass: ParameterClass
    trainable: bool
    backward: bool
    stages: dict[int, Stages]
    operator: dict[int, str]

    def holders_by_operator(self, holders: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Devices that hold the parameter, grouped by the first operator that uses it there."""
        names = dict.fromkeys(self.operator[d] for d in holders)
        return [tuple(d for d in holders if self.operator[d] == name) for name in names]

    def bucket_position(self, device: int) -> tuple[int, Stages, bool]:
        """(device, its stages, True for experts): equal for parameters that may share a bucket."""
        return device, self.stages[device], self.klass is ParameterClass.EXPERTS


def _parameter_uses(uses: tuple[ParameterPlace, ...]) -> _ParameterUses:
    """Stages and first operator by device, and gradient flags, of a parameter's places."""
    stages: dict[int, set[tuple[int, int]]] = {}
    operator: dict[int, str] = {}
    for place in uses:
        for device in place.devices:
            stages.setdefault(device, set()).add((place.stage.lane, place.stage.chunk))
            operator.setdefault(device, place.operator.name)
    first = uses[0].parameter
    return _ParameterUses(
        klass=first.klass,
        trainable=first.trainable,
        backward=any(runs_backward(p.operator, without_gradient(p.segment.block)) for p in uses),
        stages={d: frozenset(chunks) for d, chunks in stages.items()},
        operator=operator,
    )


def _holders(summing: Iterable[int], group: SumGroup) -> tuple[int, ...]:
    """Devices that hold the same elements: those that sum the gradient, and their duplicates."""
    return tuple(sorted({*summing, *(d for copy in group.copies for d in copy)}))


HoldersByPosition = Mapping[tuple[int, Stages, bool], set[tuple[int, ...]]]
"""By `bucket_position`: the holders of all parameters that are not tied."""


def _holders_by_position(groups: Groups, users: Mapping[Key, _ParameterUses]) -> HoldersByPosition:
    """Bucket position (device, stages, class) -> holders of the untied parameters there."""
    holders_at: dict[tuple[int, Stages, bool], set[tuple[int, ...]]] = {}
    for key, uses in users.items():
        for holders in (
            _holders(summing, group) for group in groups[key] for summing in group.groups
        ):
            for device in holders if len(uses.holders_by_operator(holders)) == 1 else ():
                holders_at.setdefault(uses.bucket_position(device), set()).add(holders)
    return holders_at


def _state_sharing_groups(
    holders: tuple[int, ...], uses: _ParameterUses, holders_at: HoldersByPosition
) -> list[tuple[int, ...]]:
    """Groups of devices that divide optimizer states: by operator if tied, else by bucket.

    See `program.stages.gradient_sum_groups`.
    """
    tied_groups = uses.holders_by_operator(holders)
    if len(tied_groups) > 1:
        return tied_groups
    all_holders = DeviceList.of(holders)
    parts = sorted(
        {
            tuple(bucket_of(all_holders, map(DeviceList.of, holders_at[uses.bucket_position(d)])))
            for d in holders
        }
    )
    return parts if sum(map(len, parts)) == len(holders) else [holders]


def _shard_group(sharing: Sharing, key: Key, *, trainable: bool) -> ShardGroup:
    """Devices of a bucket with their ZeRO degrees, divided into reduction groups if several.

    Frozen parameters have only the parameter's degree.
    """
    if not trainable:
        groups = tuple(
            _shard_group_of_party(group, (group.parameter,) * 3, key) for group in sharing.parties
        )
        return (
            groups[0]
            if len(groups) == 1
            else ShardGroup(
                devices=tuple(sharing.devices), degrees=(1, 1, 1), reduction_groups=groups
            )
        )
    if len(sharing.parties) == 1:
        (group,) = sharing.parties
        return _shard_group_of_party(
            group, (sharing.optimizer, group.gradient, group.parameter), key
        )
    groups = tuple(
        _shard_group_of_party(group, (group.reduced, group.gradient, group.parameter), key)
        for group in sharing.parties
    )
    return ShardGroup(
        devices=tuple(sharing.devices), degrees=(sharing.optimizer, 1, 1), reduction_groups=groups
    )


def _shard_group_of_party(group: Party, degrees: tuple[int, int, int], key: Key) -> ShardGroup:
    """Devices of one reduction group with ZeRO degrees, each of which divides the one before."""
    _require_nested_degrees(degrees, key)
    return ShardGroup(devices=tuple(group.devices), degrees=degrees)


def _devices_in_same_stages(
    group: tuple[int, ...], holders: tuple[int, ...], sharers: ShardGroup, uses: _ParameterUses
) -> tuple[int, ...]:
    """`group` if all of it (of a single group: all holders) has the same stages; else ().

    Of a single group, all holders must.
    """
    devices = group if sharers.reduction_groups else holders
    return group if len({uses.stages[d] for d in devices}) == 1 else ()


def _require_nested_degrees(degrees: tuple[int, ...], key: Key) -> None:
    """Raise `StrategyError` unless each ZeRO degree divides the one before."""
    for finer, outer in pairwise(degrees):
        if finer % outer:
            raise StrategyError(
                f"states of {key[2]}.{key[3]} are cut {'/'.join(map(str, degrees))}",
                hint="degrees of optimizer, gradient and parameter each divide the one before",
                rule="zero.nested",
            )
