"""The best order with a proof, for small pipelines: CP-SAT over the starts of all actions."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import UsageError
from shardwright.search.orders.find_order import find_order, make_found_order
from shardwright.search.orders.found_order import FoundOrder, codes_of_table, evaluate_order
from shardwright.search.orders.order_makespan_and_peak_memory import walk
from shardwright.search.orders.order_problem import OrderProblem, problem_arrays

LARGEST = 4096
"""Most actions: beyond that a model is not even built."""


def exact_order(
    problem: OrderProblem,
    *,
    time_limit_s: float = 10.0,
    workers: int = 2,
    effort: float = 0.1,
    seed: int = 0,
) -> FoundOrder:
    """The order that ends first, proven as far as `time_limit_s` goes; its `lower_bound` says
    whether it went all the way.

    Starts of all actions are variables; a rank's actions do not overlap, chains and transfers are
    precedences, and each rank's memory is a cumulative resource: a microbatch takes held - stash
    from F's start to I's end and stash from F's start to W's end. Microbatches of a chunk run in
    one order for all kinds (see `OrderProblem`), which removes their permutations. The search
    starts from the answer of `find_order`, which also bounds it from above. Whatever the solver
    answers is decoded into a table, whose time and memory are computed anew.

    Args:
        time_limit_s: of the solver, elapsed.
        workers: its threads; with more than one, orders of equal length may differ between runs.
        effort, seed: of `find_order`.

    Raises:
        UsageError: the problem is too large.
    """
    columns, _, _ = problem_arrays(problem)
    actions = 3 * columns.shape[1] * problem.microbatches
    if actions > LARGEST:
        raise UsageError(
            f"an exact order of {actions} actions is out of reach; the limit is {LARGEST}",
            hint="use find_order",
        )
    start = find_order(problem, effort=effort, seed=seed)
    if start.makespan == start.lower_bound:
        return start
    from ortools.sat.python import cp_model

    unit = _unit(columns)
    model = cp_model.CpModel()
    starts, makespan = _encode(
        model, problem, columns, unit=unit, lower=start.lower_bound, upper=start.makespan
    )
    for variable, value in zip(starts, starts_of(problem, columns, start).tolist(), strict=True):
        model.add_hint(variable, value // unit)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    assert status not in (cp_model.INFEASIBLE, cp_model.MODEL_INVALID), (
        "the order that is known fits the model"
    )
    proven = max(start.lower_bound, int(np.ceil(solver.best_objective_bound - 1e-6)) * unit)
    if status == cp_model.UNKNOWN or round(solver.objective_value) * unit >= start.makespan:
        return replace(start, lower_bound=min(proven, start.makespan))
    values = np.array([solver.value(variable) for variable in starts], np.int64) * unit
    order = evaluate_order(problem, columns, *decode(problem, columns, values), method="exact")
    assert 0 <= order.makespan <= round(solver.objective_value) * unit, (
        "the decoded order runs as the model says"
    )
    assert (order.peak <= problem.limit).all(), "the decoded order fits"
    return make_found_order(problem, order, lower_bound=min(proven, order.makespan))


def _unit(columns: IntArray) -> int:
    """The greatest common divisor of all times, at least 1."""
    return max(gcd(*columns[1:6].reshape(-1).tolist()), 1)


def _encode(
    model: Any, problem: OrderProblem, columns: IntArray, *, unit: int, lower: int, upper: int
) -> tuple[list[Any], Any]:
    """The model's start variables by (kind, chunk, microbatch), and its makespan."""
    chunks, m = columns.shape[1], problem.microbatches
    owner, forward, inputs, weight, send_forward, send_backward, held, stash, first, last = (
        columns.tolist()
    )
    length = [[time // unit for time in times] for times in (forward, inputs, weight)]
    horizon = upper // unit
    makespan = model.new_int_var(-(-lower // unit), horizon, "makespan")
    start = [
        [[model.new_int_var(0, horizon, "") for _ in range(m)] for _ in range(chunks)]
        for _ in range(3)
    ]
    intervals: list[list[Any]] = [[] for _ in range(problem.ranks)]
    kept: list[list[tuple[Any, int]]] = [[] for _ in range(problem.ranks)]
    for c in range(chunks):
        rank = owner[c]
        for k in range(m):
            for kind in range(3):
                intervals[rank].append(
                    model.new_fixed_size_interval_var(start[kind][c][k], length[kind][c], "")
                )
                if k + 1 < m:
                    model.add(start[kind][c][k + 1] >= start[kind][c][k] + length[kind][c])
            model.add(start[1][c][k] >= start[0][c][k] + length[0][c])
            model.add(start[2][c][k] >= start[1][c][k] + length[1][c])
            model.add(makespan >= start[2][c][k] + length[2][c])
            if not first[c]:
                model.add(
                    start[0][c][k]
                    >= start[0][c - 1][k] + length[0][c - 1] + -(-send_forward[c - 1] // unit)
                )
            if not last[c]:
                model.add(
                    start[1][c][k]
                    >= start[1][c + 1][k] + length[1][c + 1] + -(-send_backward[c + 1] // unit)
                )
            for amount, kind in ((held[c] - stash[c], 1), (stash[c], 2)):
                if amount:
                    size = model.new_int_var(0, horizon, "")
                    until = start[kind][c][k] + length[kind][c]
                    kept[rank].append(
                        (model.new_interval_var(start[0][c][k], size, until, ""), amount)
                    )
        # Of more microbatches than fit the first must have gone: implied by the resource, and much
        # quicker to propagate.
        for amount, kind in ((held[c], 1), (stash[c], 2)):
            room = int(problem.limit[rank]) // amount if amount else m
            for k in range(m - room):
                model.add(start[0][c][k + room] >= start[kind][c][k] + length[kind][c])
    for rank in range(problem.ranks):
        model.add_no_overlap(intervals[rank])
        model.add_cumulative(
            [interval for interval, _ in kept[rank]],
            [amount for _, amount in kept[rank]],
            int(problem.limit[rank]),
        )
    return [variable for kind in start for chunk in kind for variable in chunk], makespan


def starts_of(problem: OrderProblem, columns: IntArray, order: FoundOrder) -> IntArray:
    """Start of each (kind, chunk, microbatch) of a known order, flat."""
    chunks = columns.shape[1]
    codes, row_start = codes_of_table(problem, order.table)
    end = np.zeros((3 * chunks, problem.microbatches), np.int64)
    at, free = np.zeros(problem.ranks, np.int64), np.zeros(problem.ranks, np.int64)
    walk(
        columns,
        codes,
        row_start,
        problem.microbatches,
        end,
        at,
        free,
        np.zeros(3 * chunks, np.int64),
    )
    return (end - columns[1:4].reshape(-1)[:, None]).reshape(-1)


def decode(problem: OrderProblem, columns: IntArray, values: IntArray) -> tuple[IntArray, IntArray]:
    """Rows by start, from the start of each (kind, chunk, microbatch): (codes, row_start)."""
    chunks, m = columns.shape[1], problem.microbatches
    code, microbatch = (index.reshape(-1) for index in np.indices((3 * chunks, m)))
    kind, chunk = code // chunks, code % chunks
    rank = columns[0][chunk]
    depth = np.where(kind == 0, chunk % problem.chunks, 2 * problem.chunks - chunk % problem.chunks)
    ends = values + columns[1:4].reshape(-1)[code]
    order = np.lexsort((kind, depth, microbatch, ends, values, rank))
    return code[order].astype(np.int64), np.searchsorted(
        rank[order], np.arange(problem.ranks + 1)
    ).astype(np.int64)
