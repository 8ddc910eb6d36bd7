"""From files to a cluster: what is found is written, what is not is the catalog's, and
contradictions name both facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.cluster_expression import parse_cluster, parse_links
from shardwright.hardware.cluster_network_levels import network_units
from shardwright.hardware.files.read_cluster_file import load_cluster
from shardwright.hardware.inventories.cluster_from_inventories import (
    ClusterRead,
    cluster_from_inventories,
)
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.inventories.node_facts import BusRate, Inventory
from tests.hardware.inventory_files import (
    HGX_H100,
    gfd,
    kubernetes_list,
    kubernetes_node,
    nccl_card,
    nccl_gpu,
    nccl_xml,
    slurm_node,
    topo_matrix,
)

EACH = [[n] for n in range(8)]
NV18 = topo_matrix(8, lambda a, b: "NV18", cards=EACH)
PAIRS = topo_matrix(4, lambda a, b: "NV12" if a // 2 == b // 2 else "SYS", cards=[[0, 1]])
NO_LINKS = topo_matrix(8, lambda a, b: "NODE", cards=[[], []])


def read(
    *texts: str, count: int = 0, links: str = "", rates: tuple[BusRate, ...] = (), **given: str
) -> ClusterRead:
    """The cluster of some texts; `accelerator` is that of all."""
    named = {"" if word == "accelerator" else word: name for word, name in given.items()}
    files = [read_inventory(text, name=f"f{number}") for number, text in enumerate(texts)]
    files += [Inventory(file="log", rates=rates)] if rates else []
    found = cluster_from_inventories(
        files, given=named, count=count, links=tuple(parse_links([links] if links else []))
    )
    assert load_cluster(found.text) == found.cluster
    return found


def words_of(found: ClusterRead) -> set[str]:
    """What was found or assumed, and the words of it."""
    everything = [*found.found, *(one for kind in found.kinds for one in kind.found)]
    guessed = [*found.assumed, *(one for kind in found.kinds for one in kind.assumed)]
    return {f"found {one.what}: {one.words}" for one in everything} | {
        f"assumed {one.what}: {one.value}" for one in guessed
    }


def slurm(count: int, gres: str, *, name: str = "gpu", memory: int = 2_063_937) -> str:
    return "".join(slurm_node(f"{name}{n:02d}", gres=gres, memory=memory + n) for n in range(count))


def test_what_is_as_the_catalog_has_it_is_the_catalogs_node() -> None:
    """Slurm's nodes and one node's matrix: nothing but the memory of the hosts is another."""
    found = read(slurm(16, "gpu:h100:8"), NV18)
    kind, usual = found.cluster.node, parse_cluster("h100-sxm:128").node
    assert (found.cluster.num_devices, kind.host.memory_bytes) == (
        128,
        pytest.approx(2_063_937 * 2**20, rel=1e-6),
    )
    assert replace(kind, host=usual.host) == usual
    assert {
        "found scale-up islands of a node: 1 of 8 devices",
        "found NVLinks of a device: 18 links",
    } <= words_of(found)
    assert {
        "found nodes: 16",
        "assumed accelerator: h100-sxm",
        "assumed rate of a network card: 400 Gb/s",
    } <= words_of(found)


def test_a_dump_alone_says_what_a_node_is() -> None:
    found = read(HGX_H100, count=4)
    assert found.cluster.groups == parse_cluster("h100-sxm:32").groups
    assert not any(word.startswith("assumed accelerator") for word in words_of(found))


def test_narrower_cards_and_slots_are_written() -> None:
    groups = [
        nccl_gpu(
            n,
            links='<nvlink target="x" count="12" tclass="0x068000"/>',
            sm=80,
            device="0x20b2",
            speed="8.0 GT/s",
        )
        for n in range(8)
    ]
    kind = read(
        nccl_xml([f"{gpu}{nccl_card(n, speed=100000)}" for n, gpu in enumerate(groups[:4])])
    ).cluster.node
    assert (
        kind.num_devices,
        kind.island,
        kind.nics,
        kind.nic.bandwidth,
        kind.host.pcie.bandwidth,
    ) == (4, 4, 4, 12.5e9, 16e9)
    assert (kind.scale_up, kind.nic.efficiency) == (
        default_node(accelerator("a100-sxm-80gb")).scale_up,
        0.8,
    )
    assert kind.nic.origin.reference.startswith("bandwidth from f0:4 <net>")


def test_pairs_with_bridges() -> None:
    kind = read(PAIRS, accelerator="a100-pcie-80gb").cluster.node
    assert (
        kind.num_devices,
        kind.island,
        kind.scale_up.bandwidth,
        kind.scale_up.efficiency,
        kind.nics,
    ) == (4, 2, 300e9, 0.71, 1)


def test_devices_without_nvlink_reach_each_other_over_pcie() -> None:
    usual = read(NO_LINKS, accelerator="l40s").cluster.node
    assert (usual.island, usual.scale_up) == (8, default_node(accelerator("l40s")).scale_up)
    bare = read(NO_LINKS, accelerator="h100-nvl").cluster.node
    assert (bare.island, bare.scale_up.bandwidth, bare.scale_up.efficiency) == (8, 64e9, 0.3)


def test_a_mesh_has_the_links_of_a_switch_and_does_not_reduce() -> None:
    kind = read(topo_matrix(4, lambda a, b: "NV6"), accelerator="h100-sxm").cluster.node
    assert (kind.num_devices, kind.island, kind.scale_up.bandwidth, kind.in_network_reduction) == (
        4,
        4,
        450e9,
        False,
    )


def test_more_cards_than_the_usual_node_has_carry_no_more_together() -> None:
    kind = read(
        topo_matrix(8, lambda a, b: "NV18", cards=[[n // 4] for n in range(32)]),
        accelerator="h100-sxm",
    ).cluster.node
    assert (kind.nics, kind.nic.bandwidth) == (32, 12.5e9)


def rack(number: int, nodes: int = 18) -> list[dict[str, Any]]:
    labels = gfd("NVIDIA-GB200", memory=189471, clique=f"u-{number}.0") | {
        "fabric.topograph.run/tier-0": f"leaf{number // 2}"
    }
    return [kubernetes_node(f"r{number}n{n:02d}", labels=labels, gpus=4) for n in range(nodes)]


def test_cliques_are_scale_up_domains_and_stand_side_by_side() -> None:
    mixed = [node for pair in zip(rack(0), rack(1), strict=True) for node in pair]
    found = read(kubernetes_list([*mixed, *rack(2), *rack(3)]))
    (group,) = found.cluster.groups
    assert (
        group.count,
        group.kind.island,
        [tier.num_devices for tier in found.cluster.fabric],
    ) == (72, 72, [144, 0])
    assert network_units(found.cluster)[1].size == (144,)
    assert {
        "found nodes of a scale-up domain: 18",
        "found switch tier: leaf: 2 of 144 devices",
        "assumed spine: joins all",
    } <= words_of(found)


def test_a_rack_that_lacks_a_node_is_a_kind_of_its_own() -> None:
    found = read(kubernetes_list([*rack(0), *rack(1, nodes=16)]))
    assert [(group.count, group.kind.island) for group in found.cluster.groups] == [
        (18, 72),
        (16, 64),
    ]


def test_two_zones_need_a_link() -> None:
    nodes = [
        kubernetes_node(f"{zone}{n}", labels=gfd(product) | {"topology.kubernetes.io/zone": zone})
        for n in range(2)
        for zone, product in (
            ("us-east-1a", "NVIDIA-H100-80GB-HBM3"),
            ("us-east-1b", "NVIDIA-A100-SXM4-80GB"),
        )
    ]
    with pytest.raises(
        ClusterError, match="zones us-east-1a, us-east-1b, and no file says what joins these"
    ):
        read(kubernetes_list(nodes))
    found = read(kubernetes_list(nodes), links="us-east-1a~us-east-1b=25gbps/1ms/0.01usd").cluster
    assert [(group.zone, group.count, group.kind.accelerator.name) for group in found.groups] == [
        ("us-east-1a", 2, "h100-sxm"),
        ("us-east-1b", 2, "a100-sxm-80gb"),
    ]
    assert [
        (link.source, link.link.bandwidth, link.link.latency_s, link.egress) for link in found.links
    ] == [
        ("us-east-1a", 25e9 / 8, 1e-3, 0.01),
        ("us-east-1b", 25e9 / 8, 1e-3, 0.01),
    ]


TREE = """\
SwitchName=leaf1 Nodes=gpu[00-03]
SwitchName=leaf2 Nodes=old[00-03]
SwitchName=leaf3 Nodes=gpu[04-07]
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=spine2 Switches=leaf3
SwitchName=core Switches=spine[1-2]
"""


def test_mixed_nodes_in_the_order_of_their_switches() -> None:
    """Matrices go to the nodes whose accelerators have so many links."""
    nodes = slurm(8, "gpu:nvidia_h100_80gb_hbm3:8") + slurm(
        4, "gpu:a100:8", name="old", memory=1_000_000
    )
    found = read(nodes, TREE, NV18, topo_matrix(8, lambda a, b: "NV12", cards=EACH[:4]))
    assert [(g.count, g.kind.accelerator.name, g.kind.nics) for g in found.cluster.groups] == [
        (4, "h100-sxm", 8),
        (4, "a100-sxm-80gb", 4),
        (4, "h100-sxm", 8),
    ]
    assert [(tier.name, tier.num_devices) for tier in found.cluster.fabric] == [
        ("leaf", 32),
        ("core", 0),
    ]
    assert "found switch tier: leaf: 3 of 32 devices" in words_of(found)
    login = read(nodes, TREE.replace("gpu[00-03]", "gpu[00-03],login1"), NV18)
    assert "found nodes: 1 that no list of nodes with GPUs has, left out" in words_of(login)


def test_units_of_a_tier_that_differ_are_as_most_are() -> None:
    tree = (
        "SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-8]\nSwitchName=c"
        " Nodes=n[9-10]\nSwitchName=top Switches=a,b,c\n"
    )
    found = read(tree, accelerator="h100-sxm")
    assert [(tier.name, tier.num_devices) for tier in found.cluster.fabric] == [
        ("leaf", 32),
        ("spine", 0),
    ]
    assert "assumed leaf: 32 devices" in words_of(found)


@pytest.mark.parametrize(
    ("name", "islands", "tiers"), [("gb200", 72, []), ("h100", 8, ["block", "network"])]
)
def test_blocks_are_racks_or_places(name: str, islands: int, tiers: list[str]) -> None:
    found = read(
        "BlockName=b1 Nodes=n[1-18]\nBlockName=b2 Nodes=n[19-36]\n", accelerator=name
    ).cluster
    assert (found.node.island, [tier.name for tier in found.fabric]) == (islands, tiers)


def test_an_instance_is_its_own_node() -> None:
    labels = {"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}
    nodes = kubernetes_list([kubernetes_node(f"n{n}", labels=labels) for n in range(2)])
    assert read(nodes).cluster.node.name == "azure-nd96isr-h100-v5"
    unknown = kubernetes_list(
        [
            kubernetes_node(
                "n", labels=gfd("NVIDIA-H200") | {"node.kubernetes.io/instance-type": "k3s"}
            )
        ]
    )
    found = read(unknown)
    assert (
        found.cluster.node.accelerator.name,
        "assumed node: h200-sxm-x8" in words_of(found),
    ) == ("h200-sxm", True)


def test_somebody_says_what_a_word_means() -> None:
    nodes = slurm(2, "gpu:h100:8") + slurm(2, "gpu:shiny:8", name="new")
    with pytest.raises(ClusterError, match=r"f0:.*: unknown accelerator 'shiny'"):
        read(nodes)
    assert [g.kind.accelerator.name for g in read(nodes, shiny="mi300x").cluster.groups] == [
        "h100-sxm",
        "mi300x",
    ]
    some = slurm(2, "gpu:a100:8") + slurm(2, "gpu:8", name="new")
    assert [g.kind.accelerator.name for g in read(some, accelerator="h200").cluster.groups] == [
        "a100-sxm-80gb",
        "h200-sxm",
    ]
    assert (
        read(slurm(1, "gpu:h100:8"), accelerator="h100-pcie").cluster.node.accelerator.name
        == "h100-pcie"
    )


def test_a_size_of_memory_tells_two_devices_of_one_name_apart() -> None:
    nodes = kubernetes_list([kubernetes_node("n", labels=gfd("A100", memory=40960))])
    assert read(nodes).cluster.node.accelerator.name == "a100-sxm-40gb"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (NV18, "h100-sxm"),
        (topo_matrix(2, lambda a, b: "NV12"), "h100-pcie"),
        (topo_matrix(2, lambda a, b: "PHB"), "h100-pcie"),
        (topo_matrix(1, lambda a, b: "X"), "h100-sxm"),
    ],
)
def test_nvlinks_tell_two_devices_of_one_name_apart(text: str, name: str) -> None:
    devices = text.split("\n")[0].count("GPU") - 1
    assert read(slurm(1, f"gpu:h100:{devices}"), text).cluster.node.accelerator.name == name


def test_measured_rates_are_efficiencies() -> None:
    inside = BusRate(collective="all_gather", num_devices=8, rate=360e9, where="one.log")
    beyond = BusRate(collective="all_reduce", num_devices=16, rate=45e9, where="two.log")
    other = BusRate(collective="all_to_all", num_devices=16, rate=5e9, where="three.log")
    found = read(
        HGX_H100, count=2, rates=(inside, replace(beyond, collective="reduce_scatter"), other)
    )
    kind = found.cluster.node
    assert (kind.scale_up.efficiency, kind.nic.efficiency, kind.scale_up.bandwidth) == (
        0.8,
        0.9,
        450e9,
    )
    assert (
        kind.nic.origin.reference
        == "45 GB/s in two.log, reduce_scatter over 16 devices, of 50 GB/s"
    )
    assert "assumed measured bus bandwidth: not used" in words_of(found)
    with pytest.raises(ClusterError, match=r"measured bus bandwidth is 450 GB/s .*, and 480 GB/s"):
        read(HGX_H100, rates=(replace(inside, rate=480e9),))


H100 = slurm(2, "gpu:h100:8")
CONTRADICTIONS: Mapping[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "accelerators": (
        (slurm(2, "gpu:a100:8"), HGX_H100),
        {},
        r"accelerator is a100 \(f0:\d+\), and pci 10de:2330 \(f1:4 <gpu>\)",
    ),
    "numbers of devices": (
        (slurm(2, "gpu:h100:4"), NV18),
        {},
        r"devices of a node is 4 \(f0:\d+\), and 8 \(f1:1\)",
    ),
    "links": (
        (HGX_H100, topo_matrix(8, lambda a, b: "NV12", cards=EACH)),
        {},
        r"NVLinks of a device is 18 links .*, and 12 links",
    ),
    "more links than a device has": (
        (NV18,),
        {"accelerator": "a100-sxm-80gb"},
        r"at most 12 links \(a100-sxm-80gb\), and 18 links \(f0:2\)",
    ),
    "links of a device without": (
        (NV18,),
        {"accelerator": "l40s"},
        r"0 links \(l40s\), and 18 links",
    ),
    "what is said and what is found": (
        (HGX_H100,),
        {"accelerator": "h200-sxm"},
        r"pci 10de:2330 .*, and h200-sxm \(--accelerator\)",
    ),
    "numbers of nodes": ((H100,), {"count": 3}, r"nodes is 2 \(f0:1 and on\), and 3 \(--nodes\)"),
    "memories": (
        (
            kubernetes_list(
                [kubernetes_node("n", labels=gfd("NVIDIA-H100-80GB-HBM3", memory=40960))]
            ),
        ),
        {},
        "memory of a device is 79.11 GiB",
    ),
    "an instance and a product": (
        (
            kubernetes_list(
                [
                    kubernetes_node(
                        "n",
                        labels=gfd("NVIDIA-L40S")
                        | {"node.kubernetes.io/instance-type": "p5.48xlarge"},
                    )
                ]
            ),
        ),
        {},
        "accelerator is NVIDIA-L40S .*, and h100-sxm of aws-p5.48xlarge",
    ),
    "generations": (
        (nccl_xml([nccl_gpu(0, links="", sm=80, device="0x2330")]),),
        {},
        r"compute capability is 9.x \(h100-sxm\), and 80 \(f0:4 <gpu>\)",
    ),
    "names of nodes": (
        (H100, kubernetes_list([kubernetes_node("n", labels=gfd("NVIDIA-H100-PCIe"))])),
        {},
        "f0 and f1 have no node in common",
    ),
    "a node below no switch": (
        (H100, "SwitchName=a Nodes=gpu00\n"),
        {},
        "node 'gpu01' .* is below none of the switches of f1:1",
    ),
    "two trees": (
        ("SwitchName=a Nodes=n1\n", "SwitchName=b Nodes=n1\n"),
        {"accelerator": "h100"},
        "f0 and f1 are both lists of switches",
    ),
    "a link is down": (
        (topo_matrix(3, lambda a, b: "NV18" if a + b == 1 else "SYS"),),
        {"accelerator": "h100-sxm"},
        "f0:1: scale-up islands of 2, 1 devices in a node",
    ),
    "nobody says": ((NV18,), {}, "f0:1: which accelerators the nodes have is not said"),
    "unknown": (
        (NV18,),
        {"accelerator": "h100-sxn"},
        "--accelerator 'h100-sxn' is no accelerator or instance",
    ),
    "unknown number": (
        (HGX_H100.replace("0x2330", "0x307f"),),
        {},
        "f0:4 <gpu>: unknown accelerator '10de:307f'",
    ),
    "parts": (
        (slurm(1, "gpu:nvidia_a100_1g.10gb:7"),),
        {},
        r"'nvidia_a100_1g.10gb' is a part of a device",
    ),
    "switches of some": (
        (
            kubernetes_list(
                [
                    *rack(0),
                    *(
                        kubernetes_node(f"x{n}", labels=gfd("NVIDIA-GB200"), gpus=4)
                        for n in range(2)
                    ),
                ]
            ),
        ),
        {},
        r"no switch is above node 'x0' \(f0, node x0\), and 'leaf0' is above 'r0n00'",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_name_both_facts(name: str) -> None:
    texts, more, message = CONTRADICTIONS[name]
    with pytest.raises(ClusterError, match=message):
        read(*texts, **more)
