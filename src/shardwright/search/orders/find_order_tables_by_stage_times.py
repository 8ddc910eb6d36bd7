"""Replace the searched orders of a plan by the best order tables found for its stage times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from shardwright.arrays import IntArray, distinct
from shardwright.errors import InfeasibleError, StrategyError
from shardwright.program.orders.action_graph import chains
from shardwright.program.orders.plan_action_rows import TABLE_SEARCH, ActionRows, action_rows
from shardwright.program.orders.rows_to_order_table import order_table_of_rows
from shardwright.program.orders.stage_device_sets_and_classes import Participation, participation
from shardwright.schedules.action_table_to_plan_entries_and_time_slots import row_entries
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.search.orders.find_order import find_order
from shardwright.search.orders.list_scheduling import NEVER
from shardwright.search.orders.multi_device_list_scheduling import (
    SharedActions,
    improve,
    list_sequence,
    run_sequence,
)
from shardwright.search.orders.multi_device_order_problem import (
    SharedActionsProblem,
    rows_in_order,
    sequence_of,
    shared_actions_problem,
)
from shardwright.search.orders.order_problem import LARGEST, OrderProblem
from shardwright.search.orders.stage_times_and_bytes import StageTimes
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import Plan

PATIENCE = (0, 8, 16)
"""Sixteenths of a weight gradient that must fit into a gap before it is scheduled there."""
LIST_ACTIONS = 1_000_000
"""Total number of actions scheduled under all policies."""
STARTS = 3
"""Orders of different length from which the random moves start."""
MOVE_ACTIONS = 30_000_000
"""Total number of actions run in random moves."""


def find_order_tables(
    plan: Plan, *, times: StageTimes, effort: float = 1.0, replace_named: bool = False
) -> Plan:
    """The plan with the best table found in place of each order called ``table-search``.

    Where stages share all devices or none and lanes are equal chains, `find_order` finds the order.
    Else it is the best list schedule of a grid of policies, or the best named schedule that fits,
    after random moves: each action occupies all devices of its stage. Either is no longer than
    every named schedule that fits. The same arguments give the same plan.

    Left out: the queueing of transfers, pairs that overlap, recomputation as an action.

    Args:
        times: times and bytes of every stage.
        effort: factor on the number of random changes.
        replace_named: replace named schedules too.

    Raises:
        StrategyError: a search has other parameters than ``seed``. InfeasibleError: no order that
        was tried keeps within the limits.
    """
    orders: list[NamedOrder | Table] = []
    for i, order in enumerate(plan.orders):
        if isinstance(order, NamedOrder) and (order.schedule == TABLE_SEARCH or replace_named):
            orders.append(_find_table(plan, order, times=times, effort=effort, path=f"order {i}"))
        else:
            orders.append(order)
    return replace(plan, orders=tuple(orders))


def _find_table(
    plan: Plan, order: NamedOrder, *, times: StageTimes, effort: float, path: str
) -> Table:
    """Find the order table of one order of the plan."""
    parameters = dict(order.parameters) if order.schedule == TABLE_SEARCH else {}
    seed = parameters.pop("seed", 0)
    if parameters or not isinstance(seed, int):
        raise StrategyError(
            f"{TABLE_SEARCH} has one parameter, seed, a number", rule="order.parameter", path=path
        )
    lanes = tuple(
        next(i for i, lane in enumerate(plan.lanes) if lane.name == name) for name in order.lanes
    )
    take = participation(plan, lanes=lanes)
    problem = _as_order_problem(plan, lanes=lanes, take=take, times=times)
    if problem is not None:
        table = find_order(problem, effort=effort, seed=seed).table
        rows = tuple(
            (devices[0], row_entries(table, rank=rank)) for rank, devices in enumerate(take.sets)
        )
        return Table(lanes=order.lanes, rows=tuple(sorted(rows, key=lambda row: row[0])))
    found = find_shared_action_rows(
        plan, lanes=lanes, take=take, times=times, effort=effort, seed=seed
    )
    return order_table_of_rows(
        found, plan=replace(plan, orders=(replace(order, schedule=TABLE_SEARCH),))
    )


def _as_order_problem(
    plan: Plan, *, lanes: tuple[int, ...], take: Participation, times: StageTimes
) -> OrderProblem | None:
    """The lanes as an order problem; None unless each stage is on one rank and lanes are equal."""
    order_lanes = [plan.lanes[lane] for lane in lanes]
    equal = len({(lane.microbatches, len(lane.stages)) for lane in order_lanes}) == 1
    unsliced = all(
        len(lane.slices) < 2 and all(stage.every == 1 for stage in lane.stages)
        for lane in order_lanes
    )
    usual = chains(plan)
    chained = times.edges is None or all(
        sorted(times.edges[lane]) == sorted(usual[lane]) for lane in lanes
    )
    if not (equal and unsliced and chained and take.disjoint):
        return None
    stages = len(order_lanes[0].stages)
    columns = {
        name: getattr(times, name)[list(lanes), :stages]
        for name in ("forward", "input", "weight", "send_forward", "send_backward", "held", "stash")
    }
    least = [
        LARGEST if times.limit is None else int(times.limit[devices.array].min())
        for devices in take.sets
    ]
    owner = np.array(
        [[take.set_of[lane, chunk] for chunk in range(stages)] for lane in lanes], np.int64
    )
    return OrderProblem(
        owner=owner,
        microbatches=order_lanes[0].microbatches,
        limit=np.array(least, np.int64),
        **columns,
    )


def find_shared_action_rows(
    plan: Plan,
    *,
    lanes: tuple[int, ...],
    take: Participation,
    times: StageTimes,
    effort: float = 1.0,
    seed: int = 0,
) -> ActionRows:
    """Find the best action rows for stages that may share any part of their devices.

    See `find_order_tables`.

    Raises:
        InfeasibleError: no order that was tried keeps within the limits.
    """
    problem = shared_actions_problem(plan, lanes=lanes, take=take, times=times)
    arrays = problem.arrays
    work = np.zeros(len(arrays.limit), np.int64)
    np.add.at(work, arrays.row, np.repeat(arrays.time, np.diff(arrays.row_start)))
    goal = max(int(work.max()), int(arrays.urgency.max(initial=0)))
    starts: list[tuple[int, int, IntArray]] = []
    for k, sequence in enumerate(_start_sequences(plan, problem, lanes=lanes, effort=effort)):
        makespan = _makespan(arrays, sequence)
        if makespan < NEVER and not any(makespan == other for other, _, _ in starts):
            starts = sorted([*starts, (makespan, k, sequence)], key=lambda one: one[:2])[:STARTS]
    if not starts:
        raise InfeasibleError(
            "no order keeps within the devices' limits",
            hint="keep less of each stage (recompute, offload)",
        )
    tries = int(effort * MOVE_ACTIONS) // (2 * len(arrays.time))
    moved = [
        improve(arrays, sequence, goal, tries // len(starts), seed) for _, _, sequence in starts
    ]
    _, best = improve(arrays, min(moved, key=lambda one: one[0])[1], goal, tries, seed)
    return rows_in_order(problem, best)


def _makespan(arrays: SharedActions, sequence: IntArray) -> int:
    """Makespan of a sequence; NEVER if it does not fit in memory."""
    rows = len(arrays.limit)
    return int(
        run_sequence(
            arrays,
            sequence,
            np.zeros(len(sequence), np.int64),
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
        )
    )


def _start_sequences(
    plan: Plan, problem: SharedActionsProblem, *, lanes: tuple[int, ...], effort: float
) -> Iterator[IntArray]:
    """Yield action sequences of named schedules, then of list schedules under a grid of policies.

    Policies with few microbatches in flight come first.
    """
    names = tuple(plan.lanes[lane].name for lane in lanes)
    for name in SCHEDULES:
        try:
            rows = action_rows(replace(plan, orders=(NamedOrder(schedule=name, lanes=names),)))
        except StrategyError:
            continue
        sequence = sequence_of(problem, rows)
        if sequence is not None:
            yield sequence
    arrays, total = problem.arrays, len(problem.graph.position)
    units = len(distinct(arrays.unit))
    counts = sorted({min(units, round(1.25**k)) for k in range(32)} | {units})
    most = max(1, int(effort * LIST_ACTIONS) // total)
    limits = (0, 1) if (arrays.limit < NEVER).any() else (0,)
    policies = list(product(counts, PATIENCE, (0, 1), limits))
    for policy in policies[:: max(1, -(-len(policies) // most))]:
        size, sequence = list_sequence(arrays, *policy)
        if size == total:
            yield sequence
