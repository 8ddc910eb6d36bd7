"""Sums over units whose links differ pair by pair: proven, priced as they run, no slower than over
the slowest link."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import SCHEDULED, algorithm_named, algorithms_for
from shardwright.collectives.groups.links_of_one_group import Layout
from shardwright.collectives.groups.span_members_by_network_tier import Between, Span
from shardwright.collectives.messages.all_reduce_trees_over_unequal_links import (
    FEWEST_PARTS,
    pair_costs,
    paired_trees,
    trees_over,
)
from shardwright.collectives.messages.binomial_all_reduce_tree_over_network_units import (
    binomial_unit_tree,
)
from shardwright.collectives.messages.message_rounds_and_proof import proven_sum
from shardwright.collectives.messages.pipelined_tree_all_reduce_schedule import (
    PARTS,
    tree_all_reduce,
    tree_lines,
)
from shardwright.cost.network.networks_of_plan_devices import group_span, network_among
from shardwright.hardware.cluster_expression import parse_cluster
from tests.collectives.layouts import (
    pair_cut_bound,
    paired_layouts,
    simulated_seconds,
    without_pairs,
)
from tests.collectives.test_schedules import chosen, span_of_layout, spanning_trees
from tests.tiers import examples

FEW = examples(30)
THREE_ZONES = (
    "h100-sxm:16@a+h100-sxm:16@b+h100-sxm:8@c,a~b={ab}gbps/5ms,b~c=100gbps/5ms,a~c=100gbps/5ms"
)


def span_between(layout: Layout) -> Span:
    return replace(span_of_layout(layout), between=layout.between)


def group(ab: int, *, library: str = "synthesised") -> Span:
    """All devices of three zones of which two have a link of their own rate."""
    return group_span(
        tuple(range(40)),
        network_among(parse_cluster(THREE_ZONES.format(ab=ab)), (0, 1, 2), library),
    )


@FEW
@given(layout=paired_layouts(), parts=st.sampled_from((1, 4)), volume=st.floats(1.0, 1e10))
def test_sums_over_pairs_are_sums_and_take_what_their_rounds_take(
    layout: Layout, parts: int, volume: float
) -> None:
    for trees in (paired_trees(layout), binomial_unit_tree(layout)):
        assert sum(tree.share for tree in trees) == pytest.approx(1.0, rel=1e-12)
        schedule = proven_sum(tree_all_reduce(trees, parts=parts))
        alpha, beta = tree_lines(layout, trees)
        index = PARTS.index(parts)
        assert alpha[index] + volume * beta[index] == pytest.approx(
            simulated_seconds(schedule, layout, volume), rel=1e-9
        )


@FEW
@given(layout=paired_layouts(), volume=st.floats(1.0, 1e10))
def test_no_price_is_below_every_cut_nor_above_that_of_the_slowest_link(
    layout: Layout, volume: float
) -> None:
    bound = volume * pair_cut_bound(layout)
    for name in SCHEDULED:
        algorithm = algorithm_named(name)
        seconds, slowest = (
            algorithm.seconds(Collective.ALL_REDUCE, volume=np.array([volume]), span=span)[0]
            for span in (span_between(layout), replace(span_of_layout(layout), units=layout.units))
        )
        assert seconds >= bound * (1 - 1e-9)
        if name != "straggler":
            assert seconds <= slowest * (1 + 1e-9)


@FEW
@given(layout=paired_layouts())
def test_trees_over_units_are_near_the_best_mixture_of_all(layout: Layout) -> None:
    """The busiest pair against a linear program over every tree: greedy parts are up to an eighth
    behind (1,500 random ones)."""
    units = len(layout.units[-1])
    costs = pair_costs(layout)
    every = spanning_trees(units) if units > 2 else [[(0, 1)]]
    links = list(permutations(range(units), 2))
    busy = np.array(
        [[costs[link] * (link in tree or link[::-1] in tree) for tree in every] for link in links]
    )
    scale = busy.max()
    best = linprog(
        np.eye(1, len(every) + 1, len(every))[0],
        A_ub=np.hstack([busy / scale, -np.ones((len(links), 1))]),
        b_ub=np.zeros(len(links)),
        A_eq=np.append(np.ones(len(every)), 0.0)[None],
        b_eq=[1.0],
    )
    found = np.zeros((units, units))
    for tree in trees_over(layout, FEWEST_PARTS):
        for one, other in tree:
            found[one, other] += costs[one, other] / FEWEST_PARTS
            found[other, one] += costs[other, one] / FEWEST_PARTS
    assert best.fun * scale * (1 - 1e-9) <= found.max() <= 1.2 * best.fun * scale


def test_a_slow_pair_is_gone_round() -> None:
    """A hundredth of the rate between two of three zones: a ring has it, trees over the third have
    not."""
    slow, alike = group(1), group(100)
    assert chosen(slow, 1e10, "synthesised") == "paired"
    algorithms = algorithms_for(Collective.ALL_REDUCE, library="synthesised")

    def best(span: Span, names: tuple[str, ...]) -> float:
        some = [a for a in algorithms if a.name in names]
        return float(
            min(
                a.seconds(Collective.ALL_REDUCE, volume=np.array([1e10]), span=span)[0]
                for a in some
            )
        )

    assert best(slow, ("ring",)) > 50 * best(slow, ("paired",))
    assert best(slow, ("paired",)) < 3 * best(alike, ("paired",))


def test_other_libraries_are_priced_as_before() -> None:
    """Only schedules that are made for a group know of pairs."""
    span = group(25, library="nccl")
    assert span.between is not None
    for algorithm in algorithms_for(Collective.ALL_REDUCE, library="any"):
        prices = [
            algorithm.seconds(Collective.ALL_REDUCE, volume=np.array([1e3, 1e9]), span=s)
            for s in (span, replace(span, between=None))
        ]
        assert np.array_equal(*prices)


def test_directions_count_apart() -> None:
    """What comes back over a pair goes over its own link: the slower direction says how long a sum
    takes."""
    units = ((1, 1), (1, 1))
    rates, waits = ((0.0, 4e9), (1e9, 0.0)), ((0.0, 1e-3), (2e-3, 0.0))
    layout = Layout(
        units=units,
        size=2,
        bandwidth=(1e11, 5e10, 1e9),
        latency_s=(1e-6, 1e-5, 2e-3),
        between=Between(units=units, bandwidth=rates, latency_s=waits),
    )
    alpha, beta = tree_lines(layout, paired_trees(layout))
    assert (alpha[0], beta[0]) == (pytest.approx(3e-3), pytest.approx(1 / 4e9 + 1 / 1e9))
    assert without_pairs(layout).capacity[-1] == pytest.approx(1e9)
