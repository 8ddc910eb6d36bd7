"""ZeRO of a plan: sharding degree of each state, and the reduction groups of devices.

How many holders of a parameter share each of its states, and with which devices a device gathers
and reduces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache

from shardwright.hardware.strided_device_list import EMPTY, DeviceList, union
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.identity_cache_keys import Same
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import devices_of
from shardwright.strategy.plan.plan import ALL, Cadence, Plan, Shards, State
from shardwright.strategy.plan.zero_rule_lookup import last_rule

Degrees = tuple[int, int, int]
"""Of optimizer, gradient and parameter; 0 = all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRule:
    """ZeRO of a lane: the stage (0 to 3), and the sharding degree of each state.

    The stage says when collectives run; a degree is the number of members that share a state.

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
    """A reduction group: holders of a parameter that sum its gradient among themselves.

    Sorted; they gather the parameter from each other.

    Args:
        reduced: members that share one sum of the group's gradients at the step's end.
        gradient, parameter: members that share one copy of the gradient between microbatches, and
            of the parameter between uses; each divides the one before.
        lanes: all devices of the group's lanes, where there are several groups.
    """

    devices: DeviceList
    reduced: int
    gradient: int
    parameter: int
    lanes: DeviceList = field(default=EMPTY, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Devices that share the optimizer states of some elements, and their reduction groups.

    Args:
        devices: devices that share optimizer states, sorted.
        optimizer: number of them that share one copy.
        parties: disjoint reduction groups, all devices together; of several, each sums the
            gradients of its own microbatches, and sends the pieces to the owners of the optimizer
            states.
        meets: reduction groups of the plan that hold the elements: one is left of several where
            none shards gradients or parameters of these.
    """

    devices: DeviceList
    optimizer: int
    parties: tuple[Party, ...]
    meets: int = 1

    def party(self, device: int) -> Party:
        """The reduction group that a device belongs to, directly or through its lane."""
        return (
            self.parties[0]
            if len(self.parties) == 1
            else next(p for p in self.parties if device in p.lanes)
        )

    def among(self, device: int, group: DeviceList) -> tuple[DeviceList, DeviceList]:
        """(devices that reduce or gather with `device`, those of them that share optimizer states).

        Args:
            group: all devices that sum the elements.
        """
        if len(self.parties) == 1:
            return group, self.devices
        own_devices = self.party(device).devices
        return own_devices, own_devices

    def stage(self, device: int, zero: int) -> int:
        """ZeRO stage of a device: `zero`, or less where its reduction group shards fewer states.

        Args:
            zero: ZeRO stage of the device's lane.
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
        """True if there are several reduction groups and the device's own shards parameters."""
        return len(self.parties) > 1 and self.party(device).parameter > 1

    @property
    def to_owners(self) -> float:
        """Share of gradients the busiest device sends to state owners; 0 with one group.

            devices / (optimizer x members of the smallest group)

        Each owner receives optimizer^-1 of the elements from every group, whose members give
        equally.
        """
        if len(self.parties) == 1:
            return 0.0
        return len(self.devices) / (self.optimizer * min(len(p.devices) for p in self.parties))

    @property
    def from_owners(self) -> float:
        """Share of parameters the busiest device gets from state owners; 0 with one group."""
        return 0.0 if len(self.parties) == 1 else 1.0 / min(p.reduced for p in self.parties)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardRules:
    """ZeRO rules and reduction groups of all lanes of a plan; equal only to itself.

    Equal only to itself.

    Args:
        lanes: rule of each lane.
        parties: number of the reduction group of each lane.
        devices: devices of each reduction group; empty if there is one.
    """

    lanes: tuple[ShardRule, ...]
    parties: tuple[int, ...]
    devices: tuple[DeviceList, ...] = ()

    def of(self, device: int) -> ShardRule:
        """The ZeRO rule of the lanes that a device is in; of the first lane if it is in none.

        Lanes of one reduction group have one rule.
        """
        party = next(
            (number for number, devices in enumerate(self.devices) if device in devices), None
        )
        return self.lanes[0 if party is None else self.parties.index(party)]

    def sharing(self, klass: ParameterClass, near: DeviceList) -> Sharing:
        """Division of a parameter's states, by its class, among devices that sum its gradient.

        Args:
            near: devices that sum its gradient and use it in one operator.
        """
        return _sharing(self, klass, near)

    def party(self, klass: ParameterClass, near: DeviceList, device: int) -> Party:
        """The reduction group that a device belongs to, for a parameter's class and holders."""
        return self.sharing(klass, near).party(device)


def shard_rules(plan: Plan) -> ShardRules:
    """The ZeRO rules of a plan's lanes, and the reduction groups of the lanes.

    Among the plan's shards that name the class and the lane (or all), the last one holds.

    A lane that some rule names is a reduction group of its own, and all others are one together.

    Left out: the stage and the cadence are those of dense parameters (or of the frozen base that
    they became) for all classes.
    """
    return _shard_rules(Same(plan))


@lru_cache(maxsize=64)
def _shard_rules(keyed_plan: Same[Plan]) -> ShardRules:
    """The ZeRO rules and reduction groups of a plan's lanes (cached by the plan's identity)."""
    plan = keyed_plan.value
    named = [
        lane.name for lane in plan.lanes if any(lane.name in rule.lanes for rule in plan.shards)
    ]
    own_number = {name: number for number, name in enumerate(named)}
    parties = tuple(own_number.get(lane.name, len(named)) for lane in plan.lanes)
    count = len(set(parties))
    devices = [
        union(
            devices
            for lane, party_of_lane in zip(plan.lanes, parties, strict=True)
            if party_of_lane == party
            for devices in _devices(lane)
        )
        for party in (range(count) if count > 1 else ())
    ]
    return ShardRules(
        lanes=tuple(_rule_of_lane(plan, lane.name) for lane in plan.lanes),
        parties=parties,
        devices=tuple(devices),
    )


def _rule_of_lane(plan: Plan, lane: str) -> ShardRule:
    """The ZeRO rule of one lane; of several of the plan's shards for a class, the last holds."""

    def last(*classes: ParameterClass) -> Shards | None:
        """The last of the plan's shards for this lane and any of `classes`; else None."""
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
    """Devices of each placement of a lane's stages."""
    return (
        DeviceList.of(devices_of(p.split, stage.base + p.offset))
        for stage in lane.stages
        for p in stage.placements
    )


def degree(rule: ShardRule, klass: ParameterClass, members: int, *, level: int = 1) -> int:
    """Number of `members` that share a ZeRO `level` state: largest divisor up to the rule's degree.

    Number of members, of a group of `members`, that share one copy of the state.
    """
    wanted = rule.degrees.get(klass, (1, 1, 1))[level - 1]
    if wanted == ALL or wanted >= members:
        return members
    return max(d for d in range(1, wanted + 1) if members % d == 0)


@lru_cache(maxsize=65536)
def _sharing(rules: ShardRules, klass: ParameterClass, near: DeviceList) -> Sharing:
    """Devices that share the states of a parameter, by reduction group (cached)."""
    lanes = rules.devices or (near,)
    rule = (
        dict(zip(rules.parties, rules.lanes, strict=True)) if rules.devices else {0: rules.lanes[0]}
    )
    overlapping = [
        (rule[number], common_devices, lane)
        for number, lane in enumerate(lanes)
        if (common_devices := near.common(lane))
    ]
    optimizer = degree(overlapping[0][0], klass, len(near))
    parties = []
    for lane_rule, common_devices, lane in overlapping:
        gradient, parameter = (
            degree(lane_rule, klass, len(common_devices), level=level) for level in (2, 3)
        )
        reduced = (
            optimizer
            if len(overlapping) == 1
            else gradient
            if gradient > 1
            else len(common_devices)
        )
        parties.append(
            Party(
                devices=common_devices,
                reduced=reduced,
                gradient=gradient,
                parameter=parameter,
                lanes=lane,
            )
        )
    if all(party.gradient == party.parameter == 1 for party in parties):
        parties = [Party(devices=near, reduced=optimizer, gradient=1, parameter=1)]
    return Sharing(
        devices=near, optimizer=optimizer, parties=tuple(parties), meets=len(overlapping)
    )
