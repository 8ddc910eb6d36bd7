"""The declared instances of order search at scale: 16 stages x 64 microbatches in 1, 1.5 and 2
times the memory of 1F1B's first rank."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.search.orders.find_order import find_order
from shardwright.search.orders.makespan_lower_bounds import order_bounds
from shardwright.search.orders.order_problem import OrderProblem
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import price_grid
from tests.jobs import training_job
from tests.search.orders.replay import chain, replay

RANKS, MICROBATCHES = 16, 64
FACTORS = (1.0, 1.5, 2.0)
FEW = 4
"""Instances of the usual run: two even pipelines, Llama, and an uneven one."""
SHORT = (
    "no order is within 2 % of the classical bound on nine of 23 instances in 1F1B's memory, as the"
    " bound with the limit proves"
)


def llama(limit: int) -> OrderProblem:
    """Block times of Llama 3.1 405B at tp8 pp16 on H100, the head on the last stage,
    microseconds."""
    job = training_job(seq_len=8192, global_batch=MICROBATCHES)
    problem = Problem(
        model=load_model("llama-3.1-405b"),
        cluster=parse_cluster("h100-sxm:128"),
        job=job,
        runtime=load_runtime("megatron-core"),
    )
    grid = Grid(tp=8, sp=True, pp=RANKS, layers=(8,) * 14 + (7, 7))
    costs = step_costs(problem, grid, price_grid(problem, grid))
    whole = {
        "forward": costs.forward_s,
        "input": costs.backward_s - costs.weight_s,
        "weight": costs.weight_s,
    }
    times = {name: np.rint(1e6 * seconds).astype(int)[None] for name, seconds in whole.items()}
    return chain(
        RANKS, MICROBATCHES, **times, send=round(1e6 * float(costs.border_s[0, -1])), limit=limit
    )


def instances(factor: float) -> list[OrderProblem]:
    """F = I = W without and with transfers of a tenth, Llama's blocks, and twenty random uneven
    pipelines."""
    limit = round(RANKS * factor)
    found = [
        chain(RANKS, MICROBATCHES, forward=1000, input=1000, weight=1000, send=send, limit=limit)
        for send in (0, 100)
    ]
    found.append(llama(limit))
    for seed in range(20):
        random = np.random.default_rng(seed)
        base = random.uniform(750, 1250, RANKS)
        times = {
            name: (base * random.uniform(0.9, 1.1, RANKS)).astype(int)[None]
            for name in ("forward", "input", "weight")
        }
        found.append(
            chain(RANKS, MICROBATCHES, **times, send=int(random.integers(0, 150)), limit=limit)
        )
    return found


@lru_cache(maxsize=6)
def gaps(factor: float, count: int | None = None) -> tuple[tuple[float, float], ...]:
    """(gap to the best bound, gap to the classical bound) of each instance, or of the first
    ones."""
    result = []
    for problem in instances(factor)[:count]:
        found = find_order(problem)
        assert replay(problem, found.table) == (found.makespan, list(found.peak))
        assert max(found.peak) <= int(problem.limit.max())
        result.append(
            (found.makespan / found.lower_bound - 1, 1.0 - found.classical_bound / found.makespan)
        )
    return tuple(result)


@pytest.mark.parametrize(
    ("factor", "count"),
    [
        *((f, FEW) for f in FACTORS),
        *(pytest.param(f, None, marks=pytest.mark.proof) for f in FACTORS),
    ],
)
def test_gap_to_the_bound_that_knows_the_limit(factor: float, count: int | None) -> None:
    found = [best for best, _ in gaps(factor, count)]
    assert np.mean(found) <= 0.005
    assert max(found) <= 0.02


@pytest.mark.proof
@pytest.mark.parametrize(
    "factor",
    [
        pytest.param(f, marks=[pytest.mark.xfail(strict=True, reason=SHORT)] if f == 1.0 else [])
        for f in FACTORS
    ],
)
def test_gap_to_the_classical_bound(factor: float) -> None:
    found = [classical for _, classical in gaps(factor)]
    assert np.mean(found) <= 0.005
    assert max(found) <= 0.02


def test_what_no_order_can_reach() -> None:
    """In 1F1B's memory the proven bound alone is over 2 % above the classical one on some
    instances."""
    bounds = [order_bounds(problem) for problem in instances(1.0)]
    assert sum(b.classical < 0.98 * b.memory for b in bounds) >= 5
