"""Cluster files: what they build, that dumps load as the same cluster, and that only ClusterError
escapes."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright.dtype import Dtype
from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_expression import cluster_names, parse_cluster
from shardwright.hardware.files.read_cluster_file import load_cluster
from shardwright.hardware.scale_network_limit_devices_reserve_memory import (
    reserve_memory,
    scale_network,
)
from tests.hardware.catalog_rows import require_row
from tests.hardware.cluster_text import dump_cluster
from tests.tiers import examples

MIXED = """
name: two-kinds
accelerators:
  h100-capped: {like: h100-sxm, memory_gib: 78, sustained: 1.4, peak_tflops: {bf16: 800}}
nodes:
  - {accelerator: h100-capped, count: 16,\
 nic: {bandwidth_gbps: 400, reverse_bandwidth_gbps: 200, latency_us: 12.5}}
  - {instance: aws-p4d.24xlarge, count: 8}
fabric:
  - {name: leaf, devices: 64, rails: true}
  - {name: spine, oversubscription: 2, latency_us: 1.5}
"""


def test_a_mixed_file() -> None:
    cluster = load_cluster(MIXED)
    assert cluster.expression == "two-kinds"
    assert cluster.num_devices == 16 * 8 + 8 * 8
    capped = cluster.node.accelerator
    assert capped.memory_bytes == 78 * 2**30
    assert capped.peak(Dtype.BF16) == 800e12
    assert capped.peak(Dtype.FP8) == 1979e12
    assert all((g.sustained, g.origin.evidence) == (1.4, Evidence.ASSUMED) for g in capped.gemm)
    nic = cluster.node.nic
    assert (nic.bandwidth, nic.reverse_bandwidth, nic.latency_s) == (50e9, 25e9, 12.5e-6)
    assert nic.achieved == pytest.approx(0.8 * 25e9)
    assert [t.rails for t in cluster.fabric] == [True, False]
    assert cluster.groups[1].kind.name == "aws-p4d.24xlarge"


def test_oversubscription_divides_the_share_above_the_leaf() -> None:
    leaf, spine = load_cluster(MIXED).tiers()[1:]
    assert (leaf.num_devices, spine.num_devices) == (64, 192)
    assert spine.bandwidth == pytest.approx(leaf.bandwidth / 2)
    assert spine.latency_s == pytest.approx(leaf.latency_s + 1.5e-6)


@pytest.mark.parametrize(
    ("fabric", "message", "hint"),
    [
        (
            "[{name: leaf, devices: 32, oversubscription: 3}, {name: spine}]",
            "leaf joins nodes at the rate of their cards",
            "of the tier above",
        ),
        (
            "[{name: leaf, devices: 12}, {name: spine}]",
            "12 devices of leaf are no whole nodes",
            "a multiple of 8",
        ),
        (
            "[{name: leaf, devices: 16}, {name: pod, devices: 36}, {name: core}]",
            "36 devices of pod are no whole nodes",
            "a multiple of 8",
        ),
    ],
)
def test_tiers_that_no_network_has_are_refused(fabric: str, message: str, hint: str) -> None:
    with pytest.raises(ClusterError, match=message) as caught:
        load_cluster(f"nodes: [{{accelerator: h100-sxm, count: 8}}]\nfabric: {fabric}")
    assert hint in caught.value.hint


PCIE = """nodes:
  - accelerator: a100-pcie-80gb
    count: 2
    island_devices: 2
    node_tiers:
      - {name: processor, devices: 4, bandwidth_gigabytes_per_s: 32, efficiency: 0.3, latency_us: 2}
      - {name: sockets, devices: 8, bandwidth_gbps: 80}
"""


def test_tiers_inside_a_node() -> None:
    cluster = load_cluster(PCIE)
    processor, sockets = cluster.node.node_tiers
    assert (processor.link.achieved, processor.link.latency_s, sockets.link.achieved) == (
        9.6e9,
        2e-6,
        10e9,
    )
    assert sockets.link.latency_s == cluster.node.scale_up.latency_s
    assert [tier.num_devices for tier in cluster.tiers()] == [2, 4, 8, 16]
    assert load_cluster(dump_cluster(cluster)) == cluster


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        (
            "[{name: a, devices: 3, bandwidth_gbps: 8}]",
            "node_tiers.0: a tier of 3 devices in nodes of 8",
        ),
        (
            "[{name: a, devices: 8, bandwidth_gbps: 8}, {name: b, devices: 8, bandwidth_gbps: 8}]",
            "node_tiers.1: a tier of 8",
        ),
        ("[{name: a, devices: 16, bandwidth_gbps: 8}]", "a tier of 16 devices in nodes of 8"),
        ("[{name: a, devices: 4, bandwidth_gbps: 8}]", "the last tier joins 4 of 8 devices"),
        ("[{name: a, devices: 8}]", "node_tiers.0: no bandwidth"),
        ("[{name: a, devices: 8, bandwith_gbps: 8}]", "bandwith_gbps"),
    ],
)
def test_tiers_that_no_node_has_are_refused(tiers: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        load_cluster(
            "nodes: [{accelerator: a100-pcie-80gb, count: 1, island_devices: 2, node_tiers:"
            f" {tiers}}}]"
        )


def test_devices_per_node_shrink_the_island_and_the_cards() -> None:
    kind = load_cluster("nodes: [{accelerator: h100-sxm, count: 3, devices_per_node: 4}]").node
    assert (kind.num_devices, kind.island, kind.nics) == (4, 4, 4)
    kind = load_cluster("nodes: [{accelerator: gb200, count: 3, island_devices: 36}]").node
    assert (kind.num_devices, kind.island) == (4, 36)


def test_an_accelerator_of_the_files_own() -> None:
    text = (
        "accelerators: {chip: {memory_gib: 40, memory_bandwidth_gigabytes_per_s: 1000, peak_tflops:"
        " {bf16: 100}}}\n"
    )
    chip = load_cluster(text + "nodes: [{accelerator: Chip, count: 1}]").node.accelerator
    assert (chip.name, chip.peak(Dtype.BF16), chip.memory_bandwidth) == ("chip", 100e12, 1e12)
    assert chip.gemm[0].origin.evidence is Evidence.ASSUMED


def test_load_tells_files_text_and_expressions_apart(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(MIXED, encoding="utf-8")
    assert load_cluster(path) == load_cluster(str(path)) == load_cluster(MIXED)
    assert load_cluster("h100:8") == parse_cluster("h100:8")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="not UTF-8"):
        load_cluster(path)
    path.write_text("a" * 300_000, encoding="utf-8")
    with pytest.raises(ClusterError, match="too large"):
        load_cluster(path)
    with pytest.raises(ClusterError, match="no cluster file"):
        load_cluster(tmp_path)
    with pytest.raises(ClusterError, match="cluster file"):
        load_cluster("nul\x00byte.yaml")


@pytest.mark.parametrize("name", cluster_names())
def test_every_catalog_cluster_round_trips(name: str) -> None:
    require_row(name)
    cluster = parse_cluster(f"{name}:16")
    assert load_cluster(dump_cluster(cluster)) == cluster


def test_changed_clusters_round_trip() -> None:
    for cluster in (
        load_cluster(MIXED),
        reserve_memory(
            scale_network(parse_cluster("gb200:72+mi300x:16"), factor=0.9), reserve_bytes=10**9
        ),
    ):
        assert load_cluster(dump_cluster(cluster)) == cluster


def test_two_accelerators_of_one_name_cannot_be_written() -> None:
    cluster = parse_cluster("h100:8")
    other = reserve_memory(cluster, reserve_bytes=1)
    third = reserve_memory(cluster, reserve_bytes=2)
    with pytest.raises(ClusterError, match="two different accelerators"):
        dump_cluster(replace(cluster, groups=other.groups + third.groups))


def _near(left: Cluster, right: Cluster) -> bool:
    a, b = left.node, right.node
    pairs = (
        (a.nic.bandwidth, b.nic.bandwidth),
        (a.nic.latency_s, b.nic.latency_s),
        (a.accelerator.memory_bytes, b.accelerator.memory_bytes),
    )
    return all(math.isclose(x, y, rel_tol=1e-15) for x, y in pairs)


@examples(25, 200)
@given(
    bandwidth=st.floats(min_value=1e6, max_value=1e15),
    latency=st.floats(min_value=1e-9, max_value=1.0),
    memory=st.integers(min_value=1, max_value=2**45),
)
def test_any_number_round_trips_to_the_last_bit_but_one(
    bandwidth: float, latency: float, memory: int
) -> None:
    cluster = parse_cluster("h100:8")
    kind = cluster.node
    nic = replace(kind.nic, bandwidth=bandwidth, latency_s=latency)
    changed = replace(kind, nic=nic, accelerator=replace(kind.accelerator, memory_bytes=memory))
    cluster = replace(cluster, groups=(replace(cluster.groups[0], kind=changed),))
    assert _near(load_cluster(dump_cluster(cluster)), cluster)


def _loads_or_is_refused(text: str) -> None:
    try:
        cluster = load_cluster(text)
    except ClusterError:
        return
    assert cluster.tiers()[-1].num_devices == cluster.num_devices
    assert _near(load_cluster(dump_cluster(cluster)), cluster)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from(["h100-sxm", "aws-p5.48xlarge", "bf16"]),
)
KEYS = st.sampled_from(
    [
        *(
            "name",
            "nodes",
            "accelerators",
            "fabric",
            "accelerator",
            "instance",
            "count",
            "devices_per_node",
            "island_devices",
            "scale_up",
        ),
        *(
            "nics",
            "nic",
            "host",
            "bandwidth_gbps",
            "bandwidth_gigabytes_per_s",
            "latency_us",
            "efficiency",
            "like",
            "memory_gib",
            "gemm",
        ),
        *(
            "peak_tflops",
            "bf16",
            "attention",
            "forward",
            "origin",
            "evidence",
            "devices",
            "oversubscription",
            "pcie",
            "sustained",
        ),
    ]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.one_of(KEYS, st.text(max_size=4)), inner, max_size=4)
    ),
    max_leaves=20,
)
NODES = st.fixed_dictionaries(
    {"accelerator": st.just("h100"), "count": st.integers(-1, 9)},
    optional={"nic": VALUES, "host": VALUES, "nics": LEAVES},
)
FILES = st.one_of(
    st.dictionaries(KEYS, VALUES, max_size=5),
    st.fixed_dictionaries(
        {"nodes": st.lists(NODES, max_size=3)}, optional={"fabric": VALUES, "accelerators": VALUES}
    ),
)


@examples(30, 750)
@given(FILES)
def test_fuzz_structures(value: object) -> None:
    _loads_or_is_refused(yaml.safe_dump(value) + "\n#")


@examples(40, 1000)
@given(st.one_of(st.text(), st.text(alphabet="{}[]:,-&*!|>'\"%@`#? \n\tab01._~<=", max_size=60)))
@example("2001-99-99")
@example("0b_: 0x")
@example("!!binary 'é'")
@example("!!python/object/apply:os.system [ls]")
@example("? {a: b}\n: c")
@example("9" * 5000)
@example("<<: {a: 1}\nnodes: []")
@example("- &a [*a]")
@example("%YAML 9.9\n---\na")
@example("--- a\n--- b")
@example("\ud800")
def test_fuzz_text(text: str) -> None:
    _loads_or_is_refused(text + "\n#")
    _loads_or_is_refused("nodes: " + text)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nnodes: *c\n",
        "[" * 5000 + "\n",
        "- " * 3000 + "\n",
        "{a: " * 2000 + "\n",
        "\n".join(f"k{i}: 1" for i in range(30_000)),
        "x" * 300_000 + "\n",
        "nodes: [{accelerator: h100, count: 4194304}]",
        "nodes: [{accelerator: h100, count: 1, nics: " + "9" * 6000 + "}]",
        "nodes: [{accelerator: h100, count: 1, nic: {bandwidth_gbps: 1.0e+308}}]",
        "nodes: [{accelerator: h100, count: true}]",
        (
            "accelerators: {my-chip: {like: h100}, my_chip: {like: a100}}\nnodes: [{accelerator:"
            " mychip, count: 1}]"
        ),
    ],
    ids=range(11),
)
def test_hostile_files_are_refused(text: str) -> None:
    with pytest.raises(ClusterError):
        load_cluster(text)


def test_the_package_stays_light() -> None:
    code = (
        "import sys, shardwright.hardware.cluster_expression;"
        "import shardwright.hardware.profile.measured_rates;"
        "print(sorted({'numpy', 'scipy', 'pydantic', 'yaml', 'numba'} & set(sys.modules)))"
    )
    source = Path(__file__).parents[2] / "src"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(source)},
    )
    assert result.stdout.strip() == "[]"
