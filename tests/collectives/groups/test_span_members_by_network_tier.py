"""`span_of` against groups listed device by device."""

from __future__ import annotations

from itertools import combinations, permutations, product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.collectives.groups.span_members_by_network_tier import lie_alike, span_of
from shardwright.hardware.link_and_network_tier import Tier
from tests.tiers import examples, in_both, in_proof

EVERY = 3 if in_proof() else 9
"""Grids are listed one in so many."""
UNITS = [(8, 64), (8, 32, 128), (4, 16, 96), (8, 48), (6, 24, 120), (8, 40), (72,)]


def tiers_of(units: tuple[int, ...]) -> tuple[Tier, ...]:
    return tuple(
        Tier(name=f"tier{k}", num_devices=unit, bandwidth=1e12 / 4**k, latency_s=1e-6 * 2**k)
        for k, unit in enumerate(units)
    )


def below_of(units: tuple[int, ...], axes: list[tuple[int, int]]) -> list[int]:
    span = span_of(
        tiers_of(units), tuple((np.array([degree]), np.array([stride])) for degree, stride in axes)
    )
    assert all(array.dtype == np.int64 and array.shape == (1,) for array in span.below)
    return [int(array[0]) for array in span.below]


def listed(
    units: tuple[int, ...], degrees: tuple[int, ...], chosen: tuple[int, ...]
) -> list[list[list[int]]]:
    """For each group along the chosen axes of a grid (innermost first), for each tier, its members
    under each unit that it touches."""
    strides = [prod(degrees[:axis]) for axis in range(len(degrees))]
    rest = [axis for axis in range(len(degrees)) if axis not in chosen]

    def sums(axes: list[int]) -> list[int]:
        return [
            sum(i * strides[a] for i, a in zip(place, axes, strict=True))
            for place in product(*(range(degrees[a]) for a in axes))
        ]

    groups = [[offset + step for step in sums(list(chosen))] for offset in sums(rest)]
    return [
        [np.unique(np.array(group) // unit, return_counts=True)[1].tolist() for unit in units]
        for group in groups
    ]


def grids(total: int) -> list[tuple[int, ...]]:
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    return [
        (a, b, c, total // (a * b * c))
        for a in divisors
        for b in divisors
        for c in divisors
        if total % (a * b * c) == 0
    ]


@pytest.mark.parametrize("units", UNITS, ids=str)
def test_the_order_in_which_axes_are_given_says_nothing(units: tuple[int, ...]) -> None:
    """Axes of one member in between do not keep the others from their place."""
    for degrees in grids(units[-1])[::7]:
        axes = [(degree, prod(degrees[:axis])) for axis, degree in enumerate(degrees)]
        assert len({tuple(below_of(units, list(given))) for given in permutations(axes)}) == 1, (
            degrees
        )


@in_both
@pytest.mark.parametrize("units", UNITS, ids=str)
def test_is_exact_where_all_groups_lie_alike(units: tuple[int, ...]) -> None:
    alike = 0
    for degrees in grids(units[-1])[::EVERY]:
        strides = [prod(degrees[:axis]) for axis in range(4)]
        for chosen in (*combinations(range(4), 1), *combinations(range(4), 2)):
            found = below_of(units, [(degrees[axis], strides[axis]) for axis in chosen])
            assert found[-1] == prod(degrees[axis] for axis in chosen)
            groups = listed(units, degrees, chosen)
            if any(group != groups[0] for group in groups) or any(
                len(set(counts)) > 1 for counts in groups[0]
            ):
                continue
            alike += 1
            inside = [counts[0] for counts in groups[0]]
            assert found == inside, (degrees, chosen)
    assert alike > 10


@in_both
@pytest.mark.parametrize("units", UNITS, ids=str)
def test_groups_said_to_lie_alike_do(units: tuple[int, ...]) -> None:
    alike = 0
    for degrees in grids(units[-1])[::EVERY]:
        for chosen in (*combinations(range(4), 1), *combinations(range(4), 2)):
            axes = tuple(
                (np.array([degrees[axis]]), np.array([prod(degrees[:axis])])) for axis in chosen
            )
            if lie_alike(tiers_of(units), axes)[0]:
                alike += 1
                (first, *others) = listed(units, degrees, chosen)
                assert all(group == first for group in others), (degrees, chosen)
                assert all(len(set(counts)) == 1 for counts in first), (degrees, chosen)
    assert alike > 10
    assert not lie_alike(tiers_of((4, 48)), ((np.array([2]), np.array([3])),))[0]


@st.composite
def placed_grids(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    units = draw(st.sampled_from(UNITS))
    return units, draw(st.sampled_from(grids(units[-1])))


@examples(25, 500)
@given(placed=placed_grids(), pick=st.sets(st.integers(0, 3), min_size=1, max_size=3))
def test_a_unit_has_as_many_members_as_of_the_densest_group_and_half_as_many_of_some_unit_of_each(
    placed: tuple[tuple[int, ...], tuple[int, ...]], pick: set[int]
) -> None:
    units, degrees = placed
    chosen = tuple(sorted(pick))
    strides = [prod(degrees[:axis]) for axis in range(4)]
    found = below_of(units, [(degrees[axis], strides[axis]) for axis in chosen])
    groups = listed(units, degrees, chosen)
    for tier in range(len(units)):
        fullest = [max(group[tier]) for group in groups]
        assert fullest[0] == max(fullest) == found[tier]
        assert min(fullest) >= -(-found[tier] // 2)


@pytest.mark.parametrize(
    ("units", "axes", "below"),
    [
        ((8, 16384), [(8, 1)], [8, 8]),
        ((8, 16384), [(64, 8)], [1, 64]),
        ((8, 16384), [(16, 4)], [2, 16]),
        ((8, 16384), [(16, 1)], [8, 16]),
        ((8, 16384), [(1, 5)], [1, 1]),
        ((8, 96), [(12, 1)], [8, 12]),
        ((8, 96), [(7, 1)], [7, 7]),
        ((8, 96), [(3, 1), (8, 3)], [8, 24]),
        ((4, 16, 96), [(12, 1), (4, 12)], [4, 16, 48]),
        ((4, 16, 96), [(4, 12), (12, 1)], [4, 16, 48]),
        ((8, 64, 512), [(2, 2), (4, 16), (4, 128)], [2, 8, 32]),
        ((8, 64, 512), [(1, 3), (4, 16), (1, 1)], [1, 4, 4]),
        ((8, 512), [], [1, 1]),
    ],
)
def test_known_groups(
    units: tuple[int, ...], axes: list[tuple[int, int]], below: list[int]
) -> None:
    assert below_of(units, axes) == below


def test_arrays_are_taken_group_by_group_in_any_order_of_axes() -> None:
    random = np.random.default_rng(3)
    units = (8, 64, 512)
    inner, outer = random.choice([1, 2, 3, 4, 8], 200), random.choice([1, 2, 5, 8], 200)
    step = random.choice([1, 2, 4], 200)
    swap = random.random(200) < 0.5
    first = (np.where(swap, outer, inner), np.where(swap, inner * step, step))
    second = (np.where(swap, inner, outer), np.where(swap, step, inner * step))
    span = span_of(tiers_of(units), (first, second))
    assert span.size.tolist() == (inner * outer).tolist()
    for group in range(200):
        axes = [
            (int(inner[group]), int(step[group])),
            (int(outer[group]), int(inner[group] * step[group])),
        ]
        assert [int(array[group]) for array in span.below] == below_of(units, axes)


def test_carries_the_tiers_rates_and_the_switch() -> None:
    span = span_of(
        tiers_of((8, 64)), ((np.array([2, 4]), np.array([1, 8])),), in_network_reduction=True
    )
    assert [array.tolist() for array in span.bandwidth] == [[1e12, 1e12], [2.5e11, 2.5e11]]
    assert [array.tolist() for array in span.latency_s] == [[1e-6, 1e-6], [2e-6, 2e-6]]
    assert span.in_network_reduction
