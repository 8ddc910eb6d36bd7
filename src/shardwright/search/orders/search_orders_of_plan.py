"""Find the ``table-search`` orders of a general plan for its stages on a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TypeGuard

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.network.list_stage_edges_of_lane_with_messages import lane_edges
from shardwright.cost.network.networks_of_plan_devices import kind_problem, working_problem
from shardwright.cost.network.stage_transfers import crossing_seconds
from shardwright.cost.step.stage_action_seconds import StageCosts
from shardwright.cost.step.strategy_rank_bytes import held_bytes
from shardwright.errors import InfeasibleError, StrategyError
from shardwright.program.identity_cache_keys import Same
from shardwright.program.orders.plan_action_rows import TABLE_SEARCH, action_rows
from shardwright.program.stages.stage_messages import LaneEdge
from shardwright.program.stages.stage_segments import StageParts, plan_stages, working_devices
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.search.orders.find_order_tables_by_stage_times import find_order_tables
from shardwright.search.orders.order_problem import LARGEST
from shardwright.search.orders.stage_times_and_bytes import StageTimes
from shardwright.simulator.price_device_families_of_stages import price_stages
from shardwright.simulator.resolve_stages_edges_and_device_classes import summings_of
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.simulator.stage_kinds_priced_once import stage_kinds
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_structural_plan_rules import require_valid
from shardwright.units import format_bytes

_PER_SECOND = 10**9
"""Times are in whole nanoseconds."""
_ONCE = ("workspace",)
"""Memory items that a device has once, in any number of stages."""


def has_searched_orders(plan: Plan) -> bool:
    """True if some order of the plan is still to be found by a search."""
    return any(_is_searched(order) for order in plan.orders)


def _is_searched(order: NamedOrder | Table) -> TypeGuard[NamedOrder]:
    """True for an order called ``table-search``."""
    return isinstance(order, NamedOrder) and order.schedule == TABLE_SEARCH


def with_searched_orders(problem: Problem, plan: Plan, *, effort: float = 1.0) -> Plan:
    """The plan with the fastest order found in place of every order called ``table-search``.

    `find_order_tables` finds tables for the plan's own times (`stage_times_of_plan`), which leave
    out what the simulation has: transfers that queue behind one another, reductions, pairs that
    overlap. So each registry schedule with the plan's placement of stages is simulated too, in
    place of all searched orders at once, and is kept where it fits in memory and takes less time
    than the tables. The same arguments give the same plan.

    Raises:
        StrategyError: the plan breaks a rule, or has a feature that lowering leaves out.
        InfeasibleError: no order fits in memory.
    """
    if not has_searched_orders(plan):
        return plan
    require_valid(
        plan,
        model=problem.model,
        global_batch=problem.job.global_batch,
        seq_len=problem.job.sequence_length,
    )
    refusal: InfeasibleError | None = None
    best: tuple[float, Plan] | None = None
    try:
        found = find_order_tables(plan, times=stage_times_of_plan(problem, plan), effort=effort)
        best = simulate_plan(problem, found).step_time_s, found
    except InfeasibleError as error:
        refusal = error
    for variant in _with_named_schedules(plan):
        try:
            done = simulate_plan(problem, variant)
        except StrategyError:
            continue
        if done.fits and (best is None or done.step_time_s < best[0]):
            best = done.step_time_s, variant
    if best is None:
        assert refusal is not None
        raise refusal
    return best[1]


def _with_named_schedules(plan: Plan) -> Iterator[Plan]:
    """Yield the plan under each registry schedule that has its stages on the same ranks.

    The schedule replaces all searched orders at once.
    """
    for name in SCHEDULES:
        orders = tuple(
            replace(o, schedule=name, parameters=()) if _is_searched(o) else o for o in plan.orders
        )
        variant = replace(plan, orders=orders)
        try:
            action_rows(variant)
        except StrategyError:
            continue
        yield variant


def stage_times_of_plan(problem: Problem, plan: Plan) -> StageTimes:
    """Nanoseconds and bytes of one microbatch in each stage, and each device's activation room.

    A stage takes as long as its slowest devices, its transfers as long as the busiest device's. A
    device has for activations its memory less the bytes that live through the step, its largest
    temporaries and logits, and the bytes outside the allocator.

    Raises:
        StrategyError: a stage does not resolve, or has a feature that lowering leaves out.
        InfeasibleError: a device is full without activations.
    """
    stages = plan_stages(plan, model=problem.model)
    problem = working_problem(problem, working_devices(Same(stages)))
    costs = price_stages(
        problem, plan, stages, stage_kinds(problem, stages, summings_of(problem, stages))
    )
    shape = (len(stages), max(len(lane) for lane in stages))
    names = ("forward", "input", "weight", "send_forward", "send_backward", "held")
    columns = {name: np.zeros(shape, dtype=np.int64) for name in names}
    edges = []
    for number, lane in enumerate(stages):
        for stage in lane:
            found = [_family_times(costs, stage, family) for family in range(len(stage.families))]
            for name, value in zip(
                ("forward", "input", "weight", "held"),
                np.array(found).max(axis=0).tolist(),
                strict=True,
            ):
                columns[name][number, stage.chunk] = value
        links = lane_edges(problem, lane)
        edges.append(tuple((link.edge.source, link.edge.target) for link in links))
        for link in links:
            forward, backward = _crossing_times(problem, costs, link)
            columns["send_forward"][number, link.edge.source] = max(
                columns["send_forward"][number, link.edge.source], forward
            )
            columns["send_backward"][number, link.edge.target] = max(
                columns["send_backward"][number, link.edge.target], backward
            )
    # A device keeps all bytes of a microbatch until W: bytes that only I needs are not separated.
    return StageTimes(
        **columns,
        stash=columns["held"],
        limit=_activation_limits(problem, plan, stages, costs),
        edges=tuple(edges),
    )


def _family_times(costs: StageCosts, stage: StageParts, family: int) -> tuple[int, int, int, int]:
    """(F, I, W) nanoseconds and saved bytes of one microbatch on a family of devices.

    Of the slowest slice, where the microbatch is cut.
    """
    place = stage.lane, stage.chunk, family
    parts = range(len(costs.families[place].slices))
    times = [
        max(_nanoseconds(costs.seconds(*place, part, kind)) for part in parts)
        for kind in (TaskKind.F, TaskKind.I, TaskKind.W)
    ]
    return (
        times[0],
        times[1],
        times[2],
        max(int(costs.step(*place, part).saved_bytes[0]) for part in parts),
    )


def _nanoseconds(seconds: float) -> int:
    """Seconds as whole nanoseconds, at least 0."""
    return max(round(seconds * _PER_SECOND), 0)


def _crossing_times(problem: Problem, costs: StageCosts, link: LaneEdge) -> tuple[int, int]:
    """Nanoseconds of one microbatch's longest slice over an edge, forward and backward."""
    lengths = costs.lengths[link.lane]
    scale = costs.element * max(lengths) / sum(lengths)
    return _nanoseconds(crossing_seconds(problem, link.forward, scale=scale)), _nanoseconds(
        crossing_seconds(problem, link.backward, scale=scale)
    )


def _activation_limits(
    problem: Problem, plan: Plan, stages: tuple[tuple[StageParts, ...], ...], costs: StageCosts
) -> IntArray:
    """(devices,) bytes for saved activations of all microbatches; LARGEST on an unused device."""
    places: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for lane in stages:
        for stage in lane:
            for index, family in enumerate(stage.families):
                for device in family:
                    places[device].append((stage.lane, stage.chunk, index))
    limit = np.full(plan.devices, LARGEST, dtype=np.int64)
    rooms: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}
    for device, device_places in places.items():
        device_problem = kind_problem(problem, device)
        key = device_problem.cluster.node.accelerator.memory_bytes, tuple(device_places)
        if key not in rooms:
            rooms[key] = _activation_room(device_problem, costs, device_places, device)
        limit[device] = rooms[key]
    return limit


def _activation_room(
    device_problem: Problem,
    costs: StageCosts,
    stage_families: list[tuple[int, int, int]],
    device: int,
) -> int:
    """Bytes on a device for saved activations of all microbatches; InfeasibleError if negative."""
    steps = [step for place in stage_families for step in costs.families[place].slices]
    static: dict[str, int] = defaultdict(int)
    for place in stage_families:
        for name, values in costs.step(*place).static_bytes:
            static[name] = (
                max(static[name], int(values[0]))
                if name in _ONCE
                else static[name] + int(values[0])
            )
    fixed = (
        sum(static.values())
        + max(int(s.logits_bytes[0]) for s in steps)
        + max(int(s.transient_bytes[0]) for s in steps)
    )
    capacity = device_problem.cluster.node.accelerator.memory_bytes
    blocks = max(steps, key=lambda s: int(s.blocks_bytes[0]))
    kept, held = (
        int(x[0]) for x in held_bytes(device_problem, blocks, np.array([fixed], dtype=np.int64))
    )
    # The allocator reserves in proportion to its bytes, so the room shrinks by the same factor.
    room = ceil((capacity - held) * (fixed / kept if kept else 1.0))
    if room < 0:
        raise InfeasibleError(
            f"device {device} needs {format_bytes(held)} beside its activations, more than its"
            f" {format_bytes(capacity)}",
            hint="shard or offload more, or more devices",
        )
    return min(room, LARGEST)
