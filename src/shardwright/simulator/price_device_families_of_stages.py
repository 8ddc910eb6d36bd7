"""Costs of every device family of a plan's stages, with one price for families of equal inputs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from functools import lru_cache

from shardwright.cost.network.disable_fused_overlap_beyond_nvlink import with_overlap_of
from shardwright.cost.network.networks_of_plan_devices import working_problem
from shardwright.cost.step.device_family_synchronisation import Shape
from shardwright.cost.step.price_one_stage_device_family import family_costs
from shardwright.cost.step.stage_action_seconds import FamilyCosts, Sharing, StageCosts
from shardwright.cost.tables.plan_block_costs import network_unit
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.identity_cache_keys import Same
from shardwright.program.stages.held_parameters import HeldParameters, Holdings
from shardwright.program.stages.stage_segments import StageParts, working_devices
from shardwright.program.training_problem import Problem
from shardwright.program.zero_sharding import shard_rules
from shardwright.simulator.stage_kinds_priced_once import PlacedKind, StageKind
from shardwright.strategy.plan.plan import Plan


def price_stages(
    problem: Problem,
    plan: Plan,
    stages: tuple[tuple[StageParts, ...], ...],
    kinds: tuple[PlacedKind, ...],
) -> StageCosts:
    """Costs of every family of every stage; stages of one kind are priced once."""
    working = working_devices(Same(stages))
    problem = with_overlap_of(
        working_problem(problem, working), [stage for lane in stages for stage in lane]
    )
    shape = Shape(
        devices=working,
        sets=len(
            set({id(stage.devices): stage.devices for lane in stages for stage in lane}.values())
        ),
    )
    families: dict[tuple[int, int, int], FamilyCosts] = {}
    sharings: list[Sharing] = []
    costs_of_kinds: dict[int, list[FamilyCosts]] = {}
    for stage, kind, sums in kinds:
        if id(kind) not in costs_of_kinds:
            costs_of_kinds[id(kind)] = [
                _family_costs(problem, plan, kind, index, shape=shape)
                for index in range(len(kind.first.families))
            ]
        for index, cost in enumerate(costs_of_kinds[id(kind)]):
            families[stage.lane, stage.chunk, index] = cost
        offset = stage.base - kind.first.base
        sharings += [
            ((stage.lane, stage.chunk, index), h, offset, sums[number].uses)
            for index, number, h in kind.sample
        ]
    return StageCosts.of(problem, plan, stages, families, sharings)


def _family_costs(
    problem: Problem, plan: Plan, kind: StageKind, index: int, *, shape: Shape
) -> FamilyCosts:
    """Costs of family number `index` of a stage kind, cached for families with equal inputs."""
    stage, unit = kind.first, network_unit(problem)
    base, device = stage.base, stage.families[index][0]
    place = base % unit if unit else base
    own_holdings = {key: items for key, items in kind.held.items() if key[3] == device}
    groups: dict[int, DeviceList] = {}
    for items in own_holdings.values():
        for h in items:
            groups[id(h.group)], groups[id(h.near)] = h.group, h.near
    number_of_group = {key: index for index, key in enumerate(groups)}
    sums = tuple(
        [
            (
                n,
                h.klass,
                h.elements,
                h.trainable,
                h.backward,
                h.layers,
                number_of_group[id(h.group)],
                number_of_group[id(h.near)],
            )
            for (_, _, n, _), items in own_holdings.items()
            for h in items
        ]
    )
    groups_from_stage = tuple([group.shifted(-base) for group in groups.values()])
    segments = tuple((s.cells, Same(s.block), s.count, s.keeps) for s in stage.segments)
    shards = _shard_key(plan, stage, [h for items in own_holdings.values() for h in items])
    cost_key = (
        shards,
        plan.lanes[stage.lane].slices,
        shape,
        place,
        device - base,
        segments,
        sums,
        groups_from_stage,
    )
    return _priced_family(
        _FamilyKey(
            alike=cost_key,
            problem=Same(problem),
            plan=plan,
            stage=stage,
            family=index,
            held=own_holdings,
            shape=shape,
        )
    )


def _shard_key(plan: Plan, stage: StageParts, held: list[HeldParameters]) -> Hashable:
    """Key that is equal for stages with equal state sharding, relative to their first device."""
    rules = shard_rules(plan)
    if not rules.devices:
        return plan.shards
    groups_of_parameters = [rules.sharing(h.klass, h.near).parties for h in held if h.trainable]
    groups_from_stage = [
        [(p.devices.shifted(-stage.base), p.reduced, p.gradient, p.parameter) for p in sum_groups]
        for sum_groups in groups_of_parameters
    ]
    return plan.shards, plan.lanes[stage.lane].name, tuple(map(tuple, groups_from_stage))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FamilyKey:
    """Cache key of a family's costs: equal if the problem and `alike` are equal.

    `alike` holds all other inputs of the costs, with devices counted from the stage's first.
    """

    alike: Hashable
    problem: Same[Problem]
    plan: Plan = field(compare=False)
    stage: StageParts = field(compare=False)
    family: int = field(compare=False)
    held: Holdings = field(compare=False)
    shape: Shape = field(compare=False)


@lru_cache(maxsize=4096)
def _priced_family(family: _FamilyKey) -> FamilyCosts:
    """Costs of a family, cached by its key."""
    return family_costs(
        family.problem.value,
        family.plan,
        family.stage,
        family.family,
        holdings=family.held,
        shape=family.shape,
        alike=family.alike,
    )
