"""Zones: where their devices lie, what links between them carry, prices; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ClusterError
from shardwright.hardware.cluster import Cluster, FabricTier
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.cluster_network_levels import (
    level_between,
    network_levels,
    network_units,
    zone_rates,
)
from shardwright.hardware.files.read_cluster_file import load_cluster
from shardwright.hardware.scale_network_limit_devices_reserve_memory import limit_devices
from shardwright.hardware.zone_link_record_and_price_checks import (
    MAX_DOLLARS,
    MAX_EGRESS,
    MAX_LATENCY_S,
)
from tests.tiers import examples

THREE = (
    "h100-sxm:16@east/2.5usd+a100-sxm-80gb:16@west/1.2usd+v100-sxm-32gb:8@east+l40s:8@far,"
    "east~west=25gbps/60ms/0.02usd,west~east=10gbps/60ms,east~far=5gbps/150ms/0.09usd,west~far=5gbps/100ms"
)
FILE = """\
name: three zones
nodes:
  - {accelerator: h100-sxm, count: 2, zone: east, dollars_per_device_hour: 2.5}
  - {accelerator: a100-sxm-80gb, count: 2, zone: west, dollars_per_device_hour: 1.2}
  - {accelerator: v100-sxm-32gb, count: 1, zone: east}
  - {accelerator: l40s, count: 1, zone: far}
links:
  - {source: east, target: west, bandwidth_gbps: 25, latency_ms: 60,\
 egress_dollars_per_gigabyte: 0.02}
  - {source: west, target: east, bandwidth_gbps: 10, latency_ms: 60}
  - {between: [east, far], bandwidth_gbps: 5, latency_ms: 150, egress_dollars_per_gigabyte: 0.09}
  - {between: [west, far], bandwidth_gbps: 5, latency_ms: 100}
"""


def facts(cluster: Cluster) -> object:
    links = [
        (one.source, one.target, one.link.achieved, one.link.latency_s, one.egress)
        for one in cluster.links
    ]
    return [(g.kind.accelerator.name, g.count, g.zone, g.price) for g in cluster.groups], sorted(
        links
    )


def test_an_expression_says_what_a_file_says() -> None:
    written = parse_cluster(THREE)
    assert facts(written) == facts(load_cluster(FILE))
    assert written.zones == ("east", "west", "far")
    assert [(g.kind.accelerator.name, g.price) for g in written.groups[:2]] == [
        ("h100-sxm", 2.5),
        ("v100-sxm-32gb", 0.0),
    ]
    assert len(written.links) == 6
    assert "in east" in written.described()


def test_nodes_of_a_zone_lie_together_and_zones_are_a_level() -> None:
    units = network_units(parse_cluster(THREE))
    assert len(units) == 3
    assert units[-2].of(np.array([0, 15, 16, 23, 24, 39, 40, 47])).tolist() == [
        0,
        0,
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    assert level_between(np.array([0, 0, 0]), np.array([7, 20, 30]), units).tolist() == [0, 1, 2]


def test_a_link_is_shared_by_the_devices_of_a_node_and_has_two_directions() -> None:
    """25 Gbit/s of a node with 8 devices: 390.6 MB/s each; 10 the other way."""
    bandwidth, latency_s = zone_rates(parse_cluster(THREE))
    east, west = 0, 2
    assert bandwidth[east, west] == pytest.approx(25e9 / 8 / 8)
    assert bandwidth[west, east] == pytest.approx(10e9 / 8 / 8)
    assert latency_s[east, west] > 0.06
    assert bandwidth[east, 1] > 10 * bandwidth[east, west]


def test_a_link_wider_than_the_cards_is_as_fast_as_they_are() -> None:
    wide = parse_cluster("h100-sxm:8@a+h100-sxm:8@b,a~b=100000gbps/0ms")
    assert zone_rates(wide)[0][0, 1] == wide.groups[0].kind.network_per_device.achieved
    assert not wide.is_uniform


def test_switch_tiers_are_of_every_zone() -> None:
    """Leaves of 16 do not reach over zones, and what lies in a zone sees the same tiers whatever
    other zones there are."""
    fabric = (
        FabricTier(name="leaf", num_devices=16),
        FabricTier(name="spine", num_devices=0, oversubscription=2.0),
    )
    both = replace(parse_cluster("h100-sxm:24@a+h100-sxm:40@b,a~b=10gbps/0ms"), fabric=fabric)
    leaf = network_units(both)[1].of(np.arange(64))
    assert leaf.tolist() == [0] * 16 + [1] * 8 + [2] * 16 + [3] * 16 + [4] * 8
    alone = replace(parse_cluster("h100-sxm:40"), fabric=fabric)
    seen = [
        [(t.bandwidth, t.latency_s) for t in network_levels(cluster, group)[:3]]
        for cluster, group in ((both, 1), (alone, 0))
    ]
    assert seen[0] == seen[1]


def test_fewer_devices_have_fewer_zones_and_links() -> None:
    few = limit_devices(parse_cluster(THREE), num_devices=40)
    assert few.zones == ("east", "west")
    assert {(one.source, one.target) for one in few.links} == {("east", "west"), ("west", "east")}
    assert limit_devices(parse_cluster(THREE), num_devices=4).links == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h100-sxm:8@east+h100-sxm:8@west", "zones 'east' and 'west' have no link"),
        ("h100-sxm:8@east+h100-sxm:8", "some nodes are in no zone"),
        ("h100-sxm:8+h200-sxm:8,east~west=1gbps/0ms", "zone 'east', which no nodes are in"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=1gbps/0ms,a~b=2gbps/0ms", "two links from 'a' to 'b'"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~a=1gbps/0ms", "to itself"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~c=1gbps/0ms", "zone 'c'"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=0gbps/0ms", "0 Gbit/s"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=ten", "no number of gbps"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=1gbps/4", "more than a link has"),
        ("h100-sxm:8@a+h100-sxm:8@b,a-b", "no link of two zones"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=10gbps", "'a~b=10gbps' says no latency"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=10gbps/0.02usd", "'a~b=10gbps/0.02usd' says no latency"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=1gbps/60000ms", "from 'a' to 'b': a latency of 60 s"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=1gbps/60s", "says more than a link has"),
        (
            "h100-sxm:8@a+h100-sxm:8@b,a~b=1gbps/0ms/20usd",
            "from 'a' to 'b': 20 dollars for a gigabyte",
        ),
        (
            "h100-sxm:8@a+h100-sxm:8@b,a~b=1gbps/-1usd",
            "'-1usd' in 'a~b=1gbps/-1usd' is no number of usd",
        ),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=1gbps/2eur", "says more than a link has"),
        ("h100-sxm:8@a+h100-sxm:8@b,a~b=10GB", "'10GB' in 'a~b=10GB' is no number of gbps"),
        ("h100-sxm:8@East+h100-sxm:8@east", "zones 'East' and 'east' have no link"),
        ("h100-sxm:8@a@b", "zone 'a@b'"),
        ("h100-sxm:8/-2usd", "'-2usd' in 'h100-sxm:8/-2usd' is no number of usd"),
        ("h100-sxm:8/2eur", "no number of usd"),
        ("h100-sxm:8/2usd/h", "no number of usd"),
        ("h100-sxm:8/nanusd", "no number of usd"),
        ("h100-sxm:8@", "is no name"),
        ("h100-sxm:8/30000usd", "30000 dollars for a device and hour"),
        ("h100-sxm:8/0usd", "0 dollars"),
        ("h100-sxm:8/2.5", "no number of usd"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_cluster(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            FILE.replace("between: [west, far]", "source: west"),
            "links.3: give either between, or source and target",
        ),
        (
            FILE.replace("dollars_per_device_hour: 2.5", "dollars_per_device_hour: 70000"),
            "nodes.0.dollars_per_device_hour: 70000 dollars",
        ),
        (FILE.replace("between: [west, far]", "between: [west]"), "links.3.between"),
        (
            FILE.replace("latency_ms: 100", "latency_s: 1"),
            "links.3.latency_s: unknown key (hint: did you mean latency_ms",
        ),
        (
            FILE.replace("latency_ms: 100", "latency_ms: 100000"),
            "from 'west' to 'far': a latency of 100 s (hint: in ms",
        ),
        (
            FILE.replace("latency_ms: 100", "latency_ms: -1"),
            "links.3.latency_ms: Input should be greater than or equal to 0 (hint: in milli",
        ),
        (
            FILE.replace("gigabyte: 0.09", "terabyte: 90"),
            "links.2.egress_dollars_per_terabyte: unknown key (hint: did you mean egress_d",
        ),
        (
            FILE.replace("gigabyte: 0.09", "gigabyte: 90"),
            "from 'east' to 'far': 90 dollars for a gigabyte that leaves (hint: dollars of 10^9",
        ),
        (
            FILE.replace("gigabyte: 0.09", "gigabyte: -0.09"),
            "links.2.egress_dollars_per_gigabyte: Input should be greater",
        ),
        (
            FILE.replace("bandwidth_gbps: 10", "bandwidth_gigabytes_per_s: 1"),
            "links.1.bandwidth_gigabytes_per_s: unknown key (hint: did you mean",
        ),
        (
            FILE.replace("bandwidth_gbps: 10", "bandwidth_gbps: 0"),
            "links.1.bandwidth_gbps: Input should be greater",
        ),
        (
            FILE.replace("between: [west, far]", "between: [east, far]"),
            "two links from 'east' to 'far'",
        ),
        (
            FILE.replace("  - {between: [west, far], bandwidth_gbps: 5, latency_ms: 100}\n", ""),
            "zones 'west' and 'far' have no link",
        ),
        (
            FILE.replace("dollars_per_device_hour: 2.5", "dollars_per_hour: 2.5"),
            "nodes.0.dollars_per_hour: unknown key",
        ),
        (
            FILE.replace("dollars_per_device_hour: 2.5", "dollars_per_device_hour: -2.5"),
            "nodes.0.dollars_per_device_hour: -2.5 dollars",
        ),
        (
            FILE.replace("dollars_per_device_hour: 2.5", "dollars_per_device_hour: .nan"),
            "nodes.0.dollars_per_device_hour: Input should be a",
        ),
        (
            FILE.replace("zone: far", "zone: 5"),
            "nodes.3.zone: Input should be a valid string (hint: text",
        ),
        (FILE.replace(", latency_ms: 100", ""), "links.3.latency_ms: required key is missing"),
        (FILE.replace("zone: far", "zone: a b"), "nodes.3.zone: String should match pattern"),
        (FILE.replace(", zone: far", ""), "some nodes are in no zone"),
        (
            FILE.replace("accelerator: l40s", "accelerator: l41s"),
            "nodes.3: unknown accelerator 'l41s'",
        ),
        (
            "accelerators: {mine: {memory_gib: 80}}\nnodes: [{accelerator: mine, count: 1}]\n",
            "accelerators.mine: needs memory_gib",
        ),
    ],
)
def test_a_file_says_where(text: str, words: str) -> None:
    with pytest.raises(ClusterError) as caught:
        load_cluster(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


ZONES = st.sampled_from(["east", "west", "far", "", "a b", "East"])
ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6))
NUMBER = st.one_of(st.floats(min_value=0.001, max_value=10.0), ODD)
NODES = st.fixed_dictionaries(
    {"accelerator": st.sampled_from(["h100-sxm", "v100-sxm-16gb"]), "count": st.integers(1, 3)},
    optional={
        "zone": st.one_of(ZONES, ODD),
        "dollars_per_device_hour": NUMBER,
        "dollars_per_hour": NUMBER,
    },
)
LINKS = st.fixed_dictionaries(
    {"bandwidth_gbps": NUMBER},
    optional={
        "between": st.lists(ZONES, min_size=1, max_size=3),
        "source": ZONES,
        "target": ZONES,
        "latency_ms": NUMBER,
        "egress_dollars_per_gigabyte": NUMBER,
        "latency_us": NUMBER,
    },
)


WORDS = [
    *(
        "h100-sxm:8",
        "v100-sxm-16gb:8",
        "@",
        "east",
        "west",
        "/",
        "2usd",
        "-1usd",
        "+",
        ",",
        "east~west",
        "~",
        "=",
        "10gbps",
        "30ms",
    ),
    *(
        "1e9ms",
        "0.02usd",
        "usd",
        "east~west=10gbps/30ms/0.02usd",
        "h100-sxm:8@east/2usd",
        " ",
        "\n",
        "é",
    ),
]


def read_or_refused(read: Callable[[str], Cluster], text: str) -> Cluster | None:
    """The cluster; None where it is refused, which is said in one line with a hint."""
    try:
        return read(text)
    except ClusterError as error:
        said = error
    assert said.hint
    assert "\n" not in said.message + said.hint
    return None


@examples(40, 1000)
@given(nodes=st.lists(NODES, min_size=1, max_size=3), links=st.lists(LINKS, max_size=4))
def test_files_with_zones_load_or_are_refused_in_a_line(
    nodes: list[object], links: list[object]
) -> None:
    cluster = read_or_refused(load_cluster, yaml.safe_dump({"nodes": nodes, "links": links}))
    if cluster is not None:
        zones = cluster.zones if len(cluster.zones) > 1 else ()
        assert {(one.source, one.target) for one in cluster.links} == set(permutations(zones, 2))
        assert all(
            0.0 <= one.egress <= MAX_EGRESS and 0.0 <= one.link.latency_s <= MAX_LATENCY_S
            for one in cluster.links
        )
        assert all(
            group.price == 0.0 or 0.0 < group.price <= MAX_DOLLARS for group in cluster.groups
        )


@examples(50, 1000)
@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join))
def test_expressions_with_zones_parse_or_are_refused_in_a_line(text: str) -> None:
    cluster = read_or_refused(parse_cluster, text)
    if cluster is not None:
        assert len(cluster.links) in (0, len(cluster.zones) * (len(cluster.zones) - 1))
