"""Launcher for Slurm: a batch script that starts one task on each node.

The order of a list of hosts gives each node its ranks, not SLURM's distribution of tasks: a task
looks its own host up in the list. Nodes of several kinds are components of a heterogeneous job, and
islands of several nodes are segments (``--segment``, topology/block).

Source: SLURM's manual pages of sbatch, srun and scontrol, and its page on heterogeneous jobs
(``SLURM_JOB_NODELIST_HET_GROUP_n``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    ExportFile,
    one_line,
    title,
)
from shardwright.frameworks.export.launchers.launcher_type_and_shared_helpers import (
    Launcher,
    PlacedExport,
    job_name,
    node_runs,
    ranks_by_node,
)
from shardwright.frameworks.export.place_ranks_and_write_rank_map import HOSTS, PlacedNode
from shardwright.frameworks.export.start_script import DEFAULT_PORT, NODES, PORT, node_variables

FILE: Final = "slurm.sh"


def _batch_script(launch: PlacedExport) -> ExportFile:
    """Slurm batch script that starts an export on its nodes."""
    return ExportFile(name=FILE, text="\n".join([*_script_head(launch), *_script_body(launch), ""]))


SLURM: Final = Launcher(name="slurm", summary="a batch script for sbatch", file=_batch_script)


def _job_components(launch: PlacedExport) -> list[tuple[PlacedNode, ...]]:
    """Runs of nodes of one kind and zone: the components of a heterogeneous Slurm job."""
    return [
        nodes
        for _, nodes, _ in node_runs(launch.placement.nodes, lambda node: (node.kind, node.zone))
    ]


def _script_head(launch: PlacedExport) -> Iterator[str]:
    """Yield the head of the batch script: comments and #SBATCH options, by component."""
    yield "#!/bin/bash"
    yield (
        f"# {title(launch.export)}. Made by Shardwright: starts {launch.start.name} on every node."
    )
    yield (
        f"# In the folder where the training runs: FOLDER=/this/folder sbatch /this/folder/{FILE};"
        " all nodes see both."
    )
    yield (
        "# Account, partition, time and containers are the site's: options of sbatch. What stands"
        " behind the script goes to the training."
    )
    components = _job_components(launch)
    for number, nodes in enumerate(components):
        if number:
            yield "#SBATCH hetjob"
        else:
            yield f"#SBATCH --job-name={job_name(launch.export)}"
        if len(components) > 1:
            yield (
                f"# {one_line(nodes[0].kind.accelerator.name)}: add the site's --constraint or"
                " --partition"
            )
        yield (
            f"#SBATCH --nodes={len(nodes)} --ntasks-per-node=1"
            f" --gpus-per-node={nodes[0].kind.num_devices} --exclusive --mem=0"
        )
        if launch.placement.named:
            yield f"#SBATCH --nodelist={','.join(node.name for node in nodes)}"
        yield from _segment_option(nodes)


def _segment_option(nodes: Sequence[PlacedNode]) -> Iterator[str]:
    """Yield ``#SBATCH --segment`` that keeps nodes of an NVLink island together, if it fits.

    It is written where islands span several nodes and divide the job.
    """
    kind = nodes[0].kind
    size = min(kind.island // kind.num_devices, len(nodes))
    if size > 1 and len(nodes) % size == 0:
        yield f"#SBATCH --segment={size}"


def _script_body(launch: PlacedExport) -> Iterator[str]:
    """Yield the batch script's commands: write the host list, start a task on each node."""
    nodes, components = launch.placement.nodes, _job_components(launch)
    yield "set -euo pipefail"
    yield (
        f"export FOLDER=${{FOLDER:-${{SLURM_SUBMIT_DIR:-$PWD}}}} {NODES}={len(nodes)}"
        f" {PORT}=${{{PORT}:-{DEFAULT_PORT}}}"
    )
    yield (
        f'[ -f "$FOLDER/{launch.start.name}" ] || {{ echo "no {launch.start.name} in $FOLDER: set'
        ' FOLDER" >&2; exit 2; }'
    )
    yield "# The nodes in the plan's order: the first line has the first ranks."
    yield 'export HOSTS="$FOLDER/hosts.$SLURM_JOB_ID"'
    if launch.placement.named:
        yield f'cut -d \' \' -f 1 "$FOLDER/{HOSTS}" > "$HOSTS"'
    elif len(components) == 1:
        yield 'scontrol show hostnames "$SLURM_JOB_NODELIST" > "$HOSTS"'
    else:
        lists = [
            f'scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_{n}"'
            for n in range(len(components))
        ]
        yield f'{{ {"; ".join(lists)}; }} > "$HOSTS"'
    het = [f"--het-group=0-{len(components) - 1}"] if len(components) > 1 else []
    # One task starts all ranks of its node: it may use all of its cores.
    yield " ".join(
        [
            "srun",
            *het,
            "--ntasks-per-node=1",
            "--kill-on-bad-exit=1",
            "--cpu-bind=none",
            "bash -euc '",
        ]
    )
    yield (
        '  LINE=$(grep -nxF -- "$SLURMD_NODENAME" "$HOSTS") || { echo "$SLURMD_NODENAME is not in'
        ' $HOSTS" >&2; exit 1; }'
    )
    exports = node_variables(
        node="$((${LINE%%:*} - 1))", master='$(head -n 1 "$HOSTS")', port=f"${PORT}"
    )
    yield from (f"  {line}" for line in (*exports, *ranks_by_node(nodes)))
    yield f'  exec bash "$FOLDER/{launch.start.name}" "$@"'
    yield f'\' {launch.start.name} "$@"'
