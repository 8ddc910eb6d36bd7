"""Launcher for Kubeflow Trainer: a TrainJob on the runtime ``torch-distributed``.

The runtime numbers the nodes and tells torchrun in variables (``PET_..``).

Source: kubeflow/trainer, trainer.kubeflow.org/v1alpha1, at 8c0f505 (Kubeflow Trainer 2.3).
"""

from __future__ import annotations

from typing import Final

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import ExportFile, title
from shardwright.frameworks.export.launchers import shared_kubernetes_pod_parts as pods
from shardwright.frameworks.export.launchers.launcher_type_and_shared_helpers import (
    Launcher,
    PlacedExport,
    job_name,
    node_runs,
)
from shardwright.frameworks.export.start_script import GPUS, NODES, node_variables
from shardwright.frameworks.export.yaml_text import yaml_text

FILE: Final = "trainjob.yaml"
GROUP: Final = "trainer.kubeflow.org"
VERSION: Final = "v1alpha1"
RUNTIME: Final = "torch-distributed"
CONTAINER: Final = "node"
"""Name of the runtime's job and of its container."""


def _reason_against_trainjob(launch: PlacedExport) -> str:
    """Reason why a TrainJob cannot run it (unequal nodes, or as for pods); empty if it can."""
    groups = list(node_runs(launch.placement.nodes, lambda node: (node.kind, node.ranks)))
    if len(groups) > 1:
        node_counts = ", then ".join(
            f"{len(nodes)} of {nodes[0].ranks} {nodes[0].kind.accelerator.name}"
            for _, nodes, _ in groups[:4]
        )
        return f"its nodes are all alike, and the plan's are {node_counts}"
    return pods.reason_against_pods(launch)


def _manifest_file(launch: PlacedExport) -> ExportFile:
    """TrainJob manifest file that starts an export on its nodes."""
    nodes = launch.placement.nodes
    pod = {
        "volumes": pods.volumes(launch),
        "containers": [{"name": CONTAINER, "volumeMounts": pods.volume_mounts()}],
    }
    job = {"name": CONTAINER, "template": {"spec": {"template": {"spec": pod}}}}
    document = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {"name": job_name(launch.export)},
        "spec": {
            "runtimeRef": {
                "apiGroup": GROUP,
                "kind": "ClusterTrainingRuntime",
                "name": RUNTIME,
            },
            "trainer": {
                "image": launch.image or pods.IMAGE,
                "command": ["bash", "-euc", _script(launch), launch.start.name],
                "env": pods.environment_entries({NODES: len(nodes), GPUS: nodes[0].ranks}),
                "numNodes": len(nodes),
                "numProcPerNode": nodes[0].ranks,
                "resourcesPerNode": {"limits": pods.device_limits(nodes[0])},
            },
            "runtimePatches": [
                {
                    "manager": "shardwright.dev/export",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
                }
            ],
        },
    }
    notes = (
        f"{title(launch.export)}. Made by Shardwright.",
        (
            f"kubectl apply -f {FILE}: a pod a node of the runtime {RUNTIME}, whose PET_"
            " variables number them."
        ),
        pods.NOTE,
    )
    return ExportFile(name=FILE, text=yaml_text(pods.file_map(launch), document, comments=notes))


TRAINJOB: Final = Launcher(
    name="trainjob",
    summary=f"a TrainJob ({GROUP}/{VERSION}) for kubectl apply",
    refused=_reason_against_trainjob,
    file=_manifest_file,
)


def _script(launch: PlacedExport) -> str:
    """Shell script of a pod: sets the node's variables and runs the start script."""
    exports = node_variables(
        node="$PET_NODE_RANK", master="$PET_MASTER_ADDR", port="$PET_MASTER_PORT"
    )
    return pods.shell_script(exports, launch)
