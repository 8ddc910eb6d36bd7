"""Reader of Slurm's ``scontrol show nodes`` output and of ``NodeName`` lines of slurm.conf.

The reader relies on: a record begins with ``NodeName=``; ``Gres=gpu:TYPE:COUNT(..)`` or, without a
type, ``gpu:COUNT``; where there is none ``CfgTRES=..,gres/gpu:TYPE=COUNT``; ``RealMemory`` in MiB;
``InstanceType`` in releases that know it. Source: scontrol.html and gres.html of slurm.schedmd.com.
The cluster's administrator chooses the type's word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.size_limited_text import (
    MAX_WORD,
    numbered_lines,
    whole_number,
)
from shardwright.hardware.inventories.node_facts import FactKind, FoundFact, Inventory, SeenNode
from shardwright.hardware.inventories.outputs.select_schedulable_nodes import slurm_state
from shardwright.hardware.inventories.outputs.slurm_hostlist import expand_hostlist
from shardwright.units import MIB

MAX_NODES: Final = 131_072
MAX_DEVICES: Final = 1024
MAX_MIB: Final = 2**30
_KEY: Final = re.compile(
    r"(NodeName|Gres|CfgTRES|RealMemory|State|InstanceType|CPUTot)=(\S*)", re.IGNORECASE
)
_NOTHING: Final = ("", "(null)", "N/A", "none")
Fields = dict[str, tuple[str, str]]
"""Key in lower case -> (value, place)."""


def is_slurm_nodes(text: str) -> bool:
    """True if the text has a node record (``NodeName=``)."""
    return re.search(r"^[ \t]*NodeName=", text, re.MULTILINE | re.IGNORECASE) is not None


def read_slurm_nodes(text: str, *, name: str) -> Inventory:
    """Read the nodes with GPUs from the node records of ``scontrol show nodes`` or slurm.conf.

    Raises:
        ClusterError: a number is wrong, a node has two records or two kinds of GPU, or there are
            too many nodes.
    """
    nodes: dict[str, SeenNode] = {}
    without, first = 0, f"{name}:1"
    for fields in _records(text, name=name):
        called, where = fields["nodename"]
        if called.upper() == "DEFAULT":
            continue
        facts = gpu_facts(fields)
        away, remark = _node_state(fields)
        for host in expand_hostlist(called, where=where):
            if host in nodes:
                raise ClusterError(
                    f"{where}: node {host[:60]!r} is listed twice, also in {nodes[host].where}",
                    hint="once each",
                )
            if not facts:
                without += 1
                continue
            nodes[host] = SeenNode(name=host, where=where, facts=facts, away=away, remark=remark)
        if len(nodes) > MAX_NODES:
            raise ClusterError(
                f"{where}: more than {MAX_NODES:,} nodes", hint="write a smaller file"
            )
    if not nodes:
        raise ClusterError(
            f"{name}: none of {without} nodes has a GPU",
            hint="Gres=gpu:h100:8 says that a node has",
        )
    return Inventory(
        file=name, nodes=tuple(nodes.values()), notes=nodes_without_gpus_remark(without, first)
    )


def nodes_without_gpus_remark(number: int, where: str) -> tuple[FoundFact, ...]:
    """Remark on the number of nodes without GPUs that are left out; empty for 0."""
    return (FoundFact(FactKind.NODES, f"{number} without GPUs, left out", where),) if number else ()


def _records(text: str, *, name: str) -> Iterator[Fields]:
    """Yield {key in lower case: (value, place)} of each node record; a key's first value counts.

    The free text of a reason comes last in a record.
    """
    fields: Fields = {}
    for where, line in numbered_lines(text, name=name):
        if line.startswith("#"):
            continue
        for match in _KEY.finditer(line) if "=" in line else ():
            if match.start() and not line[match.start() - 1].isspace():
                continue
            if match[1].lower() == "nodename":
                if fields:
                    yield fields
                fields = {}
            if fields or match[1].lower() == "nodename":
                fields.setdefault(match[1].lower(), (match[2], where))
    if fields:
        yield fields


def _node_state(fields: Fields) -> tuple[str, str]:
    """(reason why no job can be placed on the node, remark) from the node's state.

    In slurm.conf nodes start with ``State=UNKNOWN``: scontrol lists their processors (``CPUTot``)
    beside it.
    """
    state = fields.get("state", ("", ""))[0]
    return ("", "") if state.upper() == "UNKNOWN" and "cputot" not in fields else slurm_state(state)


def gpu_facts(fields: Fields) -> tuple[FoundFact, ...]:
    """Facts of a node's GPUs (number, type), host memory and instance type; empty without GPUs."""
    gpus, where = _gpu_types_and_counts(fields)
    if not gpus:
        return ()
    types = {kind for kind, _ in gpus if kind}
    if len(types) > 1:
        raise ClusterError(
            f"{where}: GPUs of {len(types)} types in a node: {', '.join(sorted(types))[:80]}",
            hint="one type a node, and no parts",
        )
    found = [FoundFact(FactKind.DEVICES, sum(count for _, count in gpus), where)]
    found += [FoundFact(FactKind.PRODUCT, types.pop(), where)] if types else []
    memory, at = fields.get("realmemory", ("", ""))
    if memory not in _NOTHING:
        found.append(
            FoundFact(
                FactKind.HOST_MEMORY,
                whole_number(memory, what="RealMemory", where=at, most=MAX_MIB) * MIB,
                at,
            )
        )
    instance, at = fields.get("instancetype", ("", ""))
    if instance not in _NOTHING:
        found.append(FoundFact(FactKind.INSTANCE, instance[:MAX_WORD], at))
    return tuple(found)


def _gpu_types_and_counts(fields: Fields) -> tuple[list[tuple[str, int]], str]:
    """([(type, count) of each kind of GPU] by Gres, else by CfgTRES; place of that field)."""
    text, where = fields.get("gres", ("", ""))
    found = [
        _parse_gres(entry, where=where)
        for entry in _comma_separated_entries(text)
        if entry.split(":")[0] == "gpu"
    ]
    if found:
        return found, where
    text, where = fields.get("cfgtres", ("", ""))
    counted: dict[str, int] = {}
    for entry in _comma_separated_entries(text):
        key, _, count = entry.partition("=")
        if key == "gres/gpu" or key.startswith("gres/gpu:"):
            counted[key[9:][:MAX_WORD]] = whole_number(
                count, what=key[:40], where=where, most=MAX_DEVICES
            )
    # `gres/gpu` alone is the sum of those with a type.
    return [(kind, count) for kind, count in counted.items() if kind or len(counted) == 1], where


def _comma_separated_entries(text: str) -> list[str]:
    """Split a field at commas after removing its text in brackets; empty for no value."""
    return [] if text in _NOTHING else re.sub(r"\([^()]*\)?", "", text).split(",")


def _parse_gres(entry: str, *, where: str) -> tuple[str, int]:
    """Parse a Gres entry ``gpu:h100:8``, ``gpu:8`` or ``gpu`` (1) as (type, count)."""
    words = [word for word in entry.split(":")[1:] if word != "no_consume"]
    count = words.pop() if words and words[-1].isdigit() else "1"
    return ":".join(words)[:MAX_WORD], whole_number(
        count, what="Gres", where=where, most=MAX_DEVICES
    )
