"""Members as arrays: the rules in columns are the rules of grids, and a member is decoded to what
was bounded."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.search.grid.members.legal_degrees_and_axis_orders import idle_meshes
from shardwright.search.grid.members.member_counts_by_mesh import count_members
from shardwright.search.grid.members.pinned_and_excluded_values import restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.strategy.grid.canonical_grid import canonical
from tests.search.brute import count
from tests.search.problems import (
    Case,
    every_member,
    facts_of,
    gpt3_175b,
    llama_405b,
    only,
    real_problem,
    small_case,
)
from tests.tiers import many, seeds

CAPACITY = 10**15
PAGES = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("seed", seeds(2, 50, first=1000))
def test_columns_keep_the_rules_of_grids(seed: int) -> None:
    """Every raw member of larger random spaces is judged alike by `violations` and by the
    columns."""
    case = small_case(seed, most=many(4000, 12000))
    counted = count(case.problem, case.space, case.facts)
    parts = every_member(case.problem, case.space, case.facts)
    fates = [
        sum(getattr(part, name) for part in parts)
        for name in ("enumerated", "illegal", "duplicates")
    ]
    assert fates == [counted.enumerated, counted.illegal, counted.duplicates]
    found = [
        canonical(member_grid(part, place), facts=case.facts)
        for part in parts
        for place in range(part.num_members)
    ]
    assert len(set(found)) == len(found)
    assert set(found) == set(counted.grids)


def deepseek() -> Case:
    problem = real_problem("deepseek-v3", "h100-sxm:2048", seq_len=4096, global_batch=15360)
    facts = facts_of(problem)
    return Case(problem=problem, facts=facts, space=standard_space(problem, facts))


def torchtitan() -> Case:
    problem = real_problem(
        "llama-3.1-8b", "h100-sxm:64", seq_len=8192, global_batch=128, runtime="torchtitan"
    )
    facts = facts_of(problem)
    return Case(problem=problem, facts=facts, space=standard_space(problem, facts))


@pytest.mark.parametrize(
    "case", [llama_405b, pytest.param(deepseek, marks=pytest.mark.proof), torchtitan]
)
def test_member_alone_has_the_bound_of_the_whole(case: object) -> None:
    """The space of one decoded grid has the seconds and bytes that the whole space gave it."""
    assert callable(case)
    given = case()
    bounded = bound_space(given.problem, given.space, given.facts, capacity=CAPACITY)
    for place in random.Random(0).sample(range(bounded.members.num_members), 16):
        grid = member_grid(bounded.members, place)
        alone = bound_space(given.problem, only(given.space, grid), given.facts, capacity=CAPACITY)
        assert alone.members.num_members == 1
        assert member_grid(alone.members, 0) == grid
        assert alone.seconds[0] == pytest.approx(bounded.seconds[place], rel=1e-12)
        assert alone.memory[0] == pytest.approx(bounded.memory[place], rel=1e-12)


def test_capacity_only_hides_members() -> None:
    """A smaller capacity makes members infinite and changes no other bound."""
    case = torchtitan()
    free = bound_space(case.problem, case.space, case.facts, capacity=CAPACITY)
    tight = bound_space(case.problem, case.space, case.facts, capacity=int(np.median(free.memory)))
    hidden = np.isinf(tight.seconds)
    assert 0 < hidden.sum() < len(hidden)
    assert np.array_equal(tight.seconds[~hidden], free.seconds[~hidden])
    assert np.array_equal(tight.memory, free.memory)
    assert tight.memory[hidden].min() > tight.memory[~hidden].max()


@pytest.mark.parametrize(
    ("case", "column"), [(llama_405b, 1), pytest.param(gpt3_175b, 2, marks=pytest.mark.proof)]
)
def test_two_problems_are_as_large_as_the_page_says(case: Callable[[], Case], column: int) -> None:
    rows = [
        line.split(" | ")
        for line in (PAGES / "space.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    said = {
        row[0].removeprefix("| "): row[column].removesuffix(" |") for row in rows if len(row) == 3
    }
    given = case()
    found, idle = (
        enumerate_members(given.problem, given.space, given.facts),
        idle_meshes(given.space, given.facts),
    )
    counts = (found.enumerated, found.illegal, found.duplicates, found.num_members)
    names = ("enumerated on all devices", "illegal", "duplicates", "legal and distinct")
    assert tuple(said[name] for name in names) == tuple(f"{count:,}" for count in counts)
    assert said["meshes on all devices, and on fewer"] == f"{len(found.meshes):,}, {len(idle):,}"
    assert said["enumerated with those on fewer"] == f"{found.enumerated + idle.enumerated:,}"
    few = count_members(
        given.space,
        given.facts,
        idle,
        zero_stages=given.problem.runtime.zero_stages,
        zero_with_pipeline=given.problem.runtime.zero_with_pipeline,
    )
    assert (
        said["legal and distinct with those on fewer"]
        == f"{found.num_members + int(few.distinct.sum()):,}"
    )


def test_space_without_members() -> None:
    case = small_case(0)
    space = restricted(case.space, pins={"mbs": ("1024",)}, excludes={})
    bounded = bound_space(case.problem, space, case.facts, capacity=CAPACITY)
    assert bounded.members.num_members == len(bounded.seconds) == len(bounded.memory) == 0
    assert bounded.members.enumerated == bounded.members.illegal > 0
