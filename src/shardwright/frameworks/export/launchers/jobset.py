"""Launcher for Kubernetes JobSet: one indexed job for each run of equal nodes, one pod a node.

JobSet makes a headless service for the pods.

Source: kubernetes-sigs/jobset, jobset.x-k8s.io/v1alpha2 (pods are reached as
JOBSET-JOB-0-INDEX.JOBSET); a pod of an indexed job knows its ``JOB_COMPLETION_INDEX``.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import ExportFile, title
from shardwright.frameworks.export.launchers import shared_kubernetes_pod_parts as pods
from shardwright.frameworks.export.launchers.launcher_type_and_shared_helpers import (
    Launcher,
    PlacedExport,
    job_name,
    node_runs,
)
from shardwright.frameworks.export.place_ranks_and_write_rank_map import PlacedNode
from shardwright.frameworks.export.start_script import DEFAULT_PORT, GPUS, NODES, node_variables
from shardwright.frameworks.export.yaml_text import yaml_text

FILE: Final = "jobset.yaml"
API: Final = "jobset.x-k8s.io/v1alpha2"
CONTAINER: Final = "training"


def _reason_against_pods(launch: PlacedExport) -> str:
    """Reason why pods cannot run an export (device vendor, size of files); empty if they can."""
    return pods.reason_against_pods(launch)


def _manifest_file(launch: PlacedExport) -> ExportFile:
    """JobSet manifest file that starts an export on its nodes."""
    jobs = list(node_runs(launch.placement.nodes, lambda node: (node.kind, node.ranks)))
    name = job_name(launch.export)
    document = {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                _replicated_job(launch, number, first, nodes)
                for number, (first, nodes, _) in enumerate(jobs)
            ],
        },
    }
    notes = (
        f"{title(launch.export)}. Made by Shardwright.",
        f"kubectl apply -f {FILE}: a pod a node, rank 0 in {_first_pod_host(launch, 0)}.",
        pods.NOTE,
    )
    return ExportFile(name=FILE, text=yaml_text(pods.file_map(launch), document, comments=notes))


JOBSET: Final = Launcher(
    name="jobset",
    summary=f"a JobSet ({API}) for kubectl apply",
    refused=_reason_against_pods,
    file=_manifest_file,
)


def _replicated_job_name(number: int) -> str:
    """Name of replicated job number `number`: ``node0``, ``node1``, ..."""
    return f"node{number}"


def _first_pod_host(launch: PlacedExport, number: int) -> str:
    """DNS host name of the first pod of replicated job number `number`."""
    name = job_name(launch.export)
    return f"{name}-{_replicated_job_name(number)}-0-0.{name}"


def _replicated_job(
    launch: PlacedExport, number: int, first: int, nodes: tuple[PlacedNode, ...]
) -> dict[str, Any]:
    """Replicated job `number`: one pod for each of equal `nodes`, the first numbered `first`."""
    container = {
        "name": CONTAINER,
        "image": launch.image or pods.IMAGE,
        "command": ["bash", "-euc", _script(launch), launch.start.name],
        "env": pods.environment_entries(
            {NODES: len(launch.placement.nodes), GPUS: nodes[0].ranks, "FIRST": first}
        ),
        "resources": {"limits": pods.device_limits(nodes[0])},
        "volumeMounts": pods.volume_mounts(),
    }
    pod = {
        "restartPolicy": "Never",
        **pods.node_selector(launch, nodes[0]),
        "containers": [container],
        "volumes": pods.volumes(launch),
    }
    count = len(nodes)
    indexed = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": 0,
    }
    return {
        "name": _replicated_job_name(number),
        "replicas": 1,
        "template": {"spec": {**indexed, "template": {"spec": pod}}},
    }


def _script(launch: PlacedExport) -> str:
    """Shell script of a pod: sets the node's variables and runs the start script."""
    # Kubernetes replaces $(NAME) of a variable before the shell sees it: there is none in here.
    exports = node_variables(
        node="$((FIRST + JOB_COMPLETION_INDEX))",
        master=_first_pod_host(launch, 0),
        port=str(DEFAULT_PORT),
    )
    return pods.shell_script(exports, launch)
