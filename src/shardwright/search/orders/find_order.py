"""Search for the best order of a pipeline's actions under a memory limit, with a lower bound.

Candidates are named schedules, repetends and list schedules, improved by local search.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from shardwright.arrays import IntArray
from shardwright.search.orders.find_and_unroll_repeating_action_blocks import repetends, unroll
from shardwright.search.orders.found_order import (
    CodedOrder,
    FoundOrder,
    codes_of_table,
    evaluate_order,
    one_microbatch_at_a_time,
    table_of_codes,
)
from shardwright.search.orders.list_scheduling import climb, deeper_chunk_bytes, list_schedule
from shardwright.search.orders.makespan_lower_bounds import order_bounds, round_trip_times
from shardwright.search.orders.named_schedules_with_same_placement import named_tables
from shardwright.search.orders.order_local_search import shift
from shardwright.search.orders.order_problem import OrderProblem, problem_arrays

PATIENCE = (0, 8, 14, 16, 20, 24)
"""Sixteenths of a weight gradient that must fit into a gap before it is scheduled there."""
DEPTHS = (0.75, 1.0, 1.25, 1.375, 1.5, 1.625, 1.75, 2.0, 2.5, 3.0, 100.0)
"""Most forwards in flight, as multiples of those of a pipeline without waits."""
CLIMB_ACTIONS = 1_000_000
"""Total number of actions scheduled in changes of a policy."""
SHIFT_ACTIONS = 50_000_000
"""Total number of actions run in random moves."""
STARTS = 3
"""Orders from which random moves start."""
MOVED = ", improved"


def find_order(problem: OrderProblem, *, effort: float = 1.0, seed: int = 0) -> FoundOrder:
    """Find the order with the least makespan that fits in every rank's memory, with a bound.

    Never worse than a named schedule that fits. Candidates are the named schedules of this
    placement, unrolled repetends, and list schedules under a grid of policies. The best policies
    and then the best orders are changed at random as long as they get no worse. The same arguments
    give the same order.

    Args:
        effort: factor on the number of random changes; 1 takes well under a second for 16 ranks and
            64 microbatches.
        seed: seed of the random changes.
    """
    columns, limit, local = problem_arrays(problem)
    goal = order_bounds(problem).best
    orders = [
        evaluate_order(problem, columns, *one_microbatch_at_a_time(problem), method="one at a time")
    ]
    for step in (_named_orders, _repetend_orders, _list_scheduled_orders):
        orders = _feasible_orders(
            [*orders, *step(problem, columns, local, goal, effort, seed)], limit
        )
        if orders[0].makespan <= goal:
            break
    best = _improve_by_moves(problem, columns, orders, goal, effort, seed)
    return make_found_order(problem, best, lower_bound=goal)


def make_found_order(problem: OrderProblem, order: CodedOrder, *, lower_bound: int) -> FoundOrder:
    """Create the search result for an order, with the times and peaks of its table.

    In the table, weight gradients without time may have moved forward.
    """
    table = table_of_codes(problem, order)
    final = evaluate_order(
        problem, problem_arrays(problem)[0], *codes_of_table(problem, table), method=order.method
    )
    return FoundOrder(
        table=table,
        makespan=final.makespan,
        lower_bound=lower_bound,
        classical_bound=order_bounds(problem).classical,
        peak=tuple(final.peak.tolist()),
        method=order.method,
    )


def _feasible_orders(orders: list[CodedOrder], limit: IntArray) -> list[CodedOrder]:
    """The orders that do not deadlock and fit in memory, the least makespan first."""
    feasible = [order for order in orders if order.makespan >= 0 and (order.peak <= limit).all()]
    return sorted(feasible, key=lambda order: order.makespan)


def _improve_by_moves(
    problem: OrderProblem,
    columns: IntArray,
    orders: list[CodedOrder],
    goal: int,
    effort: float,
    seed: int,
) -> CodedOrder:
    """Improve orders by random moves of actions from several starts; return the best.

    A few starts get a small share of the tries each, and the best of them the rest.
    """
    tries = int(effort * SHIFT_ACTIONS) // len(orders[0].codes)
    for starts, share in ((STARTS, tries // (2 * STARTS)), (1, tries // 2)):
        tried: list[CodedOrder] = []
        for start in orders[:starts]:
            if (
                min(orders[0].makespan, *(order.makespan for order in tried), start.makespan)
                <= goal
            ):
                break
            makespan, codes = shift(
                columns,
                problem.limit.copy(),
                start.codes,
                start.row_start,
                problem.microbatches,
                goal,
                share,
                seed,
            )
            if makespan < start.makespan:
                name = start.method.removesuffix(MOVED)
                tried.append(
                    evaluate_order(problem, columns, codes, start.row_start, method=name + MOVED)
                )
        orders = _feasible_orders([*tried, *orders], problem.limit)
    return orders[0]


def _named_orders(
    problem: OrderProblem, columns: IntArray, local: IntArray, goal: int, effort: float, seed: int
) -> list[CodedOrder]:
    """Orders of the named schedules that have the problem's chunks on the same ranks."""
    return [
        evaluate_order(problem, columns, *codes_of_table(problem, table), method=name)
        for name, table in named_tables(problem)
    ]


def _repetend_orders(
    problem: OrderProblem, columns: IntArray, local: IntArray, goal: int, effort: float, seed: int
) -> list[CodedOrder]:
    """Orders of unrolled repetends, repeating blocks of one microbatch's actions."""
    return [
        evaluate_order(problem, columns, *unroll(problem, block), method="repetend")
        for block in repetends(problem)
    ]


def list_scheduling_policies(problem: OrderProblem) -> Iterator[IntArray]:
    """Yield (3, ranks) list-scheduling policies: patience, preference of F, most forwards open."""
    period = max(int(problem.work().max()) / problem.microbatches, 1.0)
    flight = round_trip_times(problem)
    owner = problem.owner.reshape(-1)
    through = np.array([flight[owner == rank].sum() for rank in range(problem.ranks)])
    for depth in DEPTHS:
        most = np.array([max(1, ceil(depth * time / period - 1e-9)) for time in through.tolist()])
        for patience in PATIENCE:
            for prefer in (0, 1):
                yield np.stack(
                    [np.full(problem.ranks, patience), np.full(problem.ranks, prefer), most]
                ).astype(np.int64)


def _list_scheduled_orders(
    problem: OrderProblem, columns: IntArray, local: IntArray, goal: int, effort: float, seed: int
) -> list[CodedOrder]:
    """Best list schedule of a grid of policies, and one after random changes; [] = none fits."""
    limit = problem.limit.copy()
    reserve = deeper_chunk_bytes(columns, local)
    best: tuple[int, IntArray] | None = None
    for policy in list_scheduling_policies(problem):
        makespan = int(
            list_schedule(columns, limit, local, reserve, problem.microbatches, policy)[0]
        )
        if makespan >= 0 and (best is None or makespan < best[0]):
            best = makespan, policy
        if best is not None and best[0] <= goal:
            break
    if best is None:
        return []
    tries = int(effort * CLIMB_ACTIONS) // (
        3 * problem.lanes * problem.chunks * problem.microbatches
    )
    changed = climb(
        columns, limit, local, reserve, problem.microbatches, best[1], goal, tries, seed
    )[1]
    lists = [
        list_schedule(columns, limit, local, reserve, problem.microbatches, policy)
        for policy in (best[1], changed)
    ]
    return [
        evaluate_order(problem, columns, codes, row_start, method="list schedule")
        for _, codes, row_start in lists
    ]
