"""Tokens on the way to their experts, and engines' own sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.inference.token_exchange import (
    TokenExchange,
    devices_reached,
    dispatch_and_combine_seconds,
)
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Network,
    move_seconds,
    network_of,
)
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_expression import parse_cluster
from tests.tiers import examples

FEW = examples(40)
NO_TABLES = Network(tiers=(), units=(), in_network_reduction=True)


def island(name: str, devices: int) -> Span:
    node = default_node(accelerator(name))
    one = np.ones(1)
    return Span(
        below=(np.array([devices]),),
        bandwidth=(one * node.scale_up.achieved,),
        latency_s=(one * node.scale_up.latency_s,),
        in_network_reduction=node.in_network_reduction,
    )


def two_nodes(per_node: int = 8) -> Span:
    one = np.ones(1)
    return Span(
        below=(np.array([per_node]), np.array([2 * per_node])),
        bandwidth=(one * 337e9, one * 48e9),
        latency_s=(one * 1.3e-6, one * 5e-6),
    )


def ways(
    exchange: TokenExchange,
    tokens: int,
    *,
    span: Span,
    network: Network = NO_TABLES,
    sent: float = 1.0,
) -> FloatArray:
    return np.concatenate(
        dispatch_and_combine_seconds(
            exchange,
            tokens=np.array([tokens]),
            hidden=7168,
            topk=8,
            span=span,
            network=network,
            sent=sent,
        )
    )


@FEW
@given(
    exchange=st.sampled_from(TokenExchange),
    tokens=st.integers(0, 50_000),
    more=st.integers(1, 50_000),
    far=st.booleans(),
)
def test_never_falls_with_tokens(
    exchange: TokenExchange, tokens: int, more: int, far: bool
) -> None:
    span = two_nodes() if far else island("h200-sxm", 8)
    assert (ways(exchange, tokens + more, span=span) >= ways(exchange, tokens, span=span)).all()


@pytest.mark.parametrize("exchange", TokenExchange)
def test_one_member_sends_nothing(exchange: TokenExchange) -> None:
    np.testing.assert_array_equal(ways(exchange, 128, span=island("h200-sxm", 1)), 0.0)


def test_devices_reached() -> None:
    np.testing.assert_allclose(
        devices_reached(np.array([1.0, 8.0, 64.0]), 8), [1.0, 5.251, 7.58], rtol=1e-3
    )


def test_deepep_across_nodes_as_measured() -> None:
    """Two nodes of H100, 128 tokens of 7168 in 8 bits there and 16 back (SGLang's rows): 102 and
    186 us; the formula has no table."""
    there, back = ways(TokenExchange.LOW_LATENCY, 128, span=two_nodes())
    assert there == pytest.approx(102e-6, rel=0.2)
    assert back == pytest.approx(186e-6, rel=0.2)


@pytest.mark.parametrize(
    ("library", "exchange", "tokens", "there", "back"),
    [
        ("deepep", TokenExchange.LOW_LATENCY, 128, 35e-6, 68e-6),
        ("deepep", TokenExchange.NORMAL, 4096, 494e-6, 996e-6),
    ],
)
def test_an_island_that_was_measured_answers_from_its_curve(
    library: str, exchange: TokenExchange, tokens: int, there: float, back: float
) -> None:
    """A curve is of all hidden sizes and numbers of experts by their bytes: a single row is up to a
    fifth off it."""
    network = network_of(_cluster("h200-sxm"), library=library)
    np.testing.assert_allclose(
        ways(exchange, tokens, span=island("h200-sxm", 8), network=network), [there, back], rtol=0.2
    )


@pytest.mark.parametrize(
    ("library", "measured"),
    [("vllm", 4.7e-6), ("sglang", 3.1e-6), ("trtllm", 3.2e-6), ("nccl", 16e-6)],
)
def test_small_sums_are_the_engines_own(library: str, measured: float) -> None:
    """1 KiB over 8 H200."""
    network = network_of(_cluster("h200-sxm"), library=library)
    spent = move_seconds(
        Collective.ALL_REDUCE,
        volume=np.array([1024.0]),
        span=island("h200-sxm", 8),
        network=network,
    )
    assert float(spent[0]) == pytest.approx(measured, rel=0.15)


def _cluster(name: str) -> Cluster:
    return parse_cluster(f"{name}:8")
