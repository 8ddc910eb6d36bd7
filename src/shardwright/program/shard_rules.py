"""ZeRO of a plan: which states of a parameter how many of its holders share, and with whom a device
gathers and reduces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache

from shardwright.hardware.device_list import EMPTY, DeviceList, union
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.tensor import ParameterClass
from shardwright.program.same import Same
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.plan import ALL, Cadence, Plan, Shards, State
from shardwright.strategy.plan.shard_lookup import last_rule
from shardwright.strategy.plan.split import devices_of

Degrees = tuple[int, int, int]
"""Of optimizer, gradient and parameter; 0 = all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRule:
    """ZeRO of a lane as a stage (0 to 3) that says when collectives run, and how many members share
    each state.

    Args:
        degrees: by class.
        offload: percent of the optimizer's states on the host.
        gather, reduce: cadence of parameters and of gradients.
    """

    zero: int
    degrees: dict[ParameterClass, Degrees]
    offload: int
    gather: Cadence = Cadence.STEP
    reduce: Cadence = Cadence.STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Holders of a parameter, sorted, that sum its gradient among themselves and gather it from
    each other.

    Args:
        reduced: members that share one sum of the party's gradients at the step's end.
        gradient, parameter: those that share one copy of the gradient between microbatches, and of
            the parameter between uses; each divides the one before.
        lanes: all devices of its lanes, where there are several parties.
    """

    devices: DeviceList
    reduced: int
    gradient: int
    parameter: int
    lanes: DeviceList = field(default=EMPTY, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Who shares the states of some elements.

    Args:
        devices: that share optimizer states, sorted.
        optimizer: of them, those that share one copy.
        parties: disjoint, all devices together; of several, each sums what its own microbatches
            gave, and sends the pieces to the owners of the optimizer states.
        meets: parties of the plan that hold them: one is left of several where none shards
            gradients or parameters of these.
    """

    devices: DeviceList
    optimizer: int
    parties: tuple[Party, ...]
    meets: int = 1

    def party(self, device: int) -> Party:
        """The party of a device: of a duplicate that sums nothing, that of its lane."""
        return (
            self.parties[0]
            if len(self.parties) == 1
            else next(p for p in self.parties if device in p.lanes)
        )

    def among(self, device: int, group: DeviceList) -> tuple[DeviceList, DeviceList]:
        """Who moves the elements together with a device, and of them those that share states: of
        several parties its own alone.

        Args:
            group: all devices that sum them.
        """
        if len(self.parties) == 1:
            return group, self.devices
        own = self.party(device).devices
        return own, own

    def stage(self, device: int, zero: int) -> int:
        """The ZeRO stage as which a device moves these elements: of several parties, which meet
        once a step, the highest state counts that its own shares.

        Args:
            zero: of the device's lane.
        """
        if self.meets == 1:
            return zero
        party = self.party(device)
        shared = (self.optimizer, party.gradient, party.parameter)
        return min(
            zero,
            max((level for level, degree in enumerate(shared, start=1) if degree > 1), default=0),
        )

    def is_apart(self, device: int) -> bool:
        """Optimizer states of a device are of elements outside its shard of the parameters."""
        return len(self.parties) > 1 and self.party(device).parameter > 1

    @property
    def to_owners(self) -> float:
        """Part of the elements that the busiest device sends in pieces of gradients to the owners
        of optimizer states; 0: one party.

            devices / (optimizer x members of the smallest party)

        Each owner receives optimizer^-1 of the elements from every party, whose members give
        equally.
        """
        if len(self.parties) == 1:
            return 0.0
        return len(self.devices) / (self.optimizer * min(len(p.devices) for p in self.parties))

    @property
    def from_owners(self) -> float:
        """Part of the elements that the busiest device receives from the owners of optimizer states
        after the update; 0: one party.
        """
        return 0.0 if len(self.parties) == 1 else 1.0 / min(p.reduced for p in self.parties)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardRules:
    """ZeRO of a plan. Equal only to itself.

    Args:
        lanes: of each.
        parties: number of the party of each lane.
        devices: of each party; empty if there is one.
    """

    lanes: tuple[ShardRule, ...]
    parties: tuple[int, ...]
    devices: tuple[DeviceList, ...] = ()

    def of(self, device: int) -> ShardRule:
        """The rule of the lanes of a device: those of one party have one."""
        party = next(
            (number for number, devices in enumerate(self.devices) if device in devices), None
        )
        return self.lanes[0 if party is None else self.parties.index(party)]

    def sharing(self, klass: ParameterClass, near: DeviceList) -> Sharing:
        """Who shares the states of a parameter of a class that the devices `near` sum, of those
        that use it in one operator.
        """
        return _sharing(self, klass, near)

    def party(self, klass: ParameterClass, near: DeviceList, device: int) -> Party:
        """The party of a device in that."""
        return self.sharing(klass, near).party(device)


def shard_rules(plan: Plan) -> ShardRules:
    """The rules of a plan: of those that name a class, or all, and a lane, or all, the last one
    holds.

    A lane that some rule names is a party of its own, and all others are one together.

    Left out: the stage and the cadence are those of dense parameters (or of the frozen base that
    they became) for all classes.
    """
    return _shard_rules(Same(plan))


@lru_cache(maxsize=64)
def _shard_rules(one: Same[Plan]) -> ShardRules:
    plan = one.value
    named = [
        lane.name for lane in plan.lanes if any(lane.name in rule.lanes for rule in plan.shards)
    ]
    alone = {name: number for number, name in enumerate(named)}
    parties = tuple(alone.get(lane.name, len(named)) for lane in plan.lanes)
    count = len(set(parties))
    devices = [
        union(
            devices
            for lane, own in zip(plan.lanes, parties, strict=True)
            if own == party
            for devices in _devices(lane)
        )
        for party in (range(count) if count > 1 else ())
    ]
    return ShardRules(
        lanes=tuple(_rule(plan, lane.name) for lane in plan.lanes),
        parties=parties,
        devices=tuple(devices),
    )


def _rule(plan: Plan, lane: str) -> ShardRule:
    def last(*classes: ParameterClass) -> Shards | None:
        return last_rule(plan.shards, *(klass.value for klass in classes), lane=lane)

    dense = last(ParameterClass.DENSE) or last(ParameterClass.BASE) or last(*ParameterClass)
    if dense is None:
        return ShardRule(zero=0, degrees={}, offload=0)
    degrees = {
        k: (r.optimizer, r.gradient, r.parameter)
        for k in ParameterClass
        if (r := last(k)) is not None
    }
    of_dense = (dense.optimizer, dense.gradient, dense.parameter)
    zero = next(
        (level for level, wanted in zip((3, 2, 1), reversed(of_dense), strict=True) if wanted != 1),
        0,
    )
    # A base has no gradients and no states: where all that was dense became one, the rule of the
    # adapters says about theirs.
    of_states = (
        last(ParameterClass.DENSE)
        or last(*(k for k in ParameterClass if k is not ParameterClass.BASE))
        or dense
    )
    offload = dict(of_states.host).get(State.OPTIMIZER, 0)
    return ShardRule(
        zero=zero, degrees=degrees, offload=offload, gather=dense.gather, reduce=of_states.reduce
    )


def _devices(lane: Lane) -> Iterator[DeviceList]:
    return (
        DeviceList.of(devices_of(p.split, stage.base + p.offset))
        for stage in lane.stages
        for p in stage.placements
    )


def degree(rule: ShardRule, klass: ParameterClass, members: int, *, level: int = 1) -> int:
    """Members, of a group of so many, that share one copy of the state which ZeRO stage `level`
    begins to shard.
    """
    wanted = rule.degrees.get(klass, (1, 1, 1))[level - 1]
    if wanted == ALL or wanted >= members:
        return members
    return max(d for d in range(1, wanted + 1) if members % d == 0)


@lru_cache(maxsize=65536)
def _sharing(rules: ShardRules, klass: ParameterClass, near: DeviceList) -> Sharing:
    lanes = rules.devices or (near,)
    rule = (
        dict(zip(rules.parties, rules.lanes, strict=True)) if rules.devices else {0: rules.lanes[0]}
    )
    met = [
        (rule[number], own, lane) for number, lane in enumerate(lanes) if (own := near.common(lane))
    ]
    optimizer = degree(met[0][0], klass, len(near))
    parties = []
    for one, own, lane in met:
        gradient, parameter = (degree(one, klass, len(own), level=level) for level in (2, 3))
        reduced = optimizer if len(met) == 1 else gradient if gradient > 1 else len(own)
        parties.append(
            Party(devices=own, reduced=reduced, gradient=gradient, parameter=parameter, lanes=lane)
        )
    if all(party.gradient == party.parameter == 1 for party in parties):
        parties = [Party(devices=near, reduced=optimizer, gradient=1, parameter=1)]
    return Sharing(devices=near, optimizer=optimizer, parties=tuple(parties), meets=len(met))
