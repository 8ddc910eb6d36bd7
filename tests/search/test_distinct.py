"""The large space is what it claims: its members are legal, and are distinct plans."""

import random
from dataclasses import replace

import numpy as np
import pytest

from shardwright.search.grid.members.enumerate_members import (
    Members,
    enumerate_members,
    member_grid,
)
from shardwright.simulator.simulate_plan import plan_of_grid
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.print_plan import print_plan
from tests.search.brute import runs
from tests.search.problems import Case, gpt3_175b
from tests.tiers import in_both, many, random_of

SAMPLE = many(300, 10_000)
WRITTEN = many(150, 3000)
NEIGHBOURS = many(200, 4000)


@pytest.fixture(scope="module")
def large() -> tuple[Case, Members]:
    case = gpt3_175b()
    members = enumerate_members(case.problem, case.space, case.facts)
    return case, members


@in_both
def test_sample_is_legal_and_distinct(large: tuple[Case, Members]) -> None:
    """A random sample: legal by the rules of grids, and no two of one meaning."""
    case, members = large
    assert members.num_members >= 7_000_000
    places = random_of(1).sample(range(members.num_members), SAMPLE)
    meanings = set()
    for place in places:
        grid = member_grid(members, place)
        assert not violations(grid, facts=case.facts), grid
        assert runs(grid, case.problem), grid
        meanings.add(canonical(grid, facts=case.facts))
    assert len(meanings) == len(places)


def near(members: Members, generator: random.Random) -> list[int]:
    """Members that differ in one or two choices, where duplicates would be: runs of neighbours, and
    the same degrees in other orders."""
    starts = generator.sample(range(members.num_members - 40), NEIGHBOURS // 50)
    chosen = [start + step for start in starts for step in range(40)]
    mesh, outer = members.meshes.columns, members.outers.columns
    for start in starts:
        i = int(np.searchsorted(members.start, start, side="right")) - 1
        alike = np.ones(len(members.outers), dtype=bool)
        for name in ("tp", "cp", "pp"):
            alike &= mesh[name][outer["mesh"]] == mesh[name][outer["mesh"][i]]
        for name in ("mbs", "vpp", "schedule"):
            alike &= outer[name] == outer[name][i]
        chosen += [int(members.start[j]) for j in np.flatnonzero(alike)[:10]]
    return chosen


@in_both
def test_plans_are_distinct(large: tuple[Case, Members]) -> None:
    """Written out as general plans, each is another one: a random sample, and neighbourhoods."""
    case, members = large
    generator = random_of(2)
    places = sorted(
        {*generator.sample(range(members.num_members), WRITTEN), *near(members, generator)}
    )
    assert len(places) > WRITTEN + NEIGHBOURS // 2
    assert len({written(case, member_grid(members, place)) for place in places}) == len(places)


def test_the_same_meaning_is_the_same_plan(large: tuple[Case, Members]) -> None:
    """The test above can fail: an order that changes no group is the same plan."""
    case, members = large
    grid = member_grid(members, members.num_members // 2)
    twin = replace(grid, order=("ep", *(axis for axis in grid.order if axis != "ep")))
    assert twin != grid
    assert written(case, twin) == written(case, grid)


def written(case: Case, grid: Grid) -> str:
    """The plan that a grid is, which is all that its Program is lowered from."""
    return print_plan(plan_of_grid(case.problem, grid))
