"""A shape: a plan but for its order. Its tasks are laid once, by the functions that lower every plan; orders change only a few links."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray
from shardwright.cost.family_costs import FamilyCosts
from shardwright.cost.stage_costs import Sharing, StageCosts, sharing
from shardwright.program.instances import Stream, TaskKind
from shardwright.program.lower import lower_plan
from shardwright.program.orders.rows import TABLE_SEARCH
from shardwright.program.problem import Problem
from shardwright.program.program import Program, TaskShape, chunks_of, device_classes
from shardwright.program.stages.edges import LaneEdge
from shardwright.search.exact.options import LANE, StageOption, flight_rows
from shardwright.search.exact.orders import finish_times
from shardwright.simulator.simulate import lane_edges
from shardwright.simulator.tasks import plan_kernel_tasks
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.order import Action, Kind, Named, Table
from shardwright.strategy.plan.plan import Plan, Shards

Messages = dict[tuple[int, int], LaneEdge]
"""Edges already derived, by the ids of the options on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeTasks:
    """The tasks of a shape under no order yet.

    Args:
        links: (links, 2) that hold under every order. stage_of: of each class of devices. coupled: (classes, classes) that start together.
        first, last: (classes, 2 m) tasks of each action (forwards, then backwards). send: likewise the task that an action's sender is held
        up by, or -1. blocking: whether it is. work, use_start, use_resource, use_weight, num_resources: as `simulator.kernel`.
    """

    links: IntArray
    stage_of: IntArray
    coupled: BoolArray
    first: IntArray
    last: IntArray
    send: IntArray
    blocking: bool
    work: IntArray
    use_start: Int32Array
    use_resource: Int32Array
    use_weight: Int32Array
    num_resources: int

    def finish(self, orders: IntArray, *, contended: bool) -> IntArray:
        """Picoseconds of the step (without jitter) under each order, (orders, stages, 2 m); uncontended: the longest path; -1: deadlock."""
        return finish_times(
            orders,
            self.links,
            self.stage_of,
            self.coupled,
            self.first,
            self.last,
            self.send,
            self.blocking,
            self.work,
            self.use_start,
            self.use_resource,
            self.use_weight,
            self.num_resources,
            contended,
        )


def plan_of_stages(
    problem: Problem,
    options: tuple[StageOption, ...],
    *,
    microbatches: int,
    order: IntArray | None = None,
    shards: tuple[Shards, ...] = (),
) -> Plan:
    """The plan of these stages.

    Args:
        order: (stages, 2 m) actions; None = a table yet to be found.
    """
    lane = Lane(name=LANE, samples=problem.job.global_batch, microbatches=microbatches, stages=tuple(o.stage for o in options))
    found: Named | Table = Named(schedule=TABLE_SEARCH, lanes=(LANE,))
    if order is not None:
        rows = [
            (option.parts.devices[0], tuple(_action(chunk, int(code), microbatches) for code in order[chunk]))
            for chunk, option in enumerate(options)
        ]
        found = Table(lanes=(LANE,), rows=tuple(sorted(rows)))
    return Plan(devices=problem.cluster.num_devices, lanes=(lane,), orders=(found,), shards=shards)


def _action(chunk: int, code: int, microbatches: int) -> Action:
    return Action(chunk=chunk, kind=Kind.F if code < microbatches else Kind.B, microbatch=code % microbatches)


def shape_tasks(
    problem: Problem, options: tuple[StageOption, ...], *, microbatches: int, shards: tuple[Shards, ...] = (), messages: Messages
) -> ShapeTasks:
    """Lower the plan of these stages, and take out what its order puts in.

    Args:
        messages: edges already derived; new ones are added.
    """
    program, costs, blocking = _lowered(problem, options, microbatches=microbatches, shards=shards, messages=messages)
    work, _, successor_start, successor, use_start, use_resource, use_weight, num_resources = plan_kernel_tasks(problem, program, costs)
    first, last, send = _places(program, microbatches)
    source = np.repeat(np.arange(len(work)), np.diff(successor_start))
    links = np.stack([source, successor.astype(np.int64)], axis=1)
    stage_of = np.array([c.families[0][1] for c in program.classes], dtype=np.int64)
    same = stage_of[:, None] == stage_of[None, :]
    joined = [[f in costs.coupled[c.families[0]] for f in (k.families[0][2] for k in program.classes)] for c in program.classes]
    return ShapeTasks(
        links=links[~_of_order(program, links, last)],
        stage_of=stage_of,
        coupled=same & np.array(joined, dtype=np.bool_),
        first=first,
        last=last,
        send=send,
        blocking=blocking,
        work=work,
        use_start=use_start,
        use_resource=use_resource,
        use_weight=use_weight,
        num_resources=num_resources,
    )


def _lowered(
    problem: Problem, options: tuple[StageOption, ...], *, microbatches: int, shards: tuple[Shards, ...], messages: Messages
) -> tuple[Program, StageCosts, bool]:
    """The Program under the order that runs all forwards first, its costs, and whether sends hold up their sender."""
    plan = plan_of_stages(problem, options, microbatches=microbatches, shards=shards)
    stages = tuple(replace(option.parts, chunk=chunk) for chunk, option in enumerate(options))
    families: dict[tuple[int, int, int], FamilyCosts] = {}
    shared: list[Sharing] = []
    for chunk, option in enumerate(options):
        families |= {(0, chunk, index): cost for index, cost in enumerate(option.families)}
        own = sharing(replace(option.parts, chunk=chunk), option.holdings)
        shared += [(key, h, by, tuple((0, chunk, segment) for *_, segment in uses)) for key, h, by, uses in own]
    costs = StageCosts.of(problem, plan, (stages,), families, shared)
    rows = flight_rows(tuple(s.devices for s in stages), microbatches, flying=microbatches)
    classes = device_classes((stages,), rows)
    shape = TaskShape(
        tied={},
        pieces=costs.pieces,
        coupled=costs.coupled,
        holders=costs.holders_of(classes),
        gathers=costs.gathers,
        blocking=problem.runtime.blocks_sends(chunks_of(classes)),
        reduces_last=not problem.runtime.overlap_grad_reduce,
    )
    edges = tuple(_edge(problem, options, chunk, messages) for chunk in range(1, len(options)))
    return lower_plan(plan, stages=(stages,), rows=rows, classes=classes, edges=edges, shape=shape), costs, shape.blocking


def _edge(problem: Problem, options: tuple[StageOption, ...], chunk: int, messages: Messages) -> LaneEdge:
    """The edge into stage `chunk` from the one before it."""
    pair = options[chunk - 1], options[chunk]
    key = id(pair[0]), id(pair[1])
    if key not in messages:
        (messages[key],) = lane_edges(problem, (pair[0].parts, replace(pair[1].parts, chunk=1)))
    found = messages[key]
    return replace(found, edge=replace(found.edge, source=chunk - 1, target=chunk))


def _places(program: Program, microbatches: int) -> tuple[IntArray, IntArray, IntArray]:
    """(classes, 2 m) first and last task of each action, and the send that it ends in or -1."""
    shape = (len(program.classes), 2 * microbatches)
    first, last, send = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    instances = program.instances
    for task, (number, microbatch) in enumerate(zip(instances.template.tolist(), instances.microbatch.tolist(), strict=True)):
        template = program.templates[number]
        place = template.klass, microbatch + (microbatches if template.kind in (TaskKind.B, TaskKind.SEND_B) else 0)
        if template.kind in (TaskKind.F, TaskKind.B):
            first[place] = task if first[place] < 0 else first[place]
            last[place] = task
        elif template.kind in (TaskKind.SEND_F, TaskKind.SEND_B):
            send[place] = task
    return first, last, send


def _of_order(program: Program, links: IntArray, last: IntArray) -> BoolArray:
    """Links that come from a row of the order: from a stage's action, or its send, to another action of that stage."""
    instances = program.instances
    chunk = np.array([t.chunk for t in program.templates])[instances.template]
    acts = instances.stream == int(Stream.COMPUTE)
    acts &= np.array([t.kind <= TaskKind.R for t in program.templates])[instances.template]
    sends = np.array([t.kind in (TaskKind.SEND_F, TaskKind.SEND_B) for t in program.templates])[instances.template]
    source, target = links[:, 0], links[:, 1]
    ends = np.zeros(len(acts), dtype=np.bool_)
    ends[last.ravel()] = True
    found: BoolArray = acts[target] & (chunk[source] == chunk[target]) & ((acts[source] & ends[source]) | sends[source])
    return found
