"""The one start line: how a node starts its ranks, whichever the target and whoever launches it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardwright.export.exporter import ExportFile, Given, title

NODES: Final = "NODES"
"""Variable of a start script: nodes of the job."""
GPUS: Final = "GPUS"
"""Ranks of this node, one a device."""
RENDEZVOUS: Final = "RENDEZVOUS"
"""Arguments of torchrun by which nodes find each other; none on a single node, or where the environment has them (`PET_..`)."""


def start_script(given: Given, *, name: str, made_for: str, before: Sequence[str] = (), program: Sequence[str]) -> ExportFile:
    """The script that a node runs: it starts `program` on its ranks, with the arguments that it is given itself.

    Args:
        name: of the file. made_for: the framework and its version. before: lines that prepare. program: as torchrun is told, word by word.
    """
    lines = [
        "#!/bin/bash",
        f"# {title(given)}. Made by Shardwright for {made_for}.",
        "# Data, tokenizer, learning rate and checkpoints are no part of a plan: give them as further arguments.",
        "set -euo pipefail",
        *before,
        f'exec torchrun --nnodes "${{{NODES}:?}}" --nproc-per-node "${{{GPUS}:?}}" ${{{RENDEZVOUS}:-}} {" ".join(program)} "$@"',
        "",
    ]
    return ExportFile(name=name, text="\n".join(lines), starts=True)


def static_rendezvous(*, node: str, address: str, port: str) -> str:
    """`RENDEZVOUS` of nodes whose numbers are known: each of these is a text of the shell.

    Static: torchrun's c10d numbers nodes by their host names in sorted order (`_DistributedRendezvousOpExecutor`, PyTorch 2.13), in which
    node10 comes before node2, so that ranks would not be where the plan has them.
    """
    return f"--node-rank {node} --master-addr {address} --master-port {port}"
