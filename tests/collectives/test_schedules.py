"""Schedules of single messages: they compute the sum, take what their rounds take, and are no
faster than any sum can be."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.straggler_aware_all_reduce import late_schedule
from shardwright.collectives.algorithm_registry import (
    LIBRARIES,
    SCHEDULED,
    algorithm_named,
    algorithms_for,
)
from shardwright.collectives.cheapest_algorithm import collective_seconds, price_list
from shardwright.collectives.groups.links_of_one_group import Layout, layouts_of, link_seconds
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.collectives.messages.binomial_all_reduce_tree_over_network_units import (
    binomial_unit_tree,
)
from shardwright.collectives.messages.build_spanning_forest_of_all_reduce import forest_of
from shardwright.collectives.messages.compute_fastest_spanning_tree_degrees import packing_of
from shardwright.collectives.messages.message_rounds_and_proof import (
    MessageSchedule,
    proven_sum,
    round_costs,
)
from shardwright.collectives.messages.pipelined_tree_all_reduce_schedule import (
    PARTS,
    Tree,
    send_steps,
    tree_all_reduce,
    tree_lines,
)
from shardwright.errors import RuntimeModelError
from tests.collectives.layouts import cut_bound, layouts, simulated_seconds
from tests.collectives.spans import one_group
from tests.tiers import examples

FEW = examples(40)
MAKERS = {"tree": binomial_unit_tree, "forest": forest_of}
ISLAND = Layout(units=(), size=8, bandwidth=(4e11,), latency_s=(2e-6,))


def span_of_layout(layout: Layout) -> Span:
    return Span(
        below=(*(np.array([max(counts)]) for counts in layout.units), np.array([layout.size])),
        bandwidth=tuple(np.array([one]) for one in layout.bandwidth),
        latency_s=tuple(np.array([one]) for one in layout.latency_s),
        units=layout.units or None,
    )


def spanning_trees(size: int) -> list[list[tuple[int, int]]]:
    """All trees over some members, by their Pruefer codes."""
    found = []
    for code in product(range(size), repeat=size - 2):
        degree = [1 + code.count(member) for member in range(size)]
        edges = []
        for member in code:
            leaf = degree.index(1)
            edges.append((leaf, member))
            degree[leaf] -= 1
            degree[member] -= 1
        found.append([*edges, tuple(member for member in range(size) if degree[member] == 1)])
    return found


def busy_links(layout: Layout, edges: list[tuple[int, int]]) -> np.ndarray:
    ends = np.array(edges).T
    source, target = np.concatenate([ends[0], ends[1]]), np.concatenate([ends[1], ends[0]])
    return link_seconds(
        layout, source, target, np.ones(source.size), np.zeros(source.size, dtype=np.int64), 1
    )[0]


def best_mixture(layout: Layout) -> float:
    """Seconds a byte of the best mixture of all trees: a linear program over every tree there
    is."""
    busy = np.array([busy_links(layout, edges) for edges in spanning_trees(layout.size)]).T
    scale = busy.max()
    links, trees = busy.shape
    result = linprog(
        np.eye(1, trees + 1, trees)[0],
        A_ub=np.hstack([busy / scale, -np.ones((links, 1))]),
        b_ub=np.zeros(links),
        A_eq=np.append(np.ones(trees), 0.0)[None],
        b_eq=[1.0],
    )
    return float(result.fun) * scale


@pytest.mark.parametrize("name", MAKERS)
@FEW
@given(layout=layouts(), parts=st.sampled_from((1, 2, 4, 8)), volume=st.floats(1.0, 1e10))
def test_sums_along_trees_are_sums_and_take_what_their_rounds_take(
    name: str, layout: Layout, parts: int, volume: float
) -> None:
    assume(layout.size > 1)
    trees = MAKERS[name](layout)
    assert sum(tree.share for tree in trees) == pytest.approx(1.0, rel=1e-12)
    schedule = proven_sum(tree_all_reduce(trees, parts=parts))
    alpha, beta = tree_lines(layout, trees)
    index = PARTS.index(parts)
    assert alpha[index] + volume * beta[index] == pytest.approx(
        simulated_seconds(schedule, layout, volume), rel=1e-9
    )


@pytest.mark.parametrize("name", MAKERS)
@FEW
@given(layout=layouts(), volume=st.floats(1.0, 1e10))
def test_no_price_is_below_the_bounds_of_every_sum(
    name: str, layout: Layout, volume: float
) -> None:
    assume(layout.size > 1)
    seconds = algorithm_named(name).seconds(
        Collective.ALL_REDUCE, volume=np.array([volume]), span=span_of_layout(layout)
    )[0]
    packing = packing_of(layout)
    assert seconds >= volume * packing.bound * (1 - 1e-9)
    assert packing.bound >= cut_bound(layout) * (1 - 1e-9)
    assert seconds >= ceil(log2(layout.size)) * min(layout.latency_s)


@FEW
@given(layout=layouts(most_islands=8))
def test_a_forest_keeps_the_busiest_link_busy_as_long_as_its_packing_says(layout: Layout) -> None:
    assume(layout.size > 1)
    once = tree_all_reduce(forest_of(layout))
    together = replace(once, round=np.zeros_like(once.round))
    packing = packing_of(layout)
    assert round_costs(together, layout)[1][0] == pytest.approx(packing.seconds_per_byte, rel=1e-6)
    assert packing.seconds_per_byte >= packing.bound * (1 - 1e-12)


@pytest.mark.parametrize(
    ("units", "bandwidth"),
    [
        (((3, 1),), (10.0, 1.0)),
        (((2, 2),), (10.0, 1.0)),
        (((2, 1, 1),), (10.0, 1.0)),
        (((3, 2),), (10.0, 1.0)),
        (((2, 1, 2),), (100.0, 1.0)),
        (((1, 1, 1, 1, 1),), (1.0, 1.0)),
        (((1, 1, 1, 1, 1), (3, 2)), (10.0, 1.0, 0.3)),
        (((2, 1, 1, 1), (3, 1, 1)), (10.0, 1.0, 0.4)),
    ],
)
def test_the_packing_is_the_best_mixture_of_all_trees(
    units: tuple[tuple[int, ...], ...], bandwidth: tuple[float, ...]
) -> None:
    layout = Layout(
        units=units, size=sum(units[0]), bandwidth=bandwidth, latency_s=(1e-6,) * len(bandwidth)
    )
    packing = packing_of(layout)
    assert packing.seconds_per_byte == pytest.approx(best_mixture(layout), rel=1e-6)
    assert packing.bound == pytest.approx(packing.seconds_per_byte, rel=1e-12)


@pytest.mark.parametrize(
    ("units", "bandwidth"),
    [
        (((1, 1, 1, 2), (3, 2)), (10.0, 1.0, 0.5)),
        (((1, 1, 1, 1, 1), (4, 1)), (10.0, 1.0, 0.9)),
        (((3, 2),), (1.0, 1.0)),
    ],
)
def test_the_bound_holds_where_trees_that_are_connected_in_every_unit_are_not_the_best(
    units: tuple[tuple[int, ...], ...], bandwidth: tuple[float, ...]
) -> None:
    layout = Layout(
        units=units, size=sum(units[0]), bandwidth=bandwidth, latency_s=(1e-6,) * len(bandwidth)
    )
    packing, best = packing_of(layout), best_mixture(layout)
    assert packing.bound * (1 - 1e-9) <= best < packing.seconds_per_byte


def test_a_lone_member_of_a_second_node_has_one_card_for_all_of_the_sum() -> None:
    layout = Layout(units=((8, 1),), size=9, bandwidth=(4e11, 5e10), latency_s=(2e-6, 9e-6))
    assert packing_of(layout).seconds_per_byte == pytest.approx(1 / 5e10)
    even = Layout(units=((8, 8),), size=16, bandwidth=(4e11, 5e10), latency_s=(2e-6, 9e-6))
    assert packing_of(even).bound == pytest.approx(1 / (8 * 5e10))


@pytest.mark.parametrize("counts", [(8, 8, 8, 8), (8, 3, 8, 5), (1, 7, 2), (6,)])
def test_a_tree_in_one_part_takes_two_passes_of_binomial_rounds(counts: tuple[int, ...]) -> None:
    layout = Layout(
        units=(counts,), size=sum(counts), bandwidth=(4e11, 5e10), latency_s=(2e-6, 9e-6)
    )
    alpha, beta = tree_lines(layout, binomial_unit_tree(layout))
    inner, outer = ceil(log2(max(counts))), ceil(log2(len(counts)))
    whole, bytes_of = 2 * (inner * 2e-6 + outer * 9e-6), 2 * (inner / 4e11 + outer / 5e10)
    if len(set(counts)) == 1:
        assert (alpha[0], beta[0]) == (pytest.approx(whole), pytest.approx(bytes_of))
    # Unequal units are not at the same tier at the same time, but need no more rounds.
    assert alpha[0] <= 2 * (inner + outer) * 9e-6


@pytest.mark.parametrize("members", [*range(3, 20), 32, 33, 64])
def test_a_sum_with_a_late_member_is_a_sum_and_needs_it_only_when_it_comes(members: int) -> None:
    schedule, waiting = late_schedule(members)
    proven_sum(schedule)
    late = (schedule.source == members - 1) | (schedule.target == members - 1)
    assert schedule.round[late].min() == waiting == members - 2
    rounds = int(schedule.round.max()) + 1 - waiting
    assert members - 2 + ceil(log2(members)) <= rounds < 1.6 * (members - 1) + 3
    for end in (schedule.source, schedule.target):
        assert (
            np.unique(np.stack([schedule.round, end]), axis=1).shape[1] == schedule.round.size
        )  # one message a round


@FEW
@given(members=st.integers(3, 64), late_s=st.floats(1e-7, 1e-2), volume=st.floats(1.0, 1e10))
def test_a_late_members_price_is_that_of_its_rounds(
    members: int, late_s: float, volume: float
) -> None:
    layout = replace(ISLAND, size=members)
    span = replace(span_of_layout(layout), late_s=np.array([late_s]))
    schedule, waiting = late_schedule(members)
    before, after = (
        simulated_seconds(_some(schedule, rounds), layout, volume)
        for rounds in (schedule.round < waiting, schedule.round >= waiting)
    )
    seconds = algorithm_named("straggler").seconds(
        Collective.ALL_REDUCE, volume=np.array([volume]), span=span
    )[0]
    assert seconds == pytest.approx(max(before - late_s, 0.0) + after, rel=1e-9)
    assert seconds >= volume / layout.bandwidth[0]


def _some(schedule: MessageSchedule, rounds: np.ndarray) -> MessageSchedule:
    return replace(
        schedule,
        round=schedule.round[rounds],
        source=schedule.source[rounds],
        target=schedule.target[rounds],
        piece=schedule.piece[rounds],
    )


def chosen(span: Span, volume: float, library: str) -> str:
    algorithms = algorithms_for(Collective.ALL_REDUCE, library=library)
    _, index = collective_seconds(
        Collective.ALL_REDUCE, volume=np.array([volume]), span=span, algorithms=algorithms
    )
    return algorithms[int(index[0])].name


def test_each_is_chosen_where_it_wins() -> None:
    alone = one_group((8,), bandwidth=(4e11,), latency_s=(2e-6,), in_network_reduction=False)
    late = replace(alone, late_s=np.array([5e-3]))
    assert (chosen(alone, 1e9, "synthesised"), chosen(late, 1e9, "synthesised")) == (
        "ring",
        "straggler",
    )
    assert chosen(replace(alone, late_s=np.array([1e-6])), 1e9, "synthesised") == "ring"
    uneven = span_of_layout(
        Layout(
            units=((8, 8, 8, 8, 8, 8, 8, 4),),
            size=60,
            bandwidth=(4e11, 5e10),
            latency_s=(2e-6, 9e-6),
        )
    )
    assert [chosen(uneven, volume, "synthesised") for volume in (1e3, 1e10)] == ["tree", "forest"]
    assert [chosen(uneven, volume, "nccl") for volume in (1e3, 1e10)] == [
        "double_binary_tree",
        "ring",
    ]


def test_libraries_without_schedules_are_not_priced_with_them() -> None:
    for library in LIBRARIES:
        names = {
            algorithm.name for algorithm in algorithms_for(Collective.ALL_REDUCE, library=library)
        }
        assert names.isdisjoint(SCHEDULED) or library == "synthesised"
    assert {
        a.name
        for a in price_list(
            Collective.ALL_REDUCE, span=one_group((8,), bandwidth=(1e9,), latency_s=(1e-6,))
        ).algorithms
    }.isdisjoint(SCHEDULED)


def test_a_schedule_that_adds_twice_or_forgets_is_refused() -> None:
    trees = (Tree(share=1.0, parent=(-1, 0, 1)),)
    good = tree_all_reduce(trees)
    assert send_steps(trees[0])[1] == 2
    proven_sum(good)
    with pytest.raises(RuntimeModelError, match="ends without the whole"):
        proven_sum(_some(good, np.arange(good.round.size) != good.round.size - 1))
    twice = MessageSchedule(
        size=3,
        shares=(1.0,),
        round=np.array([0, 1, 2]),
        source=np.array([0, 1, 0]),
        target=np.array([1, 2, 1]),
        piece=np.zeros(3, dtype=np.int64),
    )
    with pytest.raises(RuntimeModelError, match="round 2 adds parts of piece 0 twice at member 1"):
        proven_sum(twice)


def test_layouts_without_units_fill_one_after_the_other() -> None:
    span = one_group((4, 2, 2), bandwidth=(4e11, 5e10, 2e10), latency_s=(2e-6, 9e-6, 9e-6))
    span = replace(span, below=(*span.below[:2], np.array([19])))
    assert layouts_of(span)[0].units == ((4, 4, 4, 4, 3), (8, 8, 3))


def test_no_groups_have_no_prices() -> None:
    span = one_group((8, 2), bandwidth=(4e11, 5e10), latency_s=(2e-6, 9e-6))
    none = replace(
        span,
        **{
            name: tuple(column[:0] for column in getattr(span, name))
            for name in ("below", "bandwidth", "latency_s")
        },
    )
    for name in SCHEDULED:
        assert algorithm_named(name).seconds(
            Collective.ALL_REDUCE, volume=np.zeros(0), span=none
        ).shape == (0,)
        assert all(
            sent.shape == (0,)
            for sent in algorithm_named(name).wire_bytes(
                Collective.ALL_REDUCE, volume=np.zeros(0), span=none
            )
        )
