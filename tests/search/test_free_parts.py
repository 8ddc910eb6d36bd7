"""A part of the step that takes no time: bounds stay below the simulated step, the search finds the
best plan of the changed problem, and the part is gone from the breakdown."""

import dataclasses

import pytest

from shardwright.cost.part_phase_recompute_keys import PARTS
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import block_problem, sums_problem
from shardwright.program.problem_where_step_part_takes_no_time import (
    REMOVABLE_PARTS,
    with_free_part,
)
from shardwright.program.training_problem import Problem
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.search_time_limit import limit_of
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.simulator.step_breakdown import breakdown
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.search.brute import count, judge
from tests.search.problems import DOMAINS, NODES, small_case
from tests.search.test_optimal import assert_bounds_hold
from tests.tiers import many, seeds

CASES = many(1, 6)
"""Problems for each part in a block."""


@pytest.mark.parametrize("block", seeds(1, 8))
@pytest.mark.parametrize("part", REMOVABLE_PARTS)
def test_search_of_the_changed_problem_equals_brute_force(part: str, block: int) -> None:
    least = 0
    for seed in range(block * CASES, (block + 1) * CASES):
        number = 40 * REMOVABLE_PARTS.index(part) + seed
        case = small_case(number, most=many(100, 1500), nodes=DOMAINS if number % 3 == 2 else NODES)
        free = dataclasses.replace(case, problem=with_free_part(case.problem, part))
        counted = count(free.problem, free.space, free.facts)
        known = dict(zip(counted.grids, judge(free.problem, counted.grids.values()), strict=True))
        if not known:
            continue
        capacity = max(judged.need for judged in known.values())
        assert_bounds_hold(free, known, capacity)
        found = search(
            free.problem,
            free.space,
            free.facts,
            capacity=capacity,
            top=1,
            limit=limit_of(float("inf")),
        )
        best = min(judged.step_s for judged in known.values())
        assert found.outcome.ranked[0].step_time_s == pytest.approx(best, rel=1e-12)
        assert found.outcome.certified
        least += len(known)
        for grid in list(counted.grids.values())[:: max(len(known) // 5, 1)]:
            require_no_seconds(case.problem, grid, part)
    assert least


def require_no_seconds(problem: Problem, grid: Grid, part: str) -> None:
    """Assert that a free part has no seconds, and that the bytes are those of the real problem."""
    real, free = (simulate_grid(p, grid) for p in (problem, with_free_part(problem, part)))
    assert dict(breakdown(free)).get(part, 0.0) <= 1e-11 * real.step_time_s + 1e-11
    assert [memory.items for memory in free.memory] == [memory.items for memory in real.memory]
    if not dict(breakdown(real)).get(part, 0.0) and part not in ("sharding", "host"):
        # Nothing hides behind a part that takes no time, and the part hides behind nothing.
        assert free.step_time_s <= real.step_time_s * (1 + 1e-9)


def test_waiting_times_cannot_be_removed() -> None:
    with pytest.raises(ValueError, match="bubble"):
        with_free_part(small_case(0).problem, "bubble")


def test_tables_that_do_not_depend_on_the_part_are_shared() -> None:
    """Searches of changed problems price anew only what the part is in."""
    problem = small_case(0).problem
    block = problem.model.blocks[0]
    for part in REMOVABLE_PARTS:
        free = with_free_part(problem, part)
        in_blocks = part in (*PARTS, "recompute", "host")
        in_sums = part in ("sharding", "scales", "optimizer", "host")
        assert (block_problem(free, block) is block_problem(problem, block)) == (not in_blocks)
        assert (sums_problem(free) is sums_problem(problem)) == (not in_sums)
        assert with_free_part(problem, part) is free
