"""Kubernetes' nodes by their labels."""

from __future__ import annotations

import json

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.inventories.node_facts import FactKind
from shardwright.units import KIB, MIB
from tests.hardware.inventory_files import gfd, kubernetes_list, kubernetes_node

PLACE = {
    "node.kubernetes.io/instance-type": "p5.48xlarge",
    "topology.kubernetes.io/zone": "us-east-1a",
    "fabric.topograph.run/tier-0": "leaf-1",
    "fabric.topograph.run/tier-1": "spine-1",
    "accelerator.topograph.run/domain": "d1",
}


def test_labels_are_facts() -> None:
    labels = gfd("NVIDIA-H100-80GB-HBM3", memory=81559, clique="u.1") | PLACE
    text = kubernetes_list(
        [kubernetes_node("n1", labels=labels), kubernetes_node("cpu1", labels={}, gpus=0)]
    )
    found = read_inventory(text, name="nodes.json")
    (node,) = found.nodes
    assert {fact.what: fact.value for fact in node.facts} == {
        FactKind.DEVICES: 8,
        FactKind.PRODUCT: "NVIDIA-H100-80GB-HBM3",
        FactKind.DEVICE_MEMORY: 81559 * MIB,
        FactKind.HOST_MEMORY: 2113481272 * KIB,
        FactKind.INSTANCE: "p5.48xlarge",
        FactKind.ZONE: "us-east-1a",
        FactKind.DOMAIN: "u.1",
    }
    assert node.above == ("leaf-1", "spine-1")
    assert [note.value for note in found.notes] == ["1 without GPUs, left out"]
    where = node.fact(FactKind.DOMAIN)
    assert where is not None
    assert where.where == "nodes.json, node n1, nvidia.com/gpu.clique"


@pytest.mark.parametrize(
    ("labels", "gpus", "resource", "devices"),
    [
        (
            gfd("NVIDIA-A10G-SHARED", **{"sharing-strategy": "time-slicing"})
            | {"nvidia.com/gpu.replicas": "4"},
            16,
            "nvidia.com/gpu",
            4,
        ),
        (gfd("NVIDIA-L40S", count="8"), 0, "", 8),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, 8, "amd.com/gpu", 8),
    ],
)
def test_devices(labels: dict[str, str], gpus: int, resource: str, devices: int) -> None:
    (node,) = read_inventory(
        json.dumps(kubernetes_node("n", labels=labels, gpus=gpus, resource=resource)), name="t"
    ).nodes
    fact = node.fact(FactKind.DEVICES)
    assert fact is not None
    assert fact.value == devices


def mig() -> str:
    node = kubernetes_node("n", labels=gfd("NVIDIA-A100-SXM4-80GB"))
    node["status"] = {"capacity": {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpu": "0"}}
    return kubernetes_list([node])


def odd(**capacity: object) -> str:
    return kubernetes_list(
        [kubernetes_node("n", labels=gfd("NVIDIA-L40S"), status={"capacity": capacity})]
    )


BAD = {
    "parts": (mig(), "nvidia.com/mig-1g.10gb are parts of devices"),
    "of pods": (json.dumps({"kind": "List", "items": [{"kind": "Pod"}]}), "'Pod' is no node"),
    "no GPU": (
        kubernetes_list([kubernetes_node("n", labels={}, gpus=0)]),
        "none of 1 nodes has a GPU",
    ),
    "a list of numbers": ("[1, 2]", "no list of nodes"),
    "null among nodes": (
        kubernetes_list([None, kubernetes_node("n", labels={})]),
        "no list of nodes",
    ),  # type: ignore[list-item]
    "nothing": ('{"items": []}', "no list of nodes"),
    "no name": ('{"items": [{"kind": "Node", "metadata": {}}]}', "item 0 has no name"),
    "names twice": (
        kubernetes_list([kubernetes_node("n", labels=gfd("x"))] * 2),
        "item 1 has no name, or that of another",
    ),
    "a negative number": (odd(**{"nvidia.com/gpu": "-8"}), "nvidia.com/gpu is '-8'"),
    "too many": (odd(**{"nvidia.com/gpu": "4096"}), "nvidia.com/gpu is '4096'"),
    "memory": (odd(**{"nvidia.com/gpu": "8", "memory": "NaN"}), "'NaN' is no size of memory"),
    "huge memory": (
        odd(**{"nvidia.com/gpu": "8", "memory": "999999999999999999Ti"}),
        "is no size of memory",
    ),
    "infinite": ('{"items": [{"kind": "Node", "x": NaN}]}', "no JSON"),
    "cut": (kubernetes_list([kubernetes_node("n", labels={})])[:-9], "t:[0-9]+: no JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_are_no_nodes_is_refused(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(ClusterError, match=message):
        read_inventory(text, name="t")
