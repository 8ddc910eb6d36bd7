"""States of a cluster: devices keep their numbers, what is slower is slower by what was said, and
files that say nothing are refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.files.weighted_cluster_conditions_file import states_from_yaml
from shardwright.hardware.slowdown_scenarios import (
    LinkState,
    NodeState,
    State,
    cluster_in_state,
    slower_device,
    time_shares,
)
from tests.tiers import in_both, many, random_of

ZONES = "h100-sxm:16@east+a100-sxm-80gb:16@west,east~west=25gbps/60ms"
FILE = """scenarios:
  - {name: usual, weight: 3}
  - {name: busy, weight: 1, network: 0.5, devices: 0.9,\
 nodes: [{node: 1, devices: 0.7, cards: 0.25}]}
  - {name: far, weight: 1, links: [{between: [east, west], bandwidth: 0.1, later_ms: 20},\
 {source: a, target: b}]}
"""


def kinds(text: str, state: State) -> list[tuple[float, float]]:
    """(peak FLOP/s, bytes/s of a card) by node."""
    groups = cluster_in_state(parse_cluster(text), state).groups
    return [
        (group.kind.accelerator.peak_flops[0][1], group.kind.nic.bandwidth)
        for group in groups
        for _ in range(group.count)
    ]


@in_both
def test_every_node_is_as_fast_as_was_said() -> None:
    draw = random_of("states")
    for _ in range(many(20, 200)):
        text = draw.choice(("h100-sxm:64", "h100-sxm:32+a100-sxm-80gb:24", ZONES))
        usual = kinds(text, State(name="usual"))
        nodes = tuple(
            NodeState(node=number, devices=draw.choice((1.0, 0.5)), cards=draw.choice((1.0, 0.25)))
            for number in draw.sample(range(len(usual)), draw.randint(0, 3))
        )
        state = State(
            name="slow",
            devices=draw.choice((1.0, 0.8)),
            network=draw.choice((1.0, 0.5)),
            nodes=nodes,
        )
        slow = {one.node: one for one in nodes}
        for number, (before, after) in enumerate(zip(usual, kinds(text, state), strict=True)):
            one = slow.get(number, NodeState(node=number))
            assert after[0] == pytest.approx(before[0] * state.devices * one.devices)
            assert after[1] == pytest.approx(before[1] * state.network * one.cards)
        assert not state.alike.nodes


def test_what_is_usual_is_the_cluster_itself() -> None:
    cluster = parse_cluster("h100-sxm:64")
    assert cluster_in_state(cluster, State(name="usual")) == cluster
    assert (
        cluster_in_state(cluster, State(name="same", nodes=(NodeState(node=0),))).num_devices == 64
    )


def test_links_of_zones_are_narrower_and_later_in_the_direction_that_was_said() -> None:
    cluster = parse_cluster(ZONES)
    state = State(
        name="far", links=(LinkState(source="east", target="west", bandwidth=0.1, later_s=0.02),)
    )
    there, back = cluster_in_state(cluster, state).links
    assert there.link.bandwidth == pytest.approx(0.1 * cluster.links[0].link.bandwidth)
    assert there.link.latency_s == pytest.approx(0.08)
    assert back == cluster.links[1]


def test_a_slower_device_takes_as_many_times_as_long_for_everything() -> None:
    device = parse_cluster("h100-sxm:8").node.accelerator
    slow = slower_device(device, 2.0)
    assert slow.launch_s == 2 * device.launch_s
    assert slow.memory_bandwidth == device.memory_bandwidth / 2
    assert [rates.overhead_s for rates in slow.gemm] == [
        2 * rates.overhead_s for rates in device.gemm
    ]
    assert replace(slow, launch_s=device.launch_s).name == device.name


def test_a_file() -> None:
    usual, busy, far = states_from_yaml(FILE)
    assert time_shares((usual, busy, far)) == (0.6, 0.2, 0.2)
    assert busy == State(
        name="busy", network=0.5, devices=0.9, nodes=(NodeState(node=1, devices=0.7, cards=0.25),)
    )
    assert far.links[:2] == tuple(
        LinkState(source=a, target=b, bandwidth=0.1, later_s=0.02)
        for a, b in (("east", "west"), ("west", "east"))
    )
    assert far.links[2] == LinkState(source="a", target="b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scenarios: []", "scenarios: List should have at least 1 item"),
        ("[1]", "a scenario file is a mapping"),
        ("scenarios: [{name: a}, {name: a}]", "two scenarios are called 'a'"),
        (
            "scenarios: [{name: a, network: 0}]",
            "scenarios.0.network: Input should be greater than 0",
        ),
        (
            "scenarios: [{name: a, network: 1.5}]",
            "scenarios.0.network: Input should be less than or equal to 1",
        ),
        ("scenarios: [{name: a, weight: often}]", "scenarios.0.weight"),
        (
            "scenarios: [{name: a, nodes: [{devices: 0.5}]}]",
            "scenarios.0.nodes.0.node: required key is missing",
        ),
        ("scenarios: [{name: a, slow: 1}]", "scenarios.0.slow: unknown key"),
        (
            "scenarios: [{name: a, links: [{source: east}]}]",
            "scenarios.0.links.0: a link is between two zones",
        ),
        (
            "scenarios: [{name: a, links: [{between: [a, b], source: a, target: b}]}]",
            "a link is between two zones",
        ),
        ("scenarios: {", "scenario file is not YAML"),
    ],
)
def test_files_that_say_something_else_are_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        states_from_yaml(text)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (State(name="s", nodes=(NodeState(node=4),)), "the cluster has no node 4"),
        (State(name="s", nodes=(NodeState(node=1), NodeState(node=1))), "has a node twice"),
        (
            State(name="s", links=(LinkState(source="east", target="north"),)),
            "no link from 'east' to 'north'",
        ),
        (State(name="s", links=(LinkState(source="east", target="west"),) * 2), "has a link twice"),
    ],
)
def test_states_of_another_cluster_are_refused(state: State, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        cluster_in_state(parse_cluster(ZONES), state)
    assert message in caught.value.message
    assert caught.value.hint


def test_a_state_of_a_cluster_without_zones_has_no_links() -> None:
    with pytest.raises(ClusterError, match="no link"):
        cluster_in_state(
            parse_cluster("h100-sxm:16"),
            State(name="s", links=(LinkState(source="east", target="west"),)),
        )


def test_numbers_of_nodes_do_not_depend_on_their_order_in_the_file() -> None:
    generator = Random(1)
    nodes = [NodeState(node=number, devices=0.5 + number / 20) for number in range(4)]
    cluster = parse_cluster("h100-sxm:64")
    found = cluster_in_state(cluster, State(name="s", nodes=tuple(nodes)))
    generator.shuffle(nodes)
    assert cluster_in_state(cluster, State(name="s", nodes=tuple(nodes))) == found
