"""Search for the best order of a pipeline's actions: named schedules, repetends, list scheduling
and local search, with a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from shardwright.arrays import IntArray
from shardwright.search.orders.found_order import (
    Codes,
    FoundOrder,
    codes_of,
    one_at_a_time,
    table_of_codes,
    weigh,
)
from shardwright.search.orders.list_scheduling import climb, list_schedule, reserves
from shardwright.search.orders.named_schedules import named_tables
from shardwright.search.orders.order_bounds import order_bounds, trip
from shardwright.search.orders.order_local_search import shift
from shardwright.search.orders.order_problem import OrderProblem, flat
from shardwright.search.orders.repetend import repetends, unrolled

PATIENCE = (0, 8, 14, 16, 20, 24)
"""Sixteenths of a weight gradient that must fit into a gap before it is begun."""
DEPTHS = (0.75, 1.0, 1.25, 1.375, 1.5, 1.625, 1.75, 2.0, 2.5, 3.0, 100.0)
"""Most forwards in flight, in what a pipeline without waits has in flight."""
CLIMB_ACTIONS = 1_000_000
"""Actions that policies are tried on in all."""
SHIFT_ACTIONS = 50_000_000
"""Actions that moves are tried on in all."""
STARTS = 3
"""Orders that moves start from."""
MOVED = ", improved"


def find_order(problem: OrderProblem, *, effort: float = 1.0, seed: int = 0) -> FoundOrder:
    """The best order found that fits in every rank's memory, with a bound; never worse than a named
    schedule that fits.

    Candidates are the named schedules of this placement, unrolled repetends, and list schedules
    under a grid of policies. The best policies and then the best orders are changed at random as
    long as they get no worse. The same arguments give the same order.

    Args:
        effort: factor of the number of random changes; 1 takes well under a second for 16 ranks and
            64 microbatches.
        seed: of the changes.
    """
    columns, limit, local = flat(problem)
    goal = order_bounds(problem).best
    orders = [weigh(problem, columns, *one_at_a_time(problem), method="one at a time")]
    for step in (_named, _repeated, _listed):
        orders = _fitting([*orders, *step(problem, columns, local, goal, effort, seed)], limit)
        if orders[0].makespan <= goal:
            break
    best = _improved(problem, columns, orders, goal, effort, seed)
    return found_order(problem, best, lower_bound=goal)


def found_order(problem: OrderProblem, order: Codes, *, lower_bound: int) -> FoundOrder:
    """The result of a search for `order`; times and peaks are those of its table, in which
    weight gradients without time may have moved forward.
    """
    table = table_of_codes(problem, order)
    final = weigh(problem, flat(problem)[0], *codes_of(problem, table), method=order.method)
    return FoundOrder(
        table=table,
        makespan=final.makespan,
        lower_bound=lower_bound,
        classical_bound=order_bounds(problem).classical,
        peak=tuple(final.peak.tolist()),
        method=order.method,
    )


def _fitting(orders: list[Codes], limit: IntArray) -> list[Codes]:
    """The orders that do not deadlock and fit in memory, the least makespan first."""
    fitting = [order for order in orders if order.makespan >= 0 and (order.peak <= limit).all()]
    return sorted(fitting, key=lambda order: order.makespan)


def _improved(
    problem: OrderProblem,
    columns: IntArray,
    orders: list[Codes],
    goal: int,
    effort: float,
    seed: int,
) -> Codes:
    """The best of `orders` after random moves: a few starts get a small share of the tries each,
    and the best of them the rest.
    """
    tries = int(effort * SHIFT_ACTIONS) // len(orders[0].codes)
    for starts, share in ((STARTS, tries // (2 * STARTS)), (1, tries // 2)):
        tried: list[Codes] = []
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
                tried.append(weigh(problem, columns, codes, start.row_start, method=name + MOVED))
        orders = _fitting([*tried, *orders], problem.limit)
    return orders[0]


def _named(
    problem: OrderProblem, columns: IntArray, local: IntArray, goal: int, effort: float, seed: int
) -> list[Codes]:
    """Orders of the named schedules that have the problem's chunks on the same ranks."""
    return [
        weigh(problem, columns, *codes_of(problem, table), method=name)
        for name, table in named_tables(problem)
    ]


def _repeated(
    problem: OrderProblem, columns: IntArray, local: IntArray, goal: int, effort: float, seed: int
) -> list[Codes]:
    """Orders of unrolled repetends."""
    return [
        weigh(problem, columns, *unrolled(problem, block), method="repetend")
        for block in repetends(problem)
    ]


def policies(problem: OrderProblem) -> Iterator[IntArray]:
    """A grid of policies of list scheduling."""
    period = max(int(problem.work().max()) / problem.microbatches, 1.0)
    flight = trip(problem)
    owner = problem.owner.reshape(-1)
    through = np.array([flight[owner == rank].sum() for rank in range(problem.ranks)])
    for depth in DEPTHS:
        most = np.array([max(1, ceil(depth * time / period - 1e-9)) for time in through.tolist()])
        for patience in PATIENCE:
            for prefer in (0, 1):
                yield np.stack(
                    [np.full(problem.ranks, patience), np.full(problem.ranks, prefer), most]
                ).astype(np.int64)


def _listed(
    problem: OrderProblem, columns: IntArray, local: IntArray, goal: int, effort: float, seed: int
) -> list[Codes]:
    """The best list schedule of the grid of policies, and of random changes of its policy."""
    limit = problem.limit.copy()
    reserve = reserves(columns, local)
    best: tuple[int, IntArray] | None = None
    for policy in policies(problem):
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
        weigh(problem, columns, codes, row_start, method="list schedule")
        for _, codes, row_start in lists
    ]
