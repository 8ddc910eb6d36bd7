"""Groups over unlike islands: what enters or leaves a unit has the links of its own members, in
every algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import algorithms_for
from shardwright.collectives.groups.links_of_one_group import layouts_of
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.collectives.groups.span_of_device_list import span_of_devices
from shardwright.collectives.messages.compute_fastest_spanning_tree_degrees import packing_of
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.cluster_network_levels import network_levels, network_units

MIXED = "a100-sxm-80gb:16+h100-sxm:16"


def span_among(text: str, devices: tuple[int, ...]) -> Span:
    cluster = parse_cluster(text)
    return span_of_devices(devices, network_levels(cluster, 0), units=network_units(cluster))


def seconds(span: Span, volume: float, library: str) -> dict[str, float]:
    volumes = np.array([volume])
    algorithms = algorithms_for(Collective.ALL_REDUCE, library=library)
    return {
        a.name: float(a.seconds(Collective.ALL_REDUCE, volume=volumes, span=span)[0])
        for a in algorithms
    }


@pytest.mark.parametrize(
    "devices",
    [
        (*range(8), 16),
        (0, *range(16, 24)),
        (*range(8), 8, 9, *range(16, 20)),
        (0, 1, 8, 16, 17, 18),
    ],
)
@pytest.mark.parametrize("library", ["nccl", "any", "synthesised"])
def test_no_algorithm_is_faster_than_the_links_of_the_emptiest_unit(
    devices: tuple[int, ...], library: str
) -> None:
    span = span_among(MIXED, devices)
    bound = packing_of(layouts_of(span)[0]).bound
    for name, spent in seconds(span, 1e10, library).items():
        assert spent >= bound * 1e10 * (1 - 1e-9), name


def test_a_sum_is_not_cheaper_because_one_kind_packs_more_members_into_a_node() -> None:
    """One replica of two has its holders in one node, the other in two: what the second's nodes can
    send decides."""
    even = span_among(MIXED, (0, 1, 2, 3, 16, 17, 18, 19))
    packed = span_among(MIXED, (0, 1, 2, 3, 16, 17, 24, 25))
    assert even.units is None
    assert packed.units == ((4, 2, 2),)
    for library in ("nccl", "any"):
        one, other = seconds(even, 1e9, library), seconds(packed, 1e9, library)
        assert all(other[name] > one[name] for name in ("ring", "double_binary_tree")), library
    assert min(seconds(packed, 1e10, "synthesised").values()) <= min(
        seconds(packed, 1e10, "nccl").values()
    )


def test_groups_over_alike_islands_are_priced_as_before() -> None:
    """Uniform clusters, and groups inside one kind's part of a mixed one: by the fullest unit, as
    grids are."""
    assert span_among("h100-sxm:32", tuple(range(12))).units is None
    assert span_among(MIXED, (*range(8), 8)).units is None
    assert span_among(MIXED, tuple(range(32))).units is None
    inside, alone = (
        span_among(MIXED, tuple(range(12))),
        span_among("a100-sxm-80gb:16", tuple(range(12))),
    )
    assert seconds(inside, 1e8, "nccl") == seconds(alone, 1e8, "nccl")


@pytest.mark.parametrize("devices", [(*range(8), 16), (0, 1, 2, 16, 17, 24)])
def test_bytes_on_the_links_are_those_of_the_emptiest_unit(devices: tuple[int, ...]) -> None:
    span = span_among(MIXED, devices)
    for algorithm in algorithms_for(Collective.ALL_REDUCE, library="any"):
        volume = np.array([1e9])
        spent = algorithm.seconds(Collective.ALL_REDUCE, volume=volume, span=span)[0]
        sent = algorithm.wire_bytes(Collective.ALL_REDUCE, volume=volume, span=span)
        assert all(
            load[0] / bandwidth[0] <= spent * (1 + 1e-12)
            for load, bandwidth in zip(sent, span.bandwidth, strict=True)
        )
        assert (
            sent[1][0] >= 1e9 / span.fewest[0][0] * (1 - 1e-12) or algorithm.name == "nvlink_sharp"
        )


def test_a_double_tree_knows_how_many_islands_there_are() -> None:
    """Members of 4, 2 and 2 are two islands of 4 by their number, and three by where they lie: an
    inner one sends the buffer twice."""
    span = span_among(MIXED, (0, 1, 2, 3, 16, 17, 24, 25))
    card = float(span.bandwidth[1][0])
    spent = seconds(span, 1e12, "nccl")["double_binary_tree"]
    assert spent == pytest.approx(2 * 1e12 / (2 * card), rel=1e-4)
    lone = span_among(MIXED, (*range(8), 16))
    fullest = Span(below=lone.below, bandwidth=lone.bandwidth, latency_s=lone.latency_s)
    ratio = min(seconds(lone, 1e12, "nccl").values()) / min(seconds(fullest, 1e12, "nccl").values())
    assert 6.0 < ratio < 8.0
