"""Bounds are tight on the two large problems, so that few members are simulated."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from shardwright.cost.critical_path import path_seconds
from shardwright.cost.step_costs import step_costs
from shardwright.hardware.overrides import effective_memory
from shardwright.search.grid.bounded import bound_space
from shardwright.search.grid.find import find
from shardwright.search.grid.members import member_grid
from shardwright.simulator.simulate import simulate_grid
from tests.search.problems import Case, gpt3_175b, llama_405b
from tests.tiers import in_both, many, random_of

SAMPLE = many(20, 400)


@cache
def looseness(make: Callable[[], Case]) -> tuple[float, float]:
    """Medians of (S - B0) / S and (S - B1) / S over a sample; each tier bounds the next."""
    case: Case = make()
    problem, capacity = case.problem, effective_memory(case.problem.cluster)
    bounded = bound_space(problem, case.space, case.facts, capacity=capacity)
    feasible = np.flatnonzero(np.isfinite(bounded.seconds))
    loose_b0, loose_b1 = [], []
    for place in random_of(3).sample(feasible.tolist(), SAMPLE):
        grid, priced = member_grid(bounded.members, place), bounded.prepared.priced(place)
        path = path_seconds(problem, grid, step_costs(problem, grid, priced))
        seconds = simulate_grid(problem, grid).step_time_s
        assert bounded.seconds[place] <= path <= seconds * (1 + 1e-12)
        loose_b0.append(1 - bounded.seconds[place] / seconds)
        loose_b1.append(1 - path / seconds)
    return float(np.median(loose_b0)), float(np.median(loose_b1))


@in_both
@pytest.mark.parametrize("make", [llama_405b, pytest.param(gpt3_175b, marks=pytest.mark.proof)])
def test_bounds_are_tight(make: Callable[[], Case]) -> None:
    b0, b1 = looseness(make)
    assert b0 <= 0.05
    assert b1 <= 0.002


@pytest.mark.parametrize("make", [llama_405b, pytest.param(gpt3_175b, marks=pytest.mark.proof)])
def test_few_members_are_simulated(make: object) -> None:
    assert callable(make)
    case: Case = make()
    answer = find(case.problem, case.space, case.facts, capacity=effective_memory(case.problem.cluster), top=4)
    assert answer.certificate.simulated <= 100
    assert answer.certificate.optimal
    assert len(answer.alternatives) == 3
