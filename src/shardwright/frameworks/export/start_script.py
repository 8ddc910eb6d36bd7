"""Start script of a node's ranks, which every launcher runs and every target shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    ExportFile,
    PlanToExport,
    title,
)

NODES: Final = "NODES"
"""Variable of a start script: nodes of the job."""
GPUS: Final = "GPUS"
"""Variable of a start script: ranks of this node, one a device."""
NODE, MASTER, PORT = "NODE", "MASTER", "PORT"
"""Variables: this node's number, and the first node's address and port; unset on a single node."""
RENDEZVOUS: Final = "RENDEZVOUS"
"""Variable with the same three values as torchrun's arguments."""
DEFAULT_PORT: Final = 29500
"""torchrun's default port."""


def start_script(
    export: PlanToExport,
    *,
    name: str,
    made_for: str,
    before: Sequence[str] = (),
    runs: Sequence[str],
) -> ExportFile:
    """Shell script that runs command `runs` for a node's ranks, with the script's arguments added.

    Args:
        name: file name.
        made_for: the framework and its version.
        before: preparatory lines.
        runs: words of the command that starts the ranks (`torchrun`).
    """
    lines = [
        "#!/bin/bash",
        f"# {title(export)}. Made by Shardwright for {made_for}.",
        (
            "# Data, tokenizer, learning rate and checkpoints are no part of a plan: give them as"
            " further arguments."
        ),
        "set -euo pipefail",
        *before,
        f'exec {" ".join(runs)} "$@"',
        "",
    ]
    return ExportFile(name=name, text="\n".join(lines), starts=True)


def torchrun(*program: str) -> tuple[str, ...]:
    """Words of the torchrun command that starts a program's ranks on a node.

    DeepSpeed and others accept torchrun in place of their own launchers.
    """
    return (
        "torchrun",
        f'--nnodes "${{{NODES}:?}}"',
        f'--nproc-per-node "${{{GPUS}:?}}"',
        f"${{{RENDEZVOUS}:-}}",
        *program,
    )


def node_variables(*, node: str, master: str, port: str) -> list[str]:
    """Shell lines that export node number, master address, port, and torchrun's rendezvous flags.

    Each argument is a shell expression.

    torchrun's rendezvous is static: its c10d numbers nodes by their host names in sorted order
    (`_DistributedRendezvousOpExecutor`, PyTorch 2.13), in which node10 comes before node2, so that
    ranks would not be where the plan has them.
    """
    return [
        f"export {NODE}={node} {MASTER}={master} {PORT}={port}",
        f'export {RENDEZVOUS}="--node-rank ${NODE} --master-addr ${MASTER} --master-port ${PORT}"',
    ]
