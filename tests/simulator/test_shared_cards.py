"""Cards that devices of a node share are shared by those that work: what a plan leaves idle takes
no part of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.cluster_network_levels import with_working_devices, zone_rates
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.simulator.general import problem_for
from tests.strategy.zoo_models import dense
from tests.tiers import random_of, seeds

NODE = 8


def nodes(nics: int, *, rate: float = 1.0) -> Cluster:
    """Two nodes of 8 A100 that share so many cards, each of so many times the usual bandwidth."""
    (group,) = parse_cluster("a100-sxm-80gb:16").groups
    nic = replace(group.kind.nic, bandwidth=group.kind.nic.bandwidth * rate)
    return Cluster(
        expression="two nodes",
        groups=(NodeGroup(kind=replace(group.kind, nics=nics, nic=nic), count=2),),
    )


def pipes(lanes: list[list[int]], *, cut: str = "b1") -> str:
    """Pipelines of two stages, each on devices from such a one on, that share the batch alike."""
    text = [f"plan pipes devices {2 * NODE}"]
    for number, places in enumerate(lanes):
        where = ", ".join(map(str, places))
        text += [
            f"lane l{number} samples 16 in 8",
            f"  stages embed+4, 4+head on {where}",
            f"    all = {cut}",
        ]
    return "\n".join([*text, *(f"order 1f1b(l{number})" for number in range(len(lanes)))]) + "\n"


def seconds(text: str, cluster: Cluster, *, lanes: int = 1) -> float:
    problem = problem_for(dense(), batch=16 * lanes, seq_len=2048)
    return simulate_plan(replace(problem, cluster=cluster), parse_plan(text)).step_time_s


def test_a_lone_sender_has_its_nodes_card() -> None:
    """Two stages of one device, on two nodes of 8 that have one card: as with a card each, and
    faster than with an eighth of it."""
    text = pipes([[0, NODE]])
    lone, each, eighth = (
        seconds(text, cluster) for cluster in (nodes(1), nodes(NODE), nodes(NODE, rate=1 / 8))
    )
    assert lone == pytest.approx(each, rel=1e-12)
    assert lone < 0.99 * eighth
    every = pipes([[0, NODE]], cut="t8")
    assert seconds(every, nodes(1)) == pytest.approx(
        seconds(every, nodes(NODE, rate=1 / 8)), rel=1e-12
    )


@pytest.mark.parametrize("seed", seeds(6, 200))
def test_those_that_work_share_the_cards(seed: int) -> None:
    """Some devices of each node, in any stages: as if each had a card of what it has. Gradients are
    summed over both nodes."""
    generator = random_of(f"cards {seed}")
    work, nics = generator.randint(1, NODE), generator.choice((1, 2, 4))
    places = [
        node * NODE + device for node in range(2) for device in generator.sample(range(NODE), work)
    ]
    generator.shuffle(places)
    text = pipes([list(pair) for pair in zip(places[::2], places[1::2], strict=True)])
    share = min(1.0, nics / work)
    assert seconds(text, nodes(nics), lanes=work) == pytest.approx(
        seconds(text, nodes(NODE, rate=share), lanes=work), rel=1e-12
    )


def test_the_fullest_node_of_a_kind_says_how_many_share() -> None:
    """With 4 cards for 8 devices: 2 in one node, 5 in another; nodes with a card for each device
    stay as they are."""
    cluster = parse_cluster("aws-p4d.24xlarge:16+h100-sxm:8")
    worked = with_working_devices(cluster, (0, 1, 8, 9, 10, 11, 12, 16))
    assert [group.kind.at_work for group in worked.groups] == [5, 0]
    shares = [
        group.kind.network_per_device.bandwidth / group.kind.nic.bandwidth
        for group in worked.groups
    ]
    assert shares == [pytest.approx(4 / 5), 1.0]
    assert with_working_devices(cluster, range(24)) is cluster
    assert with_working_devices(cluster, (0, 1)) is with_working_devices(cluster, (8, 9))


def test_devices_that_work_share_the_link_of_their_zone() -> None:
    cluster = parse_cluster("h100-sxm:8@a+a100-sxm-80gb:8@b,a~b=80gbps/1ms")
    full, few = (
        zone_rates(with_working_devices(cluster, devices))[0][0, 1]
        for devices in (range(16), (0, 1, 8, 9))
    )
    assert few == pytest.approx(4 * full)
    assert few == pytest.approx(10e9 / 2)
