"""Parts that Kubernetes launchers share: the files as a ConfigMap, and the pods that run them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from shardwright.frameworks.export.launchers.launcher_type_and_shared_helpers import (
    PlacedExport,
    accelerator_names,
    dns_label,
    job_name,
)
from shardwright.frameworks.export.place_ranks_and_write_rank_map import PlacedNode

MOUNT: Final = "/shardwright"
IMAGE: Final = "example.invalid/training:latest"
"""A placeholder that no registry has."""
NOTE: Final = (
    "The image has the framework, in the folder where the training runs. To be added: args of the"
    " container, storage, the site's network."
)
"""For people, at the head of a file."""
RESOURCES: Final = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""The resource name of a device in each vendor's device plugin."""
MOST_BYTES: Final = 1_000_000
"""Of a ConfigMap, which Kubernetes limits to 1 MiB."""


def reason_against_pods(launch: PlacedExport) -> str:
    """Reason why pods cannot run an export (device vendor, size of files); empty if they can."""
    vendors = {node.kind.accelerator.vendor for node in launch.placement.nodes} - set(RESOURCES)
    if vendors:
        return f"no resource of Kubernetes is known for devices of {', '.join(sorted(vendors))}"
    size = sum(len(file.text.encode()) for file in launch.files)
    return (
        f"its files are {size:,} bytes and a ConfigMap holds {MOST_BYTES:,}"
        if size > MOST_BYTES
        else ""
    )


def file_map(launch: PlacedExport) -> dict[str, Any]:
    """ConfigMap object that holds the export's files."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job_name(launch.export)},
        "data": {file.name: file.text for file in launch.files},
    }


def volumes(launch: PlacedExport) -> list[dict[str, Any]]:
    """Volumes of a pod: the export's files, and memory shared by the ranks of a node."""
    return [
        {"name": "plan", "configMap": {"name": job_name(launch.export)}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]


def volume_mounts() -> list[dict[str, Any]]:
    """Volume mounts of a container: the export's files and shared memory."""
    return [
        {"name": "plan", "mountPath": MOUNT},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]


def device_limits(node: PlacedNode) -> dict[str, int]:
    """Resource limit (resource name -> all devices of a node), so that no other pod runs there."""
    return {RESOURCES[node.kind.accelerator.vendor]: node.kind.num_devices}


def shell_script(exports: Iterable[str], launch: PlacedExport) -> str:
    """Shell text: the lines `exports`, then the export's start script with all arguments."""
    return "".join(
        f"{line}\n" for line in (*exports, f'exec bash {MOUNT}/{launch.start.name} "$@"')
    )


def environment_entries(values: dict[str, object]) -> list[dict[str, str]]:
    """Environment variables as the list of a container's `env`."""
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def node_selector(launch: PlacedExport, node: PlacedNode) -> dict[str, Any]:
    """Node selector by accelerator name if the plan has several accelerators; else empty."""
    if len(accelerator_names(launch.placement.nodes)) == 1:
        return {}
    return {"nodeSelector": {"accelerator": dns_label(node.kind.accelerator.name)}}
