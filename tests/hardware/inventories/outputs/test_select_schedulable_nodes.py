"""Nodes that no job can be placed on are left out and listed, by Slurm's states and Kubernetes'
conditions."""

from __future__ import annotations

import pytest

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.cluster_from_inventories import cluster_from_inventories
from shardwright.hardware.inventories.detect_format_and_read_inventory import read_inventory
from shardwright.hardware.inventories.outputs.select_schedulable_nodes import (
    kubernetes_state,
    slurm_state,
)
from tests.hardware.inventories.test_cluster_from_inventories import read, words_of
from tests.hardware.inventory_files import (
    SINFO,
    as_yaml,
    gfd,
    gpu_list,
    kubernetes_list,
    kubernetes_node,
    slurm_node,
)


@pytest.mark.parametrize(
    ("state", "away", "remark"),
    [
        ("IDLE", "", ""),
        ("MIXED+PLANNED", "", ""),
        ("idle~", "", "powered off"),
        ("IDLE+CLOUD+POWERED_DOWN", "", "cloud and powered_down"),
        ("ALLOCATED+RESERVED", "", "reserved"),
        ("DOWN*", "down and does not answer", ""),
        ("IDLE+DRAIN", "drain", ""),
        ("drng", "drng", ""),
        ("maint", "maint", ""),
        ("unk", "unk", ""),
        ("alloc*", "does not answer", ""),
        ("SOMETHING_NEW", "something_new", ""),
        ("", "", ""),
    ],
)
def test_states_of_slurm(state: str, away: str, remark: str) -> None:
    assert slurm_state(state) == (away, remark)


def ready(status: str) -> dict[str, object]:
    return {
        "conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": status},
        ]
    }


@pytest.mark.parametrize(
    ("item", "away", "remark"),
    [
        ({"status": ready("True")}, "", ""),
        ({"status": ready("False")}, "not ready", ""),
        ({"status": ready("Unknown")}, "readiness unknown", ""),
        (
            {
                "spec": {
                    "unschedulable": True,
                    "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
                }
            },
            "cordoned",
            "",
        ),
        (
            {
                "spec": {
                    "taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
                }
            },
            "unreachable",
            "",
        ),
        ({"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}, "", ""),
        (
            {
                "spec": {
                    "taints": [
                        {"key": "team", "effect": "NoSchedule"},
                        {"key": "slow", "effect": "PreferNoSchedule"},
                    ]
                }
            },
            "",
            "tainted team",
        ),
        ({"spec": {"taints": "odd"}, "status": []}, "", ""),
    ],
)
def test_states_of_kubernetes(item: dict[str, object], away: str, remark: str) -> None:
    assert kubernetes_state(item) == (away, remark)


def three(**of_the_last: object) -> list[dict[str, object]]:
    nodes = [kubernetes_node(f"n{n}", labels=gfd("NVIDIA-H100-80GB-HBM3")) for n in range(3)]
    nodes[2]["status"] |= of_the_last
    return nodes


@pytest.mark.parametrize("form", [kubernetes_list, as_yaml])
def test_a_node_that_is_not_ready_does_not_count(form: object) -> None:
    assert callable(form)
    found = read(form(three(**ready("False"))))
    assert found.cluster.num_devices == 16
    assert "found nodes: 1 left out: n2 (not ready)" in words_of(found)
    again = cluster_from_inventories(
        [read_inventory(form(three(**ready("False"))), name="f")], given={}, all_nodes=True
    )
    assert again.cluster.num_devices == 24
    assert "found nodes: 1 counted all the same: n2 (not ready)" in words_of(again)


def test_devices_that_are_not_handed_out_are_listed() -> None:
    found = read(kubernetes_list(three(allocatable={"nvidia.com/gpu": "7"})))
    assert found.cluster.num_devices == 24
    assert "found nodes: 1 counted: n2 (7 of 8 nvidia.com/gpu can be allocated)" in words_of(found)


def test_nodes_that_are_down_do_not_count() -> None:
    states = ("IDLE", "DOWN*", "IDLE+DRAIN", "MIXED+RESERVED")
    nodes = [
        slurm_node(f"g{n}", gres="gpu:h100:8").replace("State=IDLE", f"State={state}")
        for n, state in enumerate(states)
    ]
    found = read("".join(nodes))
    assert found.cluster.num_devices == 16
    words = words_of(found)
    assert "found nodes: 2 left out: g1 (down and does not answer); g2 (drain)" in words
    assert "found nodes: 1 counted: g3 (reserved)" in words
    with pytest.raises(
        ClusterError, match=r"no job can be placed on any of 1 nodes: g1 \(down"
    ) as caught:
        read(nodes[1])
    assert "--all-nodes" in caught.value.hint


def test_unknown_is_a_state_where_a_scheduler_says_it_and_none_in_slurm_conf() -> None:
    with pytest.raises(ClusterError, match="no job can be placed"):
        read(slurm_node("g", gres="gpu:h100:8").replace("State=IDLE", "State=UNKNOWN"))
    assert read("NodeName=g[1-2] Gres=gpu:h100:8 State=UNKNOWN\n").cluster.num_devices == 16


def test_a_table_of_sinfo() -> None:
    found = read(SINFO)
    assert found.cluster.num_devices == 8
    assert {
        "found nodes: 1 left out: gpu02 (drain and does not answer)",
        "found nodes: 1 without GPUs, left out",
    } <= words_of(found)
    by_partition = (
        "PARTITION AVAIL NODES STATE NODELIST GRES\ngpu* up 2 idle g[1-2] gpu:a100:4\nlow up 2 idle"
        " g[1-2] gpu:a100:4\n"
    )
    assert read(by_partition).cluster.num_devices == 8


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ngpu* up infinite 2 idle g[1-2]\n",
            "does not say which nodes have GPUs",
            "%G",
        ),
        ("NODELIST GRES STATE\ng1 gpu:a100:4\n", "2 words for 3 columns", "sinfo"),
        ("NODELIST GRES\ng1 gpu:a100:4\ng1 gpu:a100:8\n", "'g1' is another", "every partition"),
        ("NODELIST GRES\ng1 (null)\n", "none of 1 nodes has a GPU", "gpu:h100:8"),
        (
            gpu_list(2, "NVIDIA H100 80GB HBM3")
            + gpu_list(1, "NVIDIA L40S").replace("GPU 0", "GPU 7"),
            "'NVIDIA L40S' beside",
            "one model",
        ),
        (
            gpu_list(1, "NVIDIA H100 80GB HBM3") + "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n",
            "a part of a device",
            "whole devices",
        ),
        (
            "NAME   STATUS   ROLES   AGE   VERSION\nn1   NotReady   <none>   1d   v1.31.0\n",
            "output of kubectl get nodes",
            "-o json",
        ),
        (
            "| NVIDIA-SMI 550.54   Driver Version: 550.54 |\n",
            "output of nvidia-smi",
            "nvidia-smi topo -m",
        ),
        (
            "========= ROCm System Management Interface =========\n",
            "output of rocm-smi",
            "rocm-smi --showtopo",
        ),
        ("Name:    n1\nRoles:   <none>\n", "output of kubectl describe nodes", "-o json"),
        ("apiVersion: v1\nitems: &a []\nx: *a\n", "a YAML alias", "kubectl"),
        ("apiVersion: v1\nitems: [\n", "no YAML", "kubectl"),
        ("kind: Pod\nmetadata: {name: a}\n", "'Pod' is no node", "kubectl"),
    ],
)
def test_what_says_too_little_is_refused_with_what_to_run(
    text: str, message: str, hint: str
) -> None:
    with pytest.raises(ClusterError, match=message) as caught:
        read(text)
    assert hint in caught.value.hint


def test_a_list_of_devices_says_what_they_are_and_how_many() -> None:
    found = read(gpu_list(4, "NVIDIA A100-SXM4-80GB"))
    assert (found.cluster.node.accelerator.name, found.cluster.num_devices) == ("a100-sxm-80gb", 4)
