"""Tasks of the event kernel from a lowered plan: seconds of each task, and its resource loads.

Resources are links and multiprocessors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardwright.arrays import FloatArray, Int32Array, IntArray
from shardwright.cost.bounds.seconds_to_event_simulation_picoseconds import picoseconds
from shardwright.cost.network.networks_of_plan_devices import plan_units, working_problem
from shardwright.cost.network.stage_transfers import Crossing, around_seconds, crossing_of
from shardwright.cost.step.overlapped_action_pair_seconds import pair_share
from shardwright.cost.step.stage_action_seconds import (
    StageCosts,
    action_seconds_table,
    update_seconds,
)
from shardwright.errors import InfeasibleError
from shardwright.hardware.cluster_network_levels import repetition_devices
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.device_classes_with_equal_actions import DeviceClass, class_numbers
from shardwright.program.identity_cache_keys import Same
from shardwright.program.lowered_program import Program
from shardwright.program.stages.stage_segments import working_devices
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.simulator.kernel.event_kernel import SCALE
from shardwright.units import PICOSECONDS_PER_SECOND

_LAST_INSTANT = 2**62
"""Largest sum of unshared task picoseconds: the 64-bit clock leaves as much again for the slowdown
of tasks that share a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sends:
    """Messages along the edges between stages.

    Args:
        each: (class of senders, its part of an edge's messages), without repetition.
        of: (templates,) index into `each`, -1 = no send.
    """

    each: tuple[tuple[int, Crossing], ...]
    of: IntArray


def _sends(problem: Problem, program: Program) -> _Sends:
    """List the sends of a program; edges with equal network placement share one crossing.

    Only edges between stages of one class each share.
    """
    class_of, unit = class_numbers(program.classes), repetition_devices(plan_units(problem))
    crossing_of_form: dict[tuple[int, int], Crossing] = {}
    number_of_send: dict[tuple[int, ...], int] = {}
    each: list[tuple[int, Crossing]] = []
    templates, posts = program.templates, program.posts
    of = np.full(len(templates), -1, dtype=np.int64)
    sending = np.flatnonzero(templates.edge >= 0)
    for index, kind, klass, edge in zip(
        sending.tolist(),
        *(c[sending].tolist() for c in (templates.kind, templates.klass, templates.edge)),
        strict=True,
    ):
        lane_edge = program.edges[edge]
        messages = lane_edge.forward if kind == TaskKind.SEND_F else lane_edge.backward
        ends = (
            posts.of_stage[lane_edge.lane, lane_edge.edge.source],
            posts.of_stage[lane_edge.lane, lane_edge.edge.target],
        )
        single = len(ends[0]) == len(ends[1]) == 1 and not messages.collectives
        (receiver,) = ends[kind == TaskKind.SEND_F] if single else (-1,)
        form = (id(messages.sends), messages.base % unit if unit else messages.base)
        key = (*form, klass, receiver) if single else (kind, edge, klass)
        if key not in number_of_send:
            if not single:
                crossing = crossing_of(problem, messages, klass, class_of)
            else:
                if form not in crossing_of_form:
                    crossing_of_form[form] = crossing_of(problem, messages, klass, class_of)
                crossing = replace(
                    crossing_of_form[form], into=((receiver, crossing_of_form[form].into[0][1]),)
                )
            number_of_send[key] = len(each)
            each.append((klass, crossing))
        of[index] = number_of_send[key]
    return _Sends(each=tuple(each), of=of)


@lru_cache(maxsize=64)
def _units_of_classes(
    classes: tuple[DeviceClass, ...], units: tuple[Units, ...], total: int
) -> tuple[IntArray, IntArray]:
    """(levels, classes) unit with a class's first device; (..., 2) its devices of the class, all.

    Shapes are (levels, classes) and (levels, classes, 2): the class's devices in the unit of its
    first device, then all devices of that unit.
    """
    firsts = np.array([c.devices.first for c in classes], dtype=np.int64)
    unit = np.array([level.of(firsts) for level in units])
    sizes = [np.minimum(level.sizes(firsts), total).tolist() for level in units]
    members = [
        [
            device_class.devices.within(*level.around(device_class.devices.first))
            for device_class in classes
        ]
        for level in units
    ]
    return unit, np.stack([np.array(members), np.array(sizes)], axis=2)


class _ResourceLoads:
    """Numbers the shared resources, and computes the loads of actions and transfers on them."""

    def __init__(self, problem: Problem, program: Program, costs: StageCosts) -> None:
        """Number the resources: multiprocessors, ports and shared uplinks in both directions."""
        units = plan_units(problem)
        self.count, self.levels = len(program.classes), len(units)
        unit, load = _units_of_classes(program.classes, units, problem.cluster.num_devices)
        self.unit, self.load = unit.tolist(), load.tolist()
        most_units = int(unit.max()) + 1
        self.out, self.into = self.count, self.count + self.count * self.levels
        self.pool_out = self.count + 2 * self.count * self.levels
        self.pool_in = self.pool_out + most_units * self.levels
        self.num_resources = self.pool_in + most_units * self.levels
        self.shares, self.extra = [], []
        for device_class in program.classes:
            first_slices = {
                id(step): step
                for place in device_class.families
                for step in costs.families[place].slices[:1]
            }.values()
            self.shares.append(np.max([step.shares for step in first_slices], axis=0).tolist())
            self.extra.append(
                max(round((max(step.slowdown for step in first_slices) - 1.0) * SCALE), 0)
            )

    def uplink_loads(
        self, number: int, first_resource: int, tier: int, weight: int
    ) -> list[tuple[int, int]]:
        """(resource, weight) of uplinks below `tier` that a class's devices in one unit share."""
        loads = []
        for below in range(1, tier):
            members, devices = self.load[below][number]
            loads.append(
                (
                    first_resource + self.unit[below][number] * self.levels + below,
                    -(-weight // devices) * members,
                )
            )
        return loads

    def action_loads(self, number: int) -> list[tuple[int, int]]:
        """(resource, weight) of a class's actions: its device, if collectives slow it; or none."""
        return [(number, SCALE)] if self.extra[number] else []

    def gather_and_reduce_loads(self, number: int) -> list[tuple[int, int]]:
        """(resource, weight) of a class's parameter gather or gradient reduction, with links."""
        uses = [(number, self.extra[number])] if self.extra[number] else []
        for tier, share in enumerate(self.shares[number]):
            weight = min(round(share * SCALE), SCALE)
            if weight:
                uses += [
                    (self.out + number * self.levels + tier, weight),
                    (self.into + number * self.levels + tier, weight),
                ]
                uses += self.uplink_loads(number, self.pool_out, tier, weight) + self.uplink_loads(
                    number, self.pool_in, tier, weight
                )
        return uses

    def send_loads(self, number: int, sent: Crossing) -> list[tuple[int, int]]:
        """(resource, weight) of a message from a class: outgoing and incoming ports and uplinks."""
        weight = max(round(sent.sent / sent.most * SCALE), 1)
        uses = [
            (self.out + number * self.levels + sent.tier, weight),
            *self.uplink_loads(number, self.pool_out, sent.tier, weight),
        ]
        for receiver, elements in sent.into:
            weight = max(round(elements / sent.most * SCALE), 1)
            uses += [
                (self.into + receiver * self.levels + sent.tier, weight),
                *self.uplink_loads(receiver, self.pool_in, sent.tier, weight),
            ]
        return uses


def plan_kernel_tasks(
    problem: Problem, program: Program, costs: StageCosts
) -> tuple[IntArray, Int32Array, Int32Array, Int32Array, Int32Array, Int32Array, Int32Array, int]:
    """Arguments of `simulate` in its order: picoseconds of work, dependencies, resource loads."""
    problem = working_problem(problem, working_devices(Same(program.stages)))
    sends = _sends(problem, program)
    templates, instances = program.templates, program.instances
    seconds = template_seconds(problem, program, costs, sends)
    _require_countable(
        seconds,
        instances=np.bincount(instances.template, minlength=len(seconds)),
        pieces=templates.pieces,
    )
    work = picoseconds(seconds)
    work = (
        work * (templates.piece + 1) // templates.pieces
        - work * templates.piece // templates.pieces
    )
    uses = _ResourceLoads(problem, program, costs)
    count = len(program.classes)
    rows = (
        [uses.action_loads(k) for k in range(count)]
        + [uses.gather_and_reduce_loads(k) for k in range(count)]
        + [[]]
    )
    row = np.where(templates.kind <= TaskKind.R, templates.klass, templates.klass + count)
    row[templates.kind == TaskKind.STEP] = 2 * count
    row = np.where(sends.of >= 0, 2 * count + 1 + sends.of, row)
    rows += [uses.send_loads(klass, sent) for klass, sent in sends.each]
    is_action = templates.kind <= TaskKind.R
    row_of_task = np.where(
        instances.beside_sync,
        row.astype(np.int32)[instances.template],
        np.where(is_action, 2 * count, row).astype(np.int32)[instances.template],
    )
    sizes = np.array([len(row_uses) for row_uses in rows], dtype=np.int32)
    start = np.cumsum(sizes, dtype=np.int32) - sizes
    per_task = sizes[row_of_task]
    use_start = np.zeros(len(per_task) + 1, dtype=np.int32)
    np.cumsum(per_task, out=use_start[1:])
    # Use number i of a task is entry i of its row.
    entry = np.repeat(start[row_of_task] - use_start[:-1], per_task)
    entry += np.arange(len(entry), dtype=np.int32)
    pairs = np.array([pair for row_uses in rows for pair in row_uses], dtype=np.int64)
    resource, weight = pairs.reshape(-1, 2).T.astype(np.int32)
    return (
        work[instances.template],
        instances.indegree,
        instances.successor_start,
        instances.successor,
        use_start,
        resource[entry],
        weight[entry],
        uses.num_resources,
    )


def _require_countable(seconds: FloatArray, *, instances: IntArray, pieces: IntArray) -> None:
    """Raise InfeasibleError if all tasks in sequence could exceed the 64-bit clock."""
    if (
        max(float(seconds / pieces @ instances), float((seconds * pieces).max()))
        * PICOSECONDS_PER_SECOND
        > _LAST_INSTANT
    ):
        days = float(seconds.max()) / 86400
        raise InfeasibleError(
            f"a step takes longer than the simulated clock counts: one task alone {days:.3g} days",
            hint="a smaller batch, shorter sequences or a faster network",
        )


def template_seconds(
    problem: Problem, program: Program, costs: StageCosts, sends: _Sends
) -> FloatArray:
    """(templates,) uncontended seconds of all pieces of each task template."""
    templates, posts = program.templates, program.posts
    numbers = {key: i for i, key in enumerate(costs.families)}
    family_of = np.array(
        [
            numbers[key]
            for key in zip(
                posts.lane.tolist(), posts.chunk.tolist(), posts.family.tolist(), strict=True
            )
        ]
    )
    kind = templates.kind

    def family(lane: IntArray, chunk: IntArray) -> IntArray:
        """(templates,) index in `costs.families` of each template's family in a lane and chunk."""
        return np.asarray(
            family_of[posts.number[templates.klass, posts.first_stage[lane] + chunk]],
            dtype=np.int64,
        )

    family_of_template = family(np.maximum(templates.lane, 0), np.maximum(templates.chunk, 0))
    table = action_seconds_table(costs)
    action = kind <= TaskKind.R
    seconds = np.zeros(len(kind))
    seconds[action] = table.seconds[
        templates.early[action], kind[action], family_of_template[action], templates.slice[action]
    ]
    for sync_kind, name in (
        (TaskKind.GATHER, "gather_s"),
        (TaskKind.REDUCE, "reduce_s"),
        (TaskKind.REDUCE_TIED, "tied_s"),
    ):
        sending = np.flatnonzero(kind == sync_kind)
        if len(sending):
            seconds_of_family = np.array(
                [float(getattr(cost.slices[0], name)[0]) for cost in costs.families.values()]
            )
            seconds[sending] = seconds_of_family[family_of_template[sending]]
    paired = np.flatnonzero(templates.partner_kind >= 0)
    if len(paired):
        partner_family = family(
            np.maximum(templates.partner_lane, 0), np.maximum(templates.partner_chunk, 0)
        )[paired]
        early, own_kind, partner_kind = (
            templates.early[paired],
            kind[paired],
            templates.partner_kind[paired],
        )
        places = (
            (own_kind, family_of_template[paired], templates.slice[paired]),
            (partner_kind, partner_family, templates.partner_slice[paired]),
        )
        first_action, second_action = (
            (table.seconds[early, *sending], table.routed[sending], table.products[sending])
            for sending in places
        )
        seconds[paired] = pair_share(first_action, second_action, costs.taken)
    for klass, device_class in enumerate(program.classes):
        seconds[(kind == TaskKind.STEP) & (templates.klass == klass)] = update_seconds(
            costs, device_class
        )
    if not sends.each:
        return seconds
    sending = np.flatnonzero(sends.of >= 0)
    latency, bandwidth, busiest_elements = np.array(
        [(c.latency_s, c.bandwidth, c.most) for _, c in sends.each]
    )[sends.of[sending]].T
    scales = [
        [costs.element * length / sum(lengths) for length in lengths] for lengths in costs.lengths
    ]
    lanes, slices = templates.lane[sending].tolist(), templates.slice[sending].tolist()
    scale = np.array([scales[lane][part] for lane, part in zip(lanes, slices, strict=True)])
    seconds[sending] = latency + busiest_elements * scale / bandwidth
    for place, (index, sync_kind) in enumerate(
        zip(sending.tolist(), sends.of[sending].tolist(), strict=True)
    ):
        first_action = sends.each[sync_kind][1]
        if first_action.collectives:
            seconds[index] += around_seconds(
                problem, first_action.collectives, first_action.around, scale=float(scale[place])
            )
    return seconds
