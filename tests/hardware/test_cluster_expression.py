"""Cluster expressions: what they build, and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright.errors import ClusterError
from shardwright.hardware.catalog.accelerators_by_name import accelerator_names
from shardwright.hardware.catalog.cloud_instances import find_instance, instance_names
from shardwright.hardware.catalog.published_clusters import PUBLISHED, PublishedCluster
from shardwright.hardware.cluster_expression import MAX_DEVICES, cluster_names, parse_cluster
from shardwright.hardware.files.read_cluster_file import load_cluster
from tests.tiers import examples

RTX = [name for name in accelerator_names() if name.startswith("rtx-")]
GOLDEN = Path(__file__).parent / "golden_errors.txt"


def test_uniform() -> None:
    cluster = parse_cluster("h100-sxm:16384")
    assert cluster.num_devices == 16384
    assert cluster.is_uniform
    assert cluster.node.num_devices == 8
    island, network = cluster.tiers()
    assert (island.num_devices, network.num_devices) == (8, 16384)
    assert island.bandwidth == pytest.approx(336e9, rel=0.01)
    assert network.bandwidth == pytest.approx(0.8 * 50e9)


def test_mixed_groups_keep_their_order() -> None:
    cluster = parse_cluster("a100-sxm-80gb:64+v100-sxm-32gb:32")
    assert [(g.kind.accelerator.name, g.count) for g in cluster.groups] == [
        ("a100-sxm-80gb", 8),
        ("v100-sxm-32gb", 4),
    ]
    assert not cluster.is_uniform
    assert parse_cluster("h100:8 + H100_SXM:16").groups == parse_cluster("h100:24").groups


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("8xH100", "h100-sxm:8"),
        ("8xh100-sxm", "h100-sxm:8"),
        ("3x8xA100", "a100-sxm-80gb:24"),
        ("2 X 8 x MI300X", "mi300x:16"),
        ("2x8xNVIDIA H100 80GB HBM3", "h100-sxm:16"),
        ("4xaws-p5.48xlarge", "aws-p5.48xlarge:4"),
        ("4x8xaws-p5.48xlarge", "aws-p5.48xlarge:4"),
        ("18x4xgb200-nvl72", "gb200-nvl72:72"),
        ("2xv5p-256", "v5p-256:2"),
        ("1024xmeta-24k-roce", "meta-24k-roce:1024"),
        ("A100-SXM4-80GB:8", "a100-sxm-80gb:8"),
        ("nvidia-h100-mega-80gb:8", "h100-sxm:8"),
        (
            "2x8xH100@east/2usd+8xL40S@west,east~west=10gbps/1ms",
            "h100-sxm:16@east/2usd+l40s:8@west,east~west=10gbps/1ms",
        ),
    ],
)
def test_counts_before_the_name(text: str, plain: str) -> None:
    one, other = parse_cluster(text), parse_cluster(plain)
    assert (one.groups, one.fabric, one.links) == (other.groups, other.fabric, other.links)


def test_nodes_of_fewer_devices() -> None:
    (group,) = parse_cluster("2x4xA100").groups
    assert (group.count, group.kind.num_devices, group.kind.island, group.kind.nics) == (2, 4, 4, 4)


def test_a_word_of_several_accelerators_says_which_it_is_read_as() -> None:
    note = parse_cluster("8xA100").described()
    assert note.endswith(
        "(A100 is read as a100-sxm-80gb; others: a100-pcie-40gb, a100-pcie-80gb, a100-sxm-40gb)"
    )
    assert parse_cluster("8xMI300X").described() == "8 x mi300x, a node of 8"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("8xH100:8", "has its count twice", "8xh100-sxm"),
        ("0x8xA100", "count '0'", "NAME:COUNT"),
        ("2x16xA100", "the usual node of a100-sxm-80gb has 8 devices", "devices_per_node: 16"),
        ("4x4xaws-p5.48xlarge", "have their own number of devices", "aws-p5.48xlarge:4"),
        (
            "8xRTX",
            "unknown accelerator, instance or cluster 'RTX'",
            f"say which: {' or '.join(RTX)}",
        ),
        ("8x8x8xA100", "unknown accelerator, instance or cluster '8xA100'", ""),
    ],
)
def test_counts_that_are_none_are_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(ClusterError, match=message) as caught:
        parse_cluster(text)
    assert hint in caught.value.hint


def test_fewer_than_a_node_is_a_smaller_node() -> None:
    cluster = parse_cluster("h100:3")
    assert (cluster.node.num_devices, cluster.node.island, cluster.node.nics) == (3, 3, 3)
    assert [t.name for t in cluster.tiers()] == ["island"]
    assert parse_cluster("t4:1").node.nics == 1


def test_nvl72_islands_span_nodes_of_4() -> None:
    two = parse_cluster("gb200-nvl72:144")
    assert two.node.num_devices == 4
    assert [(t.name, t.num_devices) for t in two.tiers()] == [("island", 72), ("network", 144)]
    assert [(t.name, t.num_devices) for t in parse_cluster("gb200:36").tiers()] == [("island", 36)]


@pytest.mark.parametrize(
    ("devices", "island"),
    [(64, 64), (72, 72), (128, 64), (144, 72), (256, 64), (1024, 64), (720, 72), (76, 72)],
)
def test_a_job_gets_equal_segments_of_nvl72_islands(devices: int, island: int) -> None:
    """Of at least half an island: 76 devices are 19 nodes, which only single nodes divide."""
    assert parse_cluster(f"gb200-nvl72:{devices}").tiers()[0].num_devices == island


def test_published_cluster_brings_its_tiers() -> None:
    tiers = parse_cluster("meta-24k-roce:16384").tiers()
    assert [(t.name, t.num_devices) for t in tiers] == [
        ("island", 8),
        ("rack", 16),
        ("pod", 3072),
        ("aggregation", 16384),
    ]
    assert tiers[3].bandwidth == pytest.approx(tiers[2].bandwidth / 7)
    assert parse_cluster("META_24K_RoCE").num_devices == 24576


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda c: c.name)
def test_every_published_cluster_builds(published: PublishedCluster) -> None:
    cluster = parse_cluster(published.name)
    assert cluster.num_devices == published.num_devices
    assert cluster.tiers()[-1].num_devices == cluster.num_devices
    sizes = [t.num_devices for t in cluster.tiers()]
    assert sizes == sorted(set(sizes))


def test_a_number_after_an_instance_counts_instances() -> None:
    cluster = parse_cluster("aws-p5.48xlarge:128")
    assert cluster.num_devices == 1024
    assert cluster.node.network_per_device.bandwidth == 50e9
    assert parse_cluster("p5.48xlarge:2").groups == parse_cluster("AWS-P5.48xlarge:2").groups
    assert parse_cluster("Standard_ND96isr_H100_v5:1").node.nics == 8


@pytest.mark.parametrize("name", instance_names())
def test_every_instance_has_a_network_no_faster_than_its_cards(name: str) -> None:
    kind = find_instance(name)
    assert kind is not None
    assert kind.name == name
    total = kind.nics * kind.nic.bandwidth
    assert 1e9 < total <= 800e9
    assert kind.network_per_device.bandwidth == pytest.approx(total / kind.num_devices)


def test_golden_errors() -> None:
    lines = [line for line in GOLDEN.read_text(encoding="utf-8").splitlines() if line]
    assert len(lines) % 2 == 0
    for written, expected in zip(lines[::2], lines[1::2], strict=True):
        with pytest.raises(ClusterError) as caught:
            load_cluster(written.encode().decode("unicode_escape"))
        assert f"  {caught.value}" == expected


def test_every_name_parses() -> None:
    for name in cluster_names():
        assert parse_cluster(f"{name}:16").num_devices >= 16


names = st.sampled_from(cluster_names())
terms = st.tuples(names, st.integers(min_value=-3, max_value=10**20)).map(
    lambda t: f"{t[0]}:{t[1]}"
)


@examples(60, 1500)
@given(
    st.one_of(
        st.text(), st.lists(st.one_of(terms, names, st.text(max_size=8)), max_size=5).map("+".join)
    )
)
@example("h100:" + "9" * 5000)
@example("h100:²")
@example("h100:٣")
@example(":8")
@example("h100::8")
@example("\x00:8")
@example("h100:8+" * 100 + "h100:8")
def test_fuzz(text: str) -> None:
    try:
        cluster = parse_cluster(text)
    except ClusterError:
        return
    assert 1 <= cluster.num_devices <= MAX_DEVICES
    assert cluster.tiers()[-1].num_devices == cluster.num_devices
