"""Launcher for SkyPilot: a task on a number of nodes of one accelerator.

Source: SkyPilot's YAML specification and its page on distributed jobs (``SKYPILOT_NODE_RANK``,
``SKYPILOT_NODE_IPS``); names of accelerators as they stand in its catalogs, skypilot 0.14.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import ExportFile, title
from shardwright.frameworks.export.launchers.launcher_type_and_shared_helpers import (
    Launcher,
    PlacedExport,
    accelerator_names,
    job_name,
    ranks_by_node,
)
from shardwright.frameworks.export.start_script import DEFAULT_PORT, NODES, node_variables
from shardwright.frameworks.export.yaml_text import yaml_text

FILE: Final = "skypilot.yaml"
ACCELERATORS: Final[Mapping[str, str]] = {
    "a10": "A10",
    "a10g": "A10G",
    "a100-sxm-40gb": "A100",
    "a100-sxm-80gb": "A100-80GB",
    "a100-pcie-80gb": "A100-80GB",
    "h100-sxm": "H100",
    "h200-sxm": "H200",
    "gh200-96gb": "GH200",
    "b200-sxm": "B200",
    "gb200-nvl72": "GB200",
    "mi300x": "MI300X",
    "rtx-3090": "RTX3090",
    "rtx-4090": "RTX4090",
    "rtx-5090": "RTX5090",
    "rtx-pro-6000": "RTXPRO6000",
    "l4": "L4",
    "l40s": "L40S",
    "t4": "T4",
    "v100-sxm-16gb": "V100",
    "v100-sxm-32gb": "V100-32GB",
}
"""Accelerator's catalog name -> SkyPilot's name."""


def _reason_against_skypilot(launch: PlacedExport) -> str:
    """Reason why SkyPilot cannot start it (several node kinds, unknown accelerator), or empty."""
    nodes = launch.placement.nodes
    node_kinds = dict.fromkeys(
        (node.kind.accelerator.name, node.kind.num_devices) for node in nodes
    )
    if len(node_kinds) > 1:
        return (
            "its nodes are all of one kind, and the plan's are"
            f" {' and '.join(f'{size} {name}' for name, size in node_kinds)}"
        )
    unknown = [name for name in accelerator_names(nodes) if name not in ACCELERATORS]
    return f"no name of SkyPilot's is known for {unknown[0]}" if unknown else ""


def _task_file(launch: PlacedExport) -> ExportFile:
    """SkyPilot's task file (YAML) that starts an export on its nodes."""
    nodes = launch.placement.nodes
    kind = nodes[0].kind
    resources: dict[str, Any] = {
        "accelerators": f"{ACCELERATORS[kind.accelerator.name]}:{kind.num_devices}",
        "network_tier": "best",
        **({"image_id": f"docker:{launch.image}"} if launch.image else {}),
    }
    document = {
        "name": job_name(launch.export),
        "num_nodes": len(nodes),
        "workdir": ".",
        "resources": resources,
        "run": _script(launch),
    }
    notes = (
        f"{title(launch.export)}. Made by Shardwright.",
        (
            f"sky launch {FILE} in this folder, which is copied to every node; a setup section"
            " installs the framework."
        ),
        "SkyPilot numbers the nodes: those that it has close together are the cloud's choice.",
    )
    return ExportFile(name=FILE, text=yaml_text(document, comments=notes))


SKYPILOT: Final = Launcher(
    name="skypilot",
    summary="a task for sky launch",
    refused=_reason_against_skypilot,
    file=_task_file,
)


def _script(launch: PlacedExport) -> str:
    """Shell script of a node: sets the node's variables and runs the start script."""
    first = '$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
    lines = [
        "set -euo pipefail",
        f"export {NODES}=$SKYPILOT_NUM_NODES",
        *node_variables(node="$SKYPILOT_NODE_RANK", master=first, port=str(DEFAULT_PORT)),
        *ranks_by_node(launch.placement.nodes),
        f"exec bash {launch.start.name}",
    ]
    return "".join(f"{line}\n" for line in lines)
