"""A space that is searched mesh by mesh has the same best members as one that is crossed at once,
and stops when it is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.bounds.mesh_bounds import mesh_bounds
from shardwright.search.grid.bounds.mesh_bounds_with_relaxed_options import relaxed_bounds
from shardwright.search.grid.find_best_grid import certify
from shardwright.search.grid.members.legal_degrees_and_axis_orders import full_meshes, idle_meshes
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.search_time_limit import Limit
from shardwright.search.universal_time_bound import universal_bound
from tests.search.problems import small_case
from tests.tiers import cases, seeds

CAPACITY = 10**15
TOP = 3


@pytest.mark.parametrize("seed", cases(range(5000, 5006), 3))
def test_meshes_one_by_one_find_what_all_at_once_find(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = small_case(seed)
    whole = search(case.problem, case.space, case.facts, capacity=CAPACITY, top=TOP)
    parts = search(case.problem, case.space, case.facts, capacity=CAPACITY, top=TOP, memory=0)
    assert [s.step_time_s for s in parts.outcome.ranked] == [
        s.step_time_s for s in whole.outcome.ranked
    ]
    assert all(len(part.meshes) <= 1 for part in parts.expanded)
    if whole.outcome.ranked:
        one, other = (certify(case.problem, case.space, found) for found in (whole, parts))
        assert (one.enumerated, one.illegal, one.duplicates) == (
            other.enumerated,
            other.illegal,
            other.duplicates,
        )
        assert one.strategies == other.strategies
        fates = (
            other.illegal,
            other.duplicates,
            other.infeasible,
            other.bounded_b0,
            other.bounded_b1,
            other.simulated,
        )
        assert sum(fates) == other.enumerated
        assert min(fates) >= 0


def test_a_limit_between_meshes_leaves_an_honest_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at every look at the clock in turn: the bound never exceeds the true best, and what
    was left counts."""
    case = max(
        map(small_case, range(5100, 5112)),
        key=lambda case: len(full_meshes(case.space, case.facts)),
    )
    best = (
        search(case.problem, case.space, case.facts, capacity=CAPACITY, top=1)
        .outcome.ranked[0]
        .step_time_s
    )
    gaps = set()
    for stop in range(1, 40, 4):
        limit = Limit(stop_at=stop)
        found = search(
            case.problem, case.space, case.facts, capacity=CAPACITY, top=1, limit=limit, memory=0
        )
        claim = certify(case.problem, case.space, found)
        assert (
            universal_bound(case.problem, case.space.devices)
            <= claim.lower_bound_s
            <= best
            <= claim.best_s
        )
        gaps.add(claim.gap > 0)
        if not limit.stopped_at:
            break
    assert gaps == {True, False}


def with_slow_islands(problem: Problem) -> Problem:
    """Devices of a node exchange more slowly than nodes do: the nearest group is not the
    fastest."""
    groups = []
    for group in problem.cluster.groups:
        link = replace(
            group.kind.scale_up,
            bandwidth=group.kind.nic.bandwidth / 50,
            reverse_bandwidth=0.0,
            latency_s=1e-3,
        )
        groups.append(replace(group, kind=replace(group.kind, scale_up=link)))
    return replace(problem, cluster=replace(problem.cluster, groups=tuple(groups)))


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("seed", [5208, 382409, 474641, *seeds(1, 60, first=5200)])
def test_no_member_is_below_the_bounds_of_its_mesh(seed: int, slow: bool) -> None:
    """Nor does a bound say of a mesh that has members that it has none."""
    case = small_case(seed)
    case = replace(case, problem=with_slow_islands(case.problem)) if slow else case
    meshes = full_meshes(case.space, case.facts)
    if case.space.fewest:
        meshes = meshes.joined(idle_meshes(case.space, case.facts))
    whole = [
        bound_space(
            case.problem,
            case.space,
            case.facts,
            capacity=CAPACITY,
            meshes=meshes.take(np.array([at])),
        )
        for at in range(len(meshes))
    ]
    bytes_needed = np.concatenate([one.memory for one in whole])
    for capacity in (CAPACITY, int(np.median(bytes_needed)) if len(bytes_needed) else 1):
        coarse = mesh_bounds(case.problem, case.space, case.facts, meshes)
        close = relaxed_bounds(case.problem, case.space, case.facts, meshes, capacity=capacity)
        for at, bound in enumerate(np.maximum(coarse, close)):
            one = meshes.take(np.array([at]))
            members = bound_space(
                case.problem, case.space, case.facts, capacity=capacity, meshes=one
            ).seconds
            assert bound <= np.min(members, initial=np.inf)
            assert bound < np.inf or not len(members)
