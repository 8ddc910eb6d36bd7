"""Members of a searched space with their bounds: all of them, their front, and an even sample."""

from __future__ import annotations

import itertools
import math
import random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.search.grid import members_by_bound_with_front_and_sample
from shardwright.search.grid.find_best_grid import certify
from shardwright.search.grid.members_by_bound_with_front_and_sample import (
    MembersByBound,
    at_ranks,
    by_memory,
    even_sample,
    front_members,
    members_by_bound,
    near_members,
)
from shardwright.search.grid.search_by_mesh import search
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.canonical_grid import canonical
from tests.search.brute import count
from tests.search.problems import small_case
from tests.tiers import cases, many

CAPACITY = 40 * 2**30
EVERY = 2**60
SIMULATED = many(12, 60)


@pytest.mark.parametrize("seed", cases(range(5100, 5106), 3))
def test_members_are_those_of_brute_force(seed: int) -> None:
    case = small_case(seed, most=many(800, 3000))
    searched = search(case.problem, case.space, case.facts, capacity=CAPACITY, top=3, memory=0)
    listed = members_by_bound(
        case.problem, case.facts, searched, capacity=CAPACITY, near_s=math.inf, most=EVERY
    )
    grids = [listed.grid(number) for number in range(len(listed.seconds))]
    brute = set(count(case.problem, case.space, case.facts).grids)
    assert {canonical(grid, facts=case.facts) for grid in grids} == brute
    assert len(grids) == len(brute)
    assert (listed.num_whole, listed.num_whole_near) == (0, 0)
    sample = random.Random(seed).sample(range(len(grids)), min(SIMULATED, len(grids)))
    for number in sample:
        done = simulate_grid(case.problem, grids[number])
        assert listed.seconds[number] <= done.step_time_s * (1 + 1e-9)
        assert listed.memory[number] <= done.need + 8
        assert listed.fits[number] or not done.fits_in(CAPACITY)


@pytest.mark.parametrize("seed", cases(range(5100, 5106), 3))
def test_counts_are_those_of_the_certificate(seed: int) -> None:
    case = small_case(seed)
    searched = search(case.problem, case.space, case.facts, capacity=CAPACITY, top=3, memory=0)
    if not searched.outcome.ranked:
        pytest.skip("nothing fits in this case")
    certificate = certify(case.problem, case.space, searched)
    best_s = searched.outcome.ranked[0].step_time_s
    for near_s, most in ((0.0, EVERY), (1.05 * best_s, EVERY), (math.inf, 100)):
        listed = members_by_bound(
            case.problem, case.facts, searched, capacity=CAPACITY, near_s=near_s, most=most
        )
        paired = sum(part.enumerated - part.illegal for part in searched.paired)
        assert len(listed.seconds) + listed.num_whole + paired == certificate.strategies
        assert listed.num_whole_near <= listed.num_whole
        if most == EVERY:
            assert listed.num_whole_near == 0
            assert listed.least_whole_s > near_s
    assert len(searched.outcome.fitting) == certificate.simulated
    ranked = [one.step_time_s for one in searched.outcome.ranked]
    assert sorted(one.step_time_s for one in searched.outcome.fitting)[: len(ranked)] == ranked


def _members(values: list[tuple[int, int, bool]]) -> MembersByBound:
    """Members with given (seconds, memory, fits)."""
    return MembersByBound(
        parts=(),
        start=np.array([0]),
        seconds=np.array([float(seconds) for seconds, _, _ in values]),
        memory=np.array([float(memory) for _, memory, _ in values]),
        fits=np.array([fits for _, _, fits in values], dtype=np.bool_),
        num_whole=0,
        least_whole_s=math.inf,
        num_whole_near=0,
    )


VALUES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), max_size=40)


@given(VALUES, st.sampled_from([1, 3, 1024]))
def test_front_has_no_dominated_member_and_dominates_all_others(
    values: list[tuple[int, int, bool]], sampled: int
) -> None:
    with patch.object(members_by_bound_with_front_and_sample, "_SAMPLED", sampled):
        front = front_members(_members(values)).tolist()
    fitting = [number for number, (_, _, fits) in enumerate(values) if fits]

    def dominates(one: int, other: int) -> bool:
        return values[one][0] <= values[other][0] and values[one][1] <= values[other][1]

    assert all(number in fitting for number in front)
    for number in fitting:
        better = [one for one in front if one != number and dominates(one, number)]
        assert bool(better) == (number not in front)
    assert [values[number][0] for number in front] == sorted(values[n][0] for n in front)


@given(VALUES, st.integers(0, 50), st.sets(st.integers(0, 39)))
def test_sample_is_even_by_rank(
    values: list[tuple[int, int, bool]], size: int, left_out: set[int]
) -> None:
    members = _members(values)
    without = np.array(sorted(number for number in left_out if number < len(values)), dtype=int)
    sample = even_sample(members, count=size, without=without).tolist()
    free = [number for number in range(len(values)) if number not in without]
    assert sample == sorted(set(sample))
    assert set(sample) <= set(free)
    assert len(sample) == min(size, len(free))
    for fits in (True, False):
        ordered = sorted(
            (number for number in free if values[number][2] == fits), key=lambda n: values[n][0]
        )
        ranks = [rank for rank, number in enumerate(ordered) if number in sample]
        if len(ranks) > 1:
            assert (ranks[0], ranks[-1]) == (0, len(ordered) - 1)
            gaps = {after - before for before, after in itertools.pairwise(ranks)}
            assert max(gaps) - min(gaps) <= 1


@given(
    st.lists(
        st.floats(0.0, math.inf, allow_nan=False) | st.sampled_from([0.5, 1.0, 1.0 + 2**-52]),
        min_size=1,
        max_size=300,
    ),
    st.lists(st.integers(0, 299), max_size=20),
    st.integers(0, 2**17),
)
def test_values_at_ranks_are_those_of_a_stable_sort(
    values: list[float], ranks: list[int], further: int
) -> None:
    """Also where many values share a bucket of bit patterns."""
    many_values = np.concatenate([values, 1.0 + np.arange(further) % 7 * 2.0**-40])
    ordered = np.argsort(many_values, kind="stable")
    chosen = np.array([*ranks, len(many_values) - 1], dtype=np.int64) % len(many_values)
    assert at_ranks(many_values, chosen).tolist() == ordered[chosen].tolist()


@given(VALUES, st.integers(0, 10))
def test_near_members_by_memory(values: list[tuple[int, int, bool]], near: int) -> None:
    members = _members(values)
    numbers = near_members(members, float(near))
    assert numbers.tolist() == [n for n, (s, _, fits) in enumerate(values) if fits and s <= near]
    memory = [values[number][1] for number in by_memory(members, numbers)]
    assert memory == sorted(memory)
