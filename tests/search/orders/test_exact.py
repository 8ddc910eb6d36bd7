"""Exact orders: CP-SAT's proof against all orders."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from shardwright.errors import UsageError
from shardwright.search.orders.find_order import find_order
from shardwright.search.orders.order_problem import OrderProblem
from tests.search.orders.exact import exact_order
from tests.search.orders.replay import chain, problems, replay
from tests.tiers import examples

needs_solver = pytest.importorskip


def test_what_is_too_large() -> None:
    with pytest.raises(UsageError, match="out of reach"):
        exact_order(chain(16, 128, send=1, limit=16))


def test_proven_four_by_eight() -> None:
    """Memory of 1, 1.5 and 2 times 1F1B's, transfers, uneven stages: optimal every time, and no
    worse with more memory."""
    needs_solver("ortools")
    for times in ([10, 10, 10, 10], [10, 12, 9, 14]):
        found = []
        for limit in (4, 6, 8):
            problem = chain(
                4, 8, forward=[times], input=[times], weight=[times], send=1, limit=limit
            )
            order = exact_order(problem, time_limit_s=60)
            assert order.makespan == order.lower_bound
            assert replay(problem, order.table) == (order.makespan, list(order.peak))
            assert max(order.peak) <= limit
            found.append(order.makespan)
        assert all(more <= less for less, more in pairwise(found))


def test_the_solver_beats_the_search_or_proves_it() -> None:
    """In three quarters of 1F1B's memory bounds are loose: only the solver closes the gap."""
    needs_solver("ortools")
    problem = chain(4, 8, forward=10, input=10, weight=10, send=2, limit=3)
    first = find_order(problem, effort=0.05)
    proven = exact_order(problem, time_limit_s=60)
    assert proven.makespan == proven.lower_bound
    assert first.lower_bound < proven.lower_bound == proven.makespan <= first.makespan


@given(problem=problems(most_ranks=3, most_microbatches=3))
@examples(25)
def test_exact_orders_run_and_fit(problem: OrderProblem) -> None:
    needs_solver("ortools")
    order = exact_order(problem, time_limit_s=30)
    makespan, peaks = replay(problem, order.table)
    assert makespan == order.makespan
    assert (np.array(peaks) <= problem.limit).all()
    assert order.lower_bound <= order.makespan <= find_order(problem, effort=0.02).makespan
