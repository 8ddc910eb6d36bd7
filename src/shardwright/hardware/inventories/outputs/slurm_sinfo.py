"""Reader of Slurm's ``sinfo`` table: a header, and a line for each node or list of nodes.

The reader relies on: columns ``NODELIST`` and ``GRES``, as ``sinfo -N -o "%N %G %m %T"`` or ``sinfo
-o "%P %D %t %N %G"`` prints them, and ``MEMORY`` (MiB) and ``STATE`` where they are there. Plain
``sinfo`` does not say which nodes have GPUs. Source: slurm.schedmd.com/sinfo.html.
"""

from __future__ import annotations

from io import StringIO
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.size_limited_text import numbered_lines
from shardwright.hardware.inventories.node_facts import Inventory, SeenNode
from shardwright.hardware.inventories.outputs.select_schedulable_nodes import slurm_state
from shardwright.hardware.inventories.outputs.slurm_hostlist import expand_hostlist
from shardwright.hardware.inventories.outputs.slurm_scontrol import (
    MAX_NODES,
    gpu_facts,
    nodes_without_gpus_remark,
)

COMMAND: Final = 'sinfo -N -o "%N %G %m %T"'
_COLUMNS: Final = (
    "NODELIST",
    "GRES",
    "MEMORY",
    "STATE",
    "PARTITION",
    "NODES",
    "CPUS",
    "AVAIL",
    "TIMELIMIT",
    "S:C:T",
    "WEIGHT",
)


def is_sinfo(text: str) -> bool:
    """True if the text has a header of sinfo: ``NODELIST`` beside another of its columns."""
    return any(_is_header(line.split()) for line in StringIO(text[:65_536]))


def _is_header(words: list[str]) -> bool:
    """True if the words are a header of sinfo."""
    return "NODELIST" in words and len(set(words) & set(_COLUMNS)) > 1


def read_sinfo(text: str, *, name: str) -> Inventory:
    """Read the nodes with GPUs from ``sinfo``; a node of several partitions once.

    Raises:
        ClusterError: there is no column of GPUs, a line does not have the header's columns, or
            there are too many nodes.
    """
    header: list[str] = []
    nodes: dict[str, SeenNode] = {}
    without: set[str] = set()
    for where, line in numbered_lines(text, name=name):
        words = line.split()
        if _is_header(words):
            header = words
            if "GRES" not in header:
                raise ClusterError(
                    f"{where}: sinfo without a column GRES does not say which nodes have GPUs",
                    hint=COMMAND,
                )
            continue
        if not words or not header:
            continue
        if len(words) != len(header):
            raise ClusterError(
                f"{where}: {len(words)} words for {len(header)} columns", hint=COMMAND
            )
        cells = dict(zip(header, words, strict=True))
        fields = {
            "gres": (cells["GRES"], where),
            "realmemory": (cells.get("MEMORY", "").rstrip("+"), where),
        }
        facts = gpu_facts(fields)
        away, remark = slurm_state(cells.get("STATE", ""))
        for host in expand_hostlist(cells["NODELIST"], where=where):
            if not facts:
                without.add(host)
            else:
                _add_node(
                    nodes, SeenNode(name=host, where=where, facts=facts, away=away, remark=remark)
                )
        if len(nodes) + len(without) > MAX_NODES:
            raise ClusterError(
                f"{where}: more than {MAX_NODES:,} nodes", hint="write a smaller file"
            )
    if not nodes:
        raise ClusterError(
            f"{name}: none of {len(without)} nodes has a GPU",
            hint="gpu:h100:8 in the column GRES says that a node has",
        )
    return Inventory(
        file=name,
        nodes=tuple(nodes.values()),
        notes=nodes_without_gpus_remark(len(without - set(nodes)), f"{name}:1"),
    )


def _add_node(nodes: dict[str, SeenNode], node: SeenNode) -> None:
    """Add a node by name; ClusterError if an earlier line lists other facts for it."""
    known = nodes.setdefault(node.name, node)
    if [fact.value for fact in known.facts] != [fact.value for fact in node.facts]:
        raise ClusterError(
            f"{node.where}: node {node.name[:60]!r} is another in {known.where}",
            hint="the same GPUs in every partition",
        )
