"""The large space is what it claims: its members are legal, and lower to distinct Programs."""

import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from shardwright.program.lower import digest
from shardwright.simulator.evaluate import lower_grid

from shardwright.cost.member import step_costs
from shardwright.cost.rows import rows_of
from shardwright.search.members import Members, enumerate_members, member_grid
from shardwright.search.prepare import Prepared, prepare
from shardwright.strategy.grid import Grid
from shardwright.strategy.grid_rules import canonical, violations
from tests.search.brute import runs
from tests.search.problems import Case, gpt3_175b

SHARE = 1000
LOWERED = 2000
NEIGHBOURS = 2000


@pytest.fixture(scope="module")
def large() -> tuple[Case, Members, Prepared]:
    case = gpt3_175b()
    members = enumerate_members(case.problem, case.space, case.facts)
    return case, members, prepare(case.problem, members)


def test_sample_is_legal_and_distinct(large: tuple[Case, Members, Prepared]) -> None:
    """One member in a thousand: legal by the rules of grids, and no two of one meaning."""
    case, members, _ = large
    assert members.num_members >= 7_000_000
    places = random.Random(1).sample(range(members.num_members), members.num_members // SHARE)
    meanings = set()
    for place in places:
        grid = member_grid(members, place)
        assert not violations(grid, facts=case.facts), grid
        assert runs(grid, case.problem), grid
        meanings.add(canonical(grid, facts=case.facts))
    assert len(meanings) == len(places)


def near(members: Members, generator: random.Random) -> list[int]:
    """Members that differ in one or two choices, where duplicates would be: runs of neighbours, and the same degrees in other orders."""
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


def test_programs_are_distinct(large: tuple[Case, Members, Prepared]) -> None:
    """Lowered, each has another digest: a random sample, and neighbourhoods."""
    _, members, _ = large
    generator = random.Random(2)
    places = sorted({*generator.sample(range(members.num_members), LOWERED), *near(members, generator)})
    assert len(places) > LOWERED + NEIGHBOURS // 2
    digests = dict(digests_of(large, places))
    assert len(set(digests.values())) == len(places)


def test_the_same_meaning_has_the_same_digest(large: tuple[Case, Members, Prepared]) -> None:
    """The test above can fail: an order that changes no group lowers to the same Program."""
    case, members, prepared = large
    place = members.num_members // 2
    grid = member_grid(members, place)
    twin = replace(grid, order=("ep", *(axis for axis in grid.order if axis != "ep")))
    assert twin != grid
    assert digest_of(case, prepared, place, twin) == digest_of(case, prepared, place, grid)


def digests_of(large: tuple[Case, Members, Prepared], places: Iterable[int]) -> list[tuple[int, str]]:
    """Digests, in an order in which pipelines of one shape follow one another (their skeletons are kept)."""
    case, members, prepared = large
    grids = [(member_grid(members, place), place) for place in places]
    grids.sort(key=lambda g: (g[0].schedule, g[0].pp, g[0].vpp, g[0].dp * g[0].microbatch, g[0].zero, g[0].order, g[0].tp, g[0].cp))
    return [(place, digest_of(case, prepared, place, grid)) for grid, place in grids]


def digest_of(case: Case, prepared: Prepared, place: int, grid: Grid) -> str:
    program = lower_grid(case.problem, grid, step_costs(case.problem, grid, prepared.priced(place)))
    degrees = rows_of([grid]).degrees() | {"positions": np.array([case.problem.job.sequence_length])}
    return digest(program, degrees)
