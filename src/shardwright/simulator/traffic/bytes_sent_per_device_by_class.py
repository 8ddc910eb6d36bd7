"""Bytes that a device of each class sends in a step, by part, group and network tier.

These are the bytes behind the seconds of a simulated plan.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.gradients.gradient_and_parameter_wire_bytes import (
    gathered_bytes,
    gradient_bytes,
)
from shardwright.cost.gradients.optimizer_state_owner_exchange_seconds import owner_volumes
from shardwright.cost.gradients.plan_sharded_elements import (
    effective_zero_stage,
    is_gathered,
    is_summed_last,
)
from shardwright.cost.gradients.plan_synchronisation import sharing_groups
from shardwright.cost.gradients.reduction_groups_of_plan_gradient_buckets import placed_in_buckets
from shardwright.cost.part_phase_recompute_keys import MODES
from shardwright.cost.step.price_one_stage_device_family import recompute_mode
from shardwright.cost.step.shared_scalar_cost_formulas import gathers_again
from shardwright.hardware.cluster_network_levels import level_between
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.kernel_compilation import python_form
from shardwright.program.block.block_program import Phase
from shardwright.program.stages.held_parameters import HeldParameters, held_by_families
from shardwright.program.stages.stage_messages import Messages
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.program.zero_sharding import ShardRules, Sharing, shard_rules
from shardwright.simulator.resolve_stages_edges_and_device_classes import summings_of
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.simulator.traffic.block_moves_of_one_device import segment_moves
from shardwright.simulator.traffic.device_traffic_by_group_and_tier import (
    PIPELINE,
    SHARDING,
    Traffic,
    TrafficCounter,
)

_BACKWARDS: Final = (int(TaskKind.B), int(TaskKind.I))


def plan_traffic(problem: Problem, simulated: SimulatedPlan) -> tuple[tuple[Traffic, ...], ...]:
    """Bytes that the first device of each class sends in a step, by part, group and network tier.

    A collective counts the bytes that its busiest member sends under the algorithm that the library
    chooses. Left out: 4 bytes of the gradients' norm, scales of 8-bit operands, and notifications
    of experts.
    """
    program = simulated.program
    holdings = held_by_families(program.stages, summings_of(problem, program.stages))
    runs = _action_runs(simulated)
    traffic = []
    for number, device_class in enumerate(program.classes):
        counter = TrafficCounter(problem, device_class.devices.first)
        for lane, chunk, _ in device_class.families:
            stage = program.stages[lane][chunk]
            holdings_of_segments = [
                holdings.get((lane, chunk, n, counter.device), ())
                for n in range(len(stage.segments))
            ]
            _add_blocks(counter, simulated, stage, runs[number])
            _add_gradients_and_gathers(
                counter,
                stage,
                holdings_of_segments,
                rules=shard_rules(program.plan),
                runs=runs[number],
            )
        _add_stage_messages(counter, simulated)
        traffic.append(counter.traffic())
    return tuple(traffic)


_Runs = Counter[tuple[int, int, int, int]]
"""(lane, chunk, slice, kind) -> number of times that a class runs the action in a step."""


def _action_runs(simulated: SimulatedPlan) -> list[_Runs]:
    """For each device class, the runs in a step by (lane, chunk, slice, task kind)."""
    program, templates = simulated.program, simulated.program.templates
    tasks_of_template = np.bincount(program.instances.template, minlength=len(templates))
    runs_of_class: list[_Runs] = [Counter() for _ in program.classes]
    actions = np.flatnonzero((templates.kind <= int(TaskKind.R)) & (templates.piece == 0))
    columns = (templates.klass, templates.lane, templates.chunk, templates.slice, templates.kind)
    for klass, *key, count in zip(
        *(column[actions].tolist() for column in columns),
        tasks_of_template[actions].tolist(),
        strict=True,
    ):
        runs_of_class[klass][key[0], key[1], key[2], key[3]] += count
    return runs_of_class


def _add_blocks(
    sums: TrafficCounter, simulated: SimulatedPlan, stage: StageParts, runs: _Runs
) -> None:
    """Add a stage's block collectives, as often as `runs` has forward and backward actions."""
    lengths = simulated.costs.lengths[stage.lane]
    for part in range(len(lengths)):
        forward = runs[stage.lane, stage.chunk, part, int(TaskKind.F)]
        backward = sum(runs[stage.lane, stage.chunk, part, kind] for kind in _BACKWARDS)
        so_far = lengths[: part + 1] if len(lengths) > 1 else None
        for segment in stage.segments:
            _add_segment(sums, stage, segment, lengths=so_far, forward=forward, backward=backward)


def _add_segment(
    sums: TrafficCounter,
    stage: StageParts,
    segment: Segment,
    *,
    lengths: tuple[int, ...] | None,
    forward: int,
    backward: int,
) -> None:
    """Add the collectives of a segment's equal blocks; `lengths` = slices up to the current one."""
    for one in segment_moves(sums.own, stage, segment, device=sums.device, lengths=lengths):
        forward_runs = forward + (backward if one.repeated else 0)
        times = forward_runs if one.move.phase is Phase.F else backward
        sums.move(one.move, one.group, volume=one.volume, times=times * segment.count)


_StateGroup = tuple[DeviceList, DeviceList, int]
"""Group, its members that share states, and the number of these that hold one copy."""


class _ReducedGroup(NamedTuple):
    """Devices that reduce a gradient together.

    Args:
        group, near, shard: see `_StateGroup`.
        last: True if the gradient is reduced once a step for any stage of the lane.
        whole: True if the parameter is gathered after the update.
    """

    group: DeviceList
    near: DeviceList
    shard: int
    last: bool
    whole: bool


def _add_gradients_and_gathers(
    sums: TrafficCounter,
    stage: StageParts,
    holdings: list[tuple[HeldParameters, ...]],
    *,
    rules: ShardRules,
    runs: _Runs,
) -> None:
    """Add gradient reductions and parameter gathers, as often as the ZeRO stage runs them."""
    runtime, job = sums.own.runtime, sums.own.job
    wire, stored, narrow = (
        gradient_bytes(job, runtime),
        job.parameter.bits // 8,
        gathered_bytes(job, runtime),
    )
    layers = tuple(segment.count for segment in stage.segments)
    forward = sum(
        n
        for (lane, chunk, _, kind), n in runs.items()
        if (lane, chunk, kind) == (stage.lane, stage.chunk, int(TaskKind.F))
    )
    backward = sum(
        n
        for (lane, chunk, _, kind), n in runs.items()
        if (lane, chunk) == (stage.lane, stage.chunk) and kind in _BACKWARDS
    )
    zero = effective_zero_stage(
        chain.from_iterable(holdings),
        device=sums.device,
        rules=rules,
        zero=rules.lanes[stage.lane].zero,
    )
    reduced = backward if zero >= 2 and runtime.reduce_every_microbatch else 1
    bucketed, beyond = placed_in_buckets(holdings, layers=layers, device=sums.device)

    def is_cut(h: HeldParameters) -> bool:
        """True if the parameter is sharded and must be gathered for use."""
        return is_gathered(rules.party(h.klass, h.near, sums.device), zero=zero)

    for items, segment in zip(bucketed, stage.segments, strict=True):
        count = segment.count
        elements_of: Counter[_ReducedGroup] = Counter()
        gathered_bytes_of: Counter[_ReducedGroup] = Counter()
        for h in (h for h in items if h.trainable and len(h.group) > 1):
            sharing = rules.sharing(h.klass, h.near)
            party = sharing.party(sums.device)
            last = is_summed_last(sharing, sums.device, zero=zero)
            key = _ReducedGroup(
                *sharing.among(sums.device, h.group),
                party.reduced,
                last,
                whole=zero < 3 or party.parameter == 1,
            )
            if len(sharing.parties) > 1:
                _add_owner_exchange(sums, h, sharing, wire=wire, stored=stored)
            elements_of[key] += h.elements * h.layers
            gathered_bytes_of[key] += int(h.elements * h.layers * (narrow if h.narrow else stored))
        for key, elements in elements_of.items():
            group, near, shard, last, whole = key
            inner, across = sharing_groups(group, near, shard, device=sums.device)
            times = count * (1 if near != group or last else reduced)
            elements_a_layer = elements / count
            if zero == 0:
                sums.collective(
                    SHARDING,
                    Collective.ALL_REDUCE,
                    group,
                    volume=elements_a_layer * wire,
                    times=times,
                )
                continue
            sums.collective(
                SHARDING,
                Collective.REDUCE_SCATTER,
                inner,
                volume=elements_a_layer * wire,
                times=times,
            )
            sums.collective(
                SHARDING,
                Collective.ALL_REDUCE,
                across,
                volume=elements_a_layer * wire / shard,
                times=times,
            )
            if whole and runtime.zero1_broadcasts:
                sums.collective(
                    SHARDING,
                    Collective.BROADCAST,
                    inner,
                    volume=elements_a_layer * stored / shard,
                    times=count * shard,
                )
            elif whole:
                sums.collective(
                    SHARDING,
                    Collective.ALL_GATHER,
                    inner,
                    volume=gathered_bytes_of[key] / count,
                    times=count,
                )
        regathers = 1.0
        if recompute_mode(segment.keeps) == MODES.index("full"):
            local = sum(h.elements * h.layers for h in items if h.backward and is_cut(h)) / count
            regathers = python_form(gathers_again)(local, float(runtime.reuse_elements))
        for runs_of_pass, passes in (
            (float(forward), items),
            (backward * regathers, tuple(h for h in items if h.backward)),
        ):
            bytes_of_group: Counter[_StateGroup] = Counter()
            for h in (h for h in passes if is_cut(h)):
                sharing = rules.sharing(h.klass, h.near)
                sharing_group = (
                    *sharing.among(sums.device, h.group),
                    sharing.party(sums.device).parameter,
                )
                bytes_of_group[sharing_group] += int(
                    h.elements * h.layers * (narrow if h.narrow else stored)
                )
            for (group, near, shard), volume in bytes_of_group.items():
                inner = sharing_groups(group, near, shard, device=sums.device)[0]
                sums.collective(
                    SHARDING,
                    Collective.ALL_GATHER,
                    inner,
                    volume=volume / count,
                    times=count * runs_of_pass,
                )
    for unbucketed in beyond:
        sums.collective(
            SHARDING,
            Collective.ALL_REDUCE,
            unbucketed.members,
            volume=unbucketed.elements * layers[unbucketed.segment] * wire,
            times=reduced,
        )


def _add_owner_exchange(
    sums: TrafficCounter, held: HeldParameters, sharing: Sharing, *, wire: float, stored: float
) -> None:
    """Add all-to-alls of gradients (`wire` bytes an element) to state owners, of values back.

    Both run once a step.
    """
    elements, volumes = held.elements * held.layers, owner_volumes(held.group, sharing)
    sums.collective(
        SHARDING, Collective.ALL_TO_ALL, held.group, volume=elements * wire * volumes["to_owners"]
    )
    sums.collective(
        SHARDING,
        Collective.ALL_TO_ALL,
        sharing.devices,
        volume=elements * stored * volumes["from_owners"],
    )


def _add_stage_messages(sums: TrafficCounter, simulated: SimulatedPlan) -> None:
    """Add the messages between stages, and the collectives around them."""
    program, costs = simulated.program, simulated.costs
    templates = program.templates
    times = np.bincount(program.instances.template, minlength=len(templates))
    seen: set[tuple[int, int, int]] = set()
    for index in np.flatnonzero(templates.edge >= 0).tolist():
        kind, edge, part = (
            int(column[index]) for column in (templates.kind, templates.edge, templates.slice)
        )
        if (kind, edge, part) in seen:
            continue
        seen.add((kind, edge, part))
        lane_edge = program.edges[edge]
        lengths = costs.lengths[lane_edge.lane]
        scale = costs.element * lengths[part] / sum(lengths) * int(times[index])
        _add_messages(
            sums, lane_edge.forward if kind == TaskKind.SEND_F else lane_edge.backward, scale
        )


def _add_messages(sums: TrafficCounter, messages: Messages, scale: float) -> None:
    """Add an edge's messages that the device sends; `scale` = element bytes x messages a step.

    Args:
        scale: bytes of an element, times the number of messages in a step.
    """
    own = messages.sends[messages.sends[:, 0] == sums.device - messages.base]
    for source, target, elements in own.tolist():
        ends = np.array([source, target]) + messages.base
        tier = int(level_between(ends[:1], ends[1:], sums.units)[0])
        passed = np.array(
            [t == tier if tier == 0 else 0 < t <= tier for t in range(len(sums.units))],
            dtype=np.float64,
        )
        sums.add(PIPELINE, DeviceList.of(np.sort(ends)), passed * elements * scale)
    for kind, group, elements in messages.collectives:
        members = DeviceList.of([d + messages.base for d in group])
        if sums.device in members:
            sums.collective(PIPELINE, kind, members, volume=elements * scale)
