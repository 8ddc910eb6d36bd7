"""The one start line: how a node starts its ranks, whichever the target and whoever launches it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardwright.frameworks.export.exporter import ExportFile, Given, title

NODES: Final = "NODES"
"""Variable of a start script: nodes of the job."""
GPUS: Final = "GPUS"
"""Ranks of this node, one a device."""
NODE, MASTER, PORT = "NODE", "MASTER", "PORT"
"""This node's number, and where the first node listens; not needed on a single node."""
RENDEZVOUS: Final = "RENDEZVOUS"
"""The same three as torchrun's arguments."""
DEFAULT_PORT: Final = 29500
"""torchrun's own."""


def start_script(
    given: Given, *, name: str, made_for: str, before: Sequence[str] = (), runs: Sequence[str]
) -> ExportFile:
    """The script that a node runs: it starts the node's ranks, with the arguments that it is given
    itself.

    Args:
        name: of the file.
        made_for: the framework and its version.
        before: lines that prepare.
        runs: words of the shell (`torchrun`).
    """
    lines = [
        "#!/bin/bash",
        f"# {title(given)}. Made by Shardwright for {made_for}.",
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
    """The words that start a program's ranks of a node with torchrun, which DeepSpeed and the
    others take for their own launchers.
    """
    return (
        "torchrun",
        f'--nnodes "${{{NODES}:?}}"',
        f'--nproc-per-node "${{{GPUS}:?}}"',
        f"${{{RENDEZVOUS}:-}}",
        *program,
    )


def node_variables(*, node: str, master: str, port: str) -> list[str]:
    """Lines of shell by which a launcher tells a start script which node it is on; each is a text
    of the shell.

    torchrun's rendezvous is static: its c10d numbers nodes by their host names in sorted order
    (`_DistributedRendezvousOpExecutor`, PyTorch 2.13), in which node10 comes before node2, so that
    ranks would not be where the plan has them.
    """
    return [
        f"export {NODE}={node} {MASTER}={master} {PORT}={port}",
        f'export {RENDEZVOUS}="--node-rank ${NODE} --master-addr ${MASTER} --master-port ${PORT}"',
    ]
