"""Every formula against the messages of the algorithm it prices."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, log2, prod

import numpy as np
import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.nvlink_sharp_all_reduce import LINK_SHARE, START_HOPS
from shardwright.collectives.algorithm_registry import algorithm_named
from tests.collectives import message_trace
from tests.collectives.message_trace import Trace
from tests.collectives.spans import one_group

LATENCY = (2e-6, 9e-6, 31e-6)
BANDWIDTH = (400e9, 50e9, 20e9)
SHAPES = [
    (2,),
    (3,),
    (8,),
    (2, 2),
    (4, 2),
    (3, 2),
    (1, 4),
    (2, 1, 3),
    (4, 3, 2),
    (1, 2, 2),
    (2, 4, 2),
    (5, 1, 1),
    (1, 1, 6),
]
POWERS = [shape for shape in SHAPES if prod(shape) & (prod(shape) - 1) == 0]


def line_of(
    name: str, kind: Collective, members: tuple[int, ...]
) -> tuple[float, float, list[float]]:
    """alpha, beta and wire bytes a byte of one group."""
    tiers = len(members)
    span = one_group(members, bandwidth=BANDWIDTH[:tiers], latency_s=LATENCY[:tiers])
    algorithm = algorithm_named(name)
    alpha = float(algorithm.seconds(kind, volume=np.zeros(1), span=span)[0])
    still = one_group(members, bandwidth=BANDWIDTH[:tiers], latency_s=(0.0,) * tiers)
    beta = float(algorithm.seconds(kind, volume=np.ones(1), span=still)[0])
    return (
        alpha,
        beta,
        [float(sent[0]) for sent in algorithm.wire_bytes(kind, volume=np.ones(1), span=span)],
    )


def in_sequence(trace: Trace) -> float:
    """Seconds a byte when the tiers' phases follow one another: bytes that cross a tier at most, at
    the slowest link they pass."""
    total = 0.0
    for tier in range(len(trace.members)):
        above = trace.busiest(tier + 1) if 0 < tier < len(trace.members) - 1 else Fraction(0)
        slowest = BANDWIDTH[0] if tier == 0 else min(BANDWIDTH[1 : tier + 1])
        total += float(trace.busiest(tier) - above) / slowest
    return total


@pytest.mark.parametrize("members", SHAPES)
def test_ring_sends_the_textbook_bytes_and_hops(members: tuple[int, ...]) -> None:
    gathered, reduced = (
        message_trace.ring_all_gather(members),
        message_trace.ring_reduce_scatter(members),
    )
    n = gathered.size
    for kind, traces in (
        (Collective.ALL_GATHER, (gathered,)),
        (Collective.REDUCE_SCATTER, (reduced,)),
        (Collective.ALL_REDUCE, (reduced, gathered)),
    ):
        alpha, _, wire = line_of("ring", kind, members)
        assert wire == pytest.approx(
            [float(sum(t.mean(tier) for t in traces)) for tier in range(len(members))]
        )
        assert alpha == pytest.approx(len(traces) * gathered.chain_latency(LATENCY, 0))
    assert sum(gathered.mean(tier) for tier in range(min(2, len(members)))) == Fraction(n - 1, n)
    longest = max(gathered.chain_latency(LATENCY, start) for start in range(n))
    alpha = line_of("ring", Collective.ALL_GATHER, members)[0]
    assert longest - max(LATENCY) <= alpha <= longest + 1e-15


@pytest.mark.parametrize("members", SHAPES)
def test_ring_is_as_fast_as_its_slowest_tier(members: tuple[int, ...]) -> None:
    trace = message_trace.ring_all_gather(members)
    n = trace.size
    # One ring a member of an island; ring r enters and leaves at member r. A unit's crossing has
    # all its members' shares.
    rates = [BANDWIDTH[0]] if members[0] > 1 else []
    rates += [
        prod(members[:tier]) * BANDWIDTH[tier]
        for tier in range(1, len(members))
        if trace.mean(tier) > 0
    ]
    assert line_of("ring", Collective.ALL_GATHER, members)[1] == pytest.approx(
        (n - 1) / n / min(rates)
    )
    assert line_of("ring", Collective.ALL_REDUCE, members)[1] == pytest.approx(
        2 * (n - 1) / n / min(rates)
    )
    assert line_of("ring", Collective.BROADCAST, members)[1] == pytest.approx(1 / min(rates))


def near_square(count: int) -> tuple[int, int]:
    side = max(d for d in range(1, count + 1) if count % d == 0 and d * d <= count)
    return side, count // side


@pytest.mark.parametrize(
    ("name", "split"),
    [("hierarchical", lambda count: (count,)), ("torus_2d", near_square)],
    ids=["hierarchical", "torus_2d"],
)
@pytest.mark.parametrize("members", SHAPES)
def test_nested_algorithms_send_the_textbook_bytes(
    name: str, split: Callable[[int], tuple[int, ...]], members: tuple[int, ...]
) -> None:
    trace = message_trace.nested_reduce_scatter(
        members, tuple(side for count in members for side in split(count))
    )
    check_reduce_scatter(name, trace)


@pytest.mark.parametrize("members", POWERS)
def test_halving_doubling_sends_the_textbook_bytes(members: tuple[int, ...]) -> None:
    trace = message_trace.recursive_halving(members)
    assert len(trace.rounds) == log2(trace.size)
    check_reduce_scatter("halving_doubling", trace)


@pytest.mark.parametrize("members", [(3,), (4, 3), (6, 2), (2, 2, 5)])
def test_halving_doubling_refuses_other_sizes(members: tuple[int, ...]) -> None:
    assert line_of("halving_doubling", Collective.ALL_REDUCE, members)[0] == np.inf


def check_reduce_scatter(name: str, trace: Trace) -> None:
    n = trace.size
    assert sum(trace.sent(0, tier=tier) for tier in range(min(2, len(trace.members)))) == Fraction(
        n - 1, n
    )
    for kind, times in (
        (Collective.REDUCE_SCATTER, 1),
        (Collective.ALL_GATHER, 1),
        (Collective.ALL_REDUCE, 2),
    ):
        alpha, beta, wire = line_of(name, kind, trace.members)
        assert alpha == pytest.approx(times * trace.latency(LATENCY))
        assert wire == pytest.approx(
            [times * float(trace.busiest(tier)) for tier in range(len(trace.members))]
        )
        assert beta == pytest.approx(times * in_sequence(trace))


@pytest.mark.parametrize("members", SHAPES)
def test_pairwise_all_to_all(members: tuple[int, ...]) -> None:
    trace = message_trace.pairwise_all_to_all(members)
    alpha, beta, wire = line_of("pairwise", Collective.ALL_TO_ALL, members)
    tiers = range(len(members))
    loads = [float(trace.busiest(tier)) for tier in tiers]
    assert wire == pytest.approx(loads)
    assert beta == pytest.approx(max(load / BANDWIDTH[tier] for tier, load in enumerate(loads)))
    assert alpha == pytest.approx(
        sum(LATENCY[trace.tier(0, peer)] for peer in range(1, trace.size))
    )


@pytest.mark.parametrize("members", SHAPES)
def test_hierarchical_all_to_all(members: tuple[int, ...]) -> None:
    trace = message_trace.hierarchical_all_to_all(members)
    alpha, beta, wire = line_of("hierarchical_all_to_all", Collective.ALL_TO_ALL, members)
    assert wire == pytest.approx([float(trace.busiest(tier)) for tier in range(len(members))])
    assert alpha == pytest.approx(trace.latency(LATENCY))
    assert beta == pytest.approx(in_sequence(trace))


@pytest.mark.parametrize("members", SHAPES)
def test_flat_rooted(members: tuple[int, ...]) -> None:
    n = prod(members)
    for kind, size in (
        (Collective.BROADCAST, Fraction(1)),
        (Collective.SCATTER, Fraction(1, n)),
        (Collective.GATHER, Fraction(1, n)),
    ):
        trace = message_trace.flat_scatter(members, size)
        alpha, beta, wire = line_of("flat", kind, members)
        assert alpha == pytest.approx(trace.latency(LATENCY))
        assert wire == pytest.approx(
            [float(trace.sent(0, tier=tier)) for tier in range(len(members))]
        )
        assert beta == pytest.approx(in_sequence(trace))


@pytest.mark.parametrize("members", SHAPES)
def test_binomial_tree(members: tuple[int, ...]) -> None:
    for kind in (Collective.BROADCAST, Collective.SCATTER, Collective.GATHER):
        trace = message_trace.binomial_rounds(members, scatter=kind is not Collective.BROADCAST)
        alpha, beta, wire = line_of("binomial_tree", kind, members)
        assert len(trace.rounds) == sum(ceil(log2(count)) for count in members)
        assert alpha == pytest.approx(trace.latency(LATENCY))
        assert wire == pytest.approx(
            [float(trace.sent(0, tier=tier)) for tier in range(len(members))]
        )
        assert beta == pytest.approx(in_sequence(trace))


@pytest.mark.parametrize("count", range(2, 40))
def test_double_tree_sends_twice_the_buffer_at_most(count: int) -> None:
    sent = message_trace.double_tree_bytes(count)
    assert sum(sent) == 2 * (count - 1)
    alpha, beta, wire = line_of("double_binary_tree", Collective.ALL_REDUCE, (1, count))
    assert max(sent) <= wire[1]
    if count == 2 or count > 5:
        assert max(sent) == wire[1]
    assert wire[0] == 0.0
    assert alpha == pytest.approx(2 * ceil(log2(count)) * LATENCY[1])
    assert beta == pytest.approx(wire[1] / BANDWIDTH[1])


def test_double_tree_chains_inside_the_island() -> None:
    alpha, beta, wire = line_of("double_binary_tree", Collective.ALL_REDUCE, (8, 4))
    assert alpha == pytest.approx(2 * (7 * LATENCY[0] + 2 * LATENCY[1]))
    assert wire == pytest.approx([2 * 7 / 8, 2 / 8])
    assert beta == pytest.approx(max(2 * 7 / 8 / BANDWIDTH[0], 2 / 8 / BANDWIDTH[1]))
    assert line_of("double_binary_tree", Collective.BROADCAST, (8, 4))[1] == pytest.approx(
        max(1 / BANDWIDTH[0], 1 / 8 / BANDWIDTH[1])
    )


def test_switch_reduction_sends_the_buffer_once_and_its_share_back() -> None:
    # For each of the c shards its owner pulls one copy a member through the switch, then multicasts
    # the sum.
    pulled = {member: sum(Fraction(1, 8) for _ in range(8)) for member in range(8)}
    pushed = Fraction(1, 8)
    alpha, beta, wire = line_of("nvlink_sharp", Collective.ALL_REDUCE, (8,))
    assert wire == pytest.approx([float(pulled[0] + pushed)])
    assert beta == pytest.approx(float(pulled[0] + pushed) / (LINK_SHARE * BANDWIDTH[0]))
    assert alpha == pytest.approx(START_HOPS * LATENCY[0])
    alpha, beta, wire = line_of("nvlink_sharp", Collective.ALL_REDUCE, (8, 4))
    assert alpha == pytest.approx(START_HOPS * LATENCY[0] + 4 * LATENCY[1])
    assert wire == pytest.approx([9 / 8, 2 / 8])
    assert beta == pytest.approx(max(9 / 8 / (LINK_SHARE * BANDWIDTH[0]), 2 / 8 / BANDWIDTH[1]))


def test_switch_reduction_needs_the_switch_and_two_members_an_island() -> None:
    algorithm = algorithm_named("nvlink_sharp")
    without = one_group((8,), bandwidth=(1e9,), latency_s=(1e-6,), in_network_reduction=False)
    assert algorithm.seconds(Collective.ALL_REDUCE, volume=np.ones(1), span=without)[0] == np.inf
    assert line_of("nvlink_sharp", Collective.ALL_REDUCE, (1, 8))[0] == np.inf
    assert line_of("nvlink_sharp", Collective.ALL_REDUCE, (1, 1))[:2] == (0.0, 0.0)


@pytest.mark.parametrize(
    ("members", "tier"), [((2,), 0), ((1, 2), 1), ((2, 1, 1), 0), ((1, 1, 2), 2), ((4, 2, 1), 1)]
)
def test_send_crosses_the_outermost_tier(members: tuple[int, ...], tier: int) -> None:
    alpha, beta, wire = line_of("send", Collective.SEND, members)
    assert alpha == LATENCY[tier]
    assert beta == pytest.approx(1 / BANDWIDTH[tier])
    assert wire == [float(k == tier or 0 < k < tier) for k in range(len(members))]


def test_a_message_is_as_slow_as_the_slowest_network_link_it_passes() -> None:
    span = one_group((1, 1, 2), bandwidth=(400e9, 1e9, 50e9), latency_s=(0.0, 0.0, 0.0))
    for kind, name in (
        (Collective.SEND, "send"),
        (Collective.ALL_TO_ALL, "hierarchical_all_to_all"),
        (Collective.ALL_GATHER, "ring"),
    ):
        share = 1.0 if kind is Collective.SEND else 0.5
        assert algorithm_named(name).seconds(kind, volume=np.ones(1), span=span)[
            0
        ] == pytest.approx(share / 1e9)
