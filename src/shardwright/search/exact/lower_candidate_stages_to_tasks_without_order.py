"""Lowering of plan shapes (plans without their order): their plan, program and tasks.

A shape is lowered once, by the functions that lower every plan; an order changes only a few links.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.arrays import IntArray
from shardwright.cost.network.list_stage_edges_of_lane_with_messages import lane_edges
from shardwright.cost.step.stage_action_seconds import (
    FamilyCosts,
    Sharing,
    StageCosts,
    sharings_of_stage,
)
from shardwright.program.device_classes_with_equal_actions import (
    TaskShape,
    chunks_of,
    device_classes,
)
from shardwright.program.lower_plan_to_tasks import lower_plan
from shardwright.program.lowered_program import Program
from shardwright.program.orders.plan_action_rows import TABLE_SEARCH
from shardwright.program.stages.stage_messages import LaneEdge
from shardwright.program.training_problem import Problem
from shardwright.search.exact.build_1f1b_rows_by_microbatches_in_flight import one_f_one_b_rows
from shardwright.search.exact.price_one_stage_under_split_tree import LANE, StageOption
from shardwright.search.exact.tasks_shared_by_all_orders import ShapeTasks, tasks_of_shape
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import Action, Kind, NamedOrder, Table
from shardwright.strategy.plan.plan import Plan, Shards

Messages = dict[tuple[int, int], LaneEdge]
"""Edges already derived, by the ids of the options on both sides."""


def plan_of_stages(
    problem: Problem,
    options: tuple[StageOption, ...],
    *,
    microbatches: int,
    order: IntArray | None = None,
    shards: tuple[Shards, ...] = (),
) -> Plan:
    """The one-lane plan with these stages; without `order`, the order is still to be searched.

    Args:
        order: (stages, 2 m) actions; None = an order still to be searched.
    """
    lane = lane_of(LANE, options, samples=problem.job.global_batch, microbatches=microbatches)
    lane_order = (
        NamedOrder(schedule=TABLE_SEARCH, lanes=(LANE,))
        if order is None
        else table_of(lane, options, order)
    )
    return Plan(
        devices=problem.cluster.num_devices, lanes=(lane,), orders=(lane_order,), shards=shards
    )


def lane_of(
    name: str, options: tuple[StageOption, ...], *, samples: int, microbatches: int
) -> Lane:
    """A lane with these stages, samples and microbatches."""
    return Lane(
        name=name,
        samples=samples,
        microbatches=microbatches,
        stages=tuple(o.stage for o in options),
    )


def table_of(lane: Lane, options: tuple[StageOption, ...], order: IntArray) -> Table:
    """Order table of a lane, from (stages, 2 m) codes: k = forward, m + k = backward of k.

    Codes beyond the lane's 2 m actions are ignored.
    """
    microbatches = lane.microbatches or 1
    rows = [
        (
            option.parts.devices[0],
            tuple(
                _action(chunk, int(code), microbatches) for code in order[chunk, : 2 * microbatches]
            ),
        )
        for chunk, option in enumerate(options)
    ]
    return Table(lanes=(lane.name,), rows=tuple(sorted(rows)))


def _action(chunk: int, code: int, microbatches: int) -> Action:
    """The forward (code < m) or backward action with an action code."""
    return Action(
        chunk=chunk, kind=Kind.F if code < microbatches else Kind.B, microbatch=code % microbatches
    )


def shape_tasks(
    problem: Problem,
    options: tuple[StageOption, ...],
    *,
    microbatches: int,
    shards: tuple[Shards, ...] = (),
    messages: Messages,
) -> ShapeTasks:
    """Tasks of the plan with these stages, without the dependencies of its order.

    Args:
        options: stage options as `together` returns them.
        messages: cache of derived edges; new edges are added.
    """
    program, costs, blocking = _lowered(
        problem, options, microbatches=microbatches, shards=shards, messages=messages
    )
    return tasks_of_shape(problem, program, costs, blocking=blocking)


def _lowered(
    problem: Problem,
    options: tuple[StageOption, ...],
    *,
    microbatches: int,
    shards: tuple[Shards, ...],
    messages: Messages,
) -> tuple[Program, StageCosts, bool]:
    """Program of a shape with all forwards first, its costs, and True if sends block the sender."""
    plan = plan_of_stages(problem, options, microbatches=microbatches, shards=shards)
    stages = tuple(replace(option.parts, chunk=chunk) for chunk, option in enumerate(options))
    families: dict[tuple[int, int, int], FamilyCosts] = {}
    sharings: list[Sharing] = []
    for chunk, option in enumerate(options):
        families |= {(0, chunk, index): cost for index, cost in enumerate(option.families)}
        stage_sharings = sharings_of_stage(replace(option.parts, chunk=chunk), option.holdings)
        sharings += [
            (key, h, by, tuple((0, chunk, segment) for *_, segment in uses))
            for key, h, by, uses in stage_sharings
        ]
    costs = StageCosts.of(problem, plan, (stages,), families, sharings)
    rows = one_f_one_b_rows(tuple(s.devices for s in stages), microbatches, in_flight=microbatches)
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
    return (
        lower_plan(plan, stages=(stages,), rows=rows, classes=classes, edges=edges, shape=shape),
        costs,
        shape.blocking,
    )


def _edge(
    problem: Problem, options: tuple[StageOption, ...], chunk: int, messages: Messages
) -> LaneEdge:
    """The cached edge from the previous stage into stage `chunk`."""
    pair = options[chunk - 1], options[chunk]
    key = id(pair[0]), id(pair[1])
    if key not in messages:
        (messages[key],) = lane_edges(problem, (pair[0].parts, replace(pair[1].parts, chunk=1)))
    lane_edge = messages[key]
    return replace(lane_edge, edge=replace(lane_edge.edge, source=chunk - 1, target=chunk))
