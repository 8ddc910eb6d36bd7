"""Buckets of parameters, the devices that sum each bucket, and the devices that share its optimizer
states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import cast

from shardwright.cost.gradients.plan_synchronisation import bucket_of
from shardwright.errors import StrategyError
from shardwright.execute.device_state.device_parameters import Key
from shardwright.execute.device_state.gradient_reduction import Groups, in_own_order
from shardwright.execute.device_state.optimizer_shards import Bucket, Sharers
from shardwright.hardware.device_list import DeviceList
from shardwright.lazy_dataclass import dataclass
from shardwright.model.backward_reach import runs_backward, without_gradient
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.layout.tensor_layout import Box
from shardwright.program.stages.gradient_sum_groups import SumGroup
from shardwright.program.stages.held_parameters import ParameterPlace, parameter_places
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.zero_sharding import Party, ShardRules, Sharing
from shardwright.strategy.plan.plan import Cadence

Stages = frozenset[tuple[int, int]]


def plan_buckets(
    stages: tuple[tuple[StageParts, ...], ...], groups: Groups, *, model: Model, rules: ShardRules
) -> tuple[Bucket, ...]:
    """The buckets of a plan.

    A bucket is of one layer where several devices sum it, so that the sum may begin when the layer
    is done, and where parameters are gathered at each use, or gradients summed after each
    microbatch. Frozen parameters are in buckets of their own, those apart that no backward needs,
    and in none where every holder has them whole.

    Args:
        groups: of all parameters, trained or not.

    Left out: units ``dim0`` and ``whole`` and shares by memory: a bucket is cut evenly, as one flat
    tensor.

    Raises:
        StrategyError: zero.nested if degrees of a group do not divide each other.
    """
    places = parameter_places(stages, model=model)
    found: dict[tuple[object, ...], list[tuple[Key, tuple[Box, ...], int]]] = {}
    by_layer = any(
        (rule.gather, rule.reduce) != (Cadence.STEP, Cadence.STEP) for rule in rules.lanes
    )
    users = {key: _users(places[key]) for key in sorted(groups)}
    beside = _beside(groups, users)
    for key, used in users.items():
        for group in groups[key]:
            for number, own in enumerate(group.groups):
                holders, sharers = _holders(own, group), []
                for devices in _sharing(holders, used, beside):
                    sharers.append(
                        _sharers(
                            rules.sharing(used.klass, DeviceList.of(devices)),
                            key,
                            trainable=used.trainable,
                        )
                    )
                if not used.trainable and all(
                    p.degrees[2] == 1 for s in sharers for p in (s.parties or (s,))
                ):
                    continue
                together = frozenset(
                    d
                    for one in sharers
                    for p in (one.parties or (one,))
                    for d in _alike(p.devices, holders, one, used)
                )
                mark = (
                    tuple(sorted(own)),
                    group.copies,
                    tuple(sharers),
                    number == 0,
                    together,
                    used.trainable,
                    used.backward,
                    key[:2] if by_layer or len(own) > 1 else (),
                )
                found.setdefault(mark, []).append(
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
            sharers=cast(tuple[Sharers, ...], sharers),
            counted=bool(counted),
            together=cast(frozenset[int], together),
            trainable=bool(trainable),
        )
        for number, (
            (members, copies, sharers, counted, together, trainable, *_),
            parts,
        ) in enumerate(found.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Users:
    """Devices that use a parameter: the stages that each has it in, and the operator that has it
    first. `backward`: of some use.
    """

    klass: ParameterClass
    trainable: bool
    backward: bool
    stages: dict[int, Stages]
    operator: dict[int, str]

    def alike(self, holders: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Holders by operator: several where the parameter is tied."""
        names = dict.fromkeys(self.operator[d] for d in holders)
        return [tuple(d for d in holders if self.operator[d] == name) for name in names]

    def stand(self, device: int) -> tuple[int, Stages, bool]:
        """The properties that a device's matrices in one bucket share: own or duplicate, stages,
        experts or not.
        """
        return device, self.stages[device], self.klass is ParameterClass.EXPERTS


def _users(uses: tuple[ParameterPlace, ...]) -> _Users:
    stages: dict[int, set[tuple[int, int]]] = {}
    operator: dict[int, str] = {}
    for place in uses:
        for device in place.devices:
            stages.setdefault(device, set()).add((place.stage.lane, place.stage.chunk))
            operator.setdefault(device, place.operator.name)
    first = uses[0].parameter
    return _Users(
        klass=first.klass,
        trainable=first.trainable,
        backward=any(runs_backward(p.operator, without_gradient(p.segment.block)) for p in uses),
        stages={d: frozenset(found) for d, found in stages.items()},
        operator=operator,
    )


def _holders(own: Iterable[int], group: SumGroup) -> tuple[int, ...]:
    """The devices that sum, and duplicates."""
    return tuple(sorted({*own, *(d for copy in group.copies for d in copy)}))


Beside = Mapping[tuple[int, Stages, bool], set[tuple[int, ...]]]
"""By `_Users.stand`: the holders of all parameters that are not tied."""


def _beside(groups: Groups, users: Mapping[Key, _Users]) -> Beside:
    found: dict[tuple[int, Stages, bool], set[tuple[int, ...]]] = {}
    for key, used in users.items():
        for holders in (_holders(own, group) for group in groups[key] for own in group.groups):
            for device in holders if len(used.alike(holders)) == 1 else ():
                found.setdefault(used.stand(device), set()).add(holders)
    return found


def _sharing(holders: tuple[int, ...], used: _Users, beside: Beside) -> list[tuple[int, ...]]:
    """Devices that share states: of a tied parameter those of one operator, of others those of a
    bucket (`plan_synchronisation.placed_in_buckets`).
    """
    alike = used.alike(holders)
    if len(alike) > 1:
        return alike
    every = DeviceList.of(holders)
    parts = sorted(
        {tuple(bucket_of(every, map(DeviceList.of, beside[used.stand(d)]))) for d in holders}
    )
    return parts if sum(map(len, parts)) == len(holders) else [holders]


def _sharers(sharing: Sharing, key: Key, *, trainable: bool) -> Sharers:
    """The sharers of a bucket, with their parties where there are several; for frozen parameters,
    the parameter's degree alone.
    """
    if not trainable:
        parties = tuple(_cut(party, (party.parameter,) * 3, key) for party in sharing.parties)
        return (
            parties[0]
            if len(parties) == 1
            else Sharers(devices=tuple(sharing.devices), degrees=(1, 1, 1), parties=parties)
        )
    if len(sharing.parties) == 1:
        (party,) = sharing.parties
        return _cut(party, (sharing.optimizer, party.gradient, party.parameter), key)
    parties = tuple(
        _cut(party, (party.reduced, party.gradient, party.parameter), key)
        for party in sharing.parties
    )
    return Sharers(
        devices=tuple(sharing.devices), degrees=(sharing.optimizer, 1, 1), parties=parties
    )


def _cut(party: Party, cut: tuple[int, int, int], key: Key) -> Sharers:
    _nested(cut, key)
    return Sharers(devices=tuple(party.devices), degrees=cut)


def _alike(
    party: tuple[int, ...], holders: tuple[int, ...], sharers: Sharers, used: _Users
) -> tuple[int, ...]:
    """The devices of a party if the same stages of each work on the parameter: of the only one, if
    those of all holders do.
    """
    devices = party if sharers.parties else holders
    return party if len({used.stages[d] for d in devices}) == 1 else ()


def _nested(cut: tuple[int, ...], key: Key) -> None:
    for finer, outer in pairwise(cut):
        if finer % outer:
            raise StrategyError(
                f"states of {key[2]}.{key[3]} are cut {'/'.join(map(str, cut))}",
                hint="degrees of optimizer, gradient and parameter each divide the one before",
                rule="zero.nested",
            )
