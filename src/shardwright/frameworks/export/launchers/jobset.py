"""JobSet: one indexed job for each run of nodes that are alike, a pod a node, and the headless
service that JobSet makes for them.

Source: kubernetes-sigs/jobset, jobset.x-k8s.io/v1alpha2 (pods are reached as
JOBSET-JOB-0-INDEX.JOBSET); a pod of an indexed job knows its ``JOB_COMPLETION_INDEX``.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.frameworks.export.exporter import ExportFile, title
from shardwright.frameworks.export.launchers import pods
from shardwright.frameworks.export.launchers.launcher import Launcher, PlacedExport, job_name, runs
from shardwright.frameworks.export.placement import Node
from shardwright.frameworks.export.start_script import DEFAULT_PORT, GPUS, NODES, node_variables
from shardwright.frameworks.export.yaml_text import yaml_text

FILE: Final = "jobset.yaml"
API: Final = "jobset.x-k8s.io/v1alpha2"
CONTAINER: Final = "training"


def _refused(launch: PlacedExport) -> str:
    """Why the scheduler cannot start a plan; empty = it can."""
    return pods.refused_pods(launch)


def _file(launch: PlacedExport) -> ExportFile:
    """The file that the scheduler reads."""
    jobs = list(runs(launch.placement.nodes, lambda node: (node.kind, node.ranks)))
    name = job_name(launch.given)
    document = {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                _job(launch, number, first, nodes) for number, (first, nodes, _) in enumerate(jobs)
            ],
        },
    }
    notes = (
        f"{title(launch.given)}. Made by Shardwright.",
        f"kubectl apply -f {FILE}: a pod a node, rank 0 in {_pod(launch, 0)}.",
        pods.NOTE,
    )
    return ExportFile(name=FILE, text=yaml_text(pods.file_map(launch), document, comments=notes))


JOBSET: Final = Launcher(
    name="jobset", summary=f"a JobSet ({API}) for kubectl apply", refused=_refused, file=_file
)


def _name(number: int) -> str:
    return f"node{number}"


def _pod(launch: PlacedExport, number: int) -> str:
    """The host name of the first pod of a job."""
    name = job_name(launch.given)
    return f"{name}-{_name(number)}-0-0.{name}"


def _job(launch: PlacedExport, number: int, first: int, nodes: tuple[Node, ...]) -> dict[str, Any]:
    container = {
        "name": CONTAINER,
        "image": launch.image or pods.IMAGE,
        "command": ["bash", "-euc", _script(launch), launch.start.name],
        "env": pods.variables(
            {NODES: len(launch.placement.nodes), GPUS: nodes[0].ranks, "FIRST": first}
        ),
        "resources": {"limits": pods.devices(nodes[0])},
        "volumeMounts": pods.volume_mounts(),
    }
    pod = {
        "restartPolicy": "Never",
        **pods.selector(launch, nodes[0]),
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
        "name": _name(number),
        "replicas": 1,
        "template": {"spec": {**indexed, "template": {"spec": pod}}},
    }


def _script(launch: PlacedExport) -> str:
    # Kubernetes replaces $(NAME) of a variable before the shell sees it: there is none in here.
    said = node_variables(
        node="$((FIRST + JOB_COMPLETION_INDEX))", master=_pod(launch, 0), port=str(DEFAULT_PORT)
    )
    return "".join(
        f"{line}\n" for line in (*said, f'exec bash {pods.MOUNT}/{launch.start.name} "$@"')
    )
