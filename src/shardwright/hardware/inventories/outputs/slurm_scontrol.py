"""Slurm's nodes: what ``scontrol show nodes`` prints, also with ``-o``, or the ``NodeName`` lines
of slurm.conf.

What is relied on: a record begins with ``NodeName=``; ``Gres=gpu:TYPE:COUNT(..)`` or, without a
type, ``gpu:COUNT``; where there is none ``CfgTRES=..,gres/gpu:TYPE=COUNT``; ``RealMemory`` in MiB;
``InstanceType`` in releases that know it. Source: scontrol.html and gres.html of slurm.schedmd.com.
The type is a word that whoever set the cluster up has chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.lines_and_numbers import (
    MAX_WORD,
    numbered_lines,
    whole_number,
)
from shardwright.hardware.inventories.node_facts import Found, Inventory, SeenNode, What
from shardwright.hardware.inventories.outputs.schedulable_states import slurm_state
from shardwright.hardware.inventories.outputs.slurm_hostlist import hosts_of
from shardwright.units import MIB

MAX_NODES: Final = 131_072
MAX_DEVICES: Final = 1024
MAX_MIB: Final = 2**30
_KEY: Final = re.compile(
    r"(NodeName|Gres|CfgTRES|RealMemory|State|InstanceType|CPUTot)=(\S*)", re.IGNORECASE
)
_NOTHING: Final = ("", "(null)", "N/A", "none")
Fields = dict[str, tuple[str, str]]
"""Key in small letters -> (value, where)."""


def is_slurm_nodes(text: str) -> bool:
    """The text has a record of a node."""
    return re.search(r"^[ \t]*NodeName=", text, re.MULTILINE | re.IGNORECASE) is not None


def read_slurm_nodes(text: str, *, name: str) -> Inventory:
    """The nodes that have GPUs.

    Raises:
        ClusterError: a number is none, a node has two records or two kinds of GPU, or there are too
        many.
    """
    nodes: dict[str, SeenNode] = {}
    without, first = 0, f"{name}:1"
    for fields in _records(text, name=name):
        called, where = fields["nodename"]
        if called.upper() == "DEFAULT":
            continue
        facts = gpu_facts(fields)
        away, remark = _state(fields)
        for host in hosts_of(called, where=where):
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
    return Inventory(file=name, nodes=tuple(nodes.values()), notes=left_out(without, first))


def left_out(number: int, where: str) -> tuple[Found, ...]:
    """The remark about nodes without GPUs."""
    return (Found(What.NODES, f"{number} without GPUs, left out", where),) if number else ()


def _records(text: str, *, name: str) -> Iterator[Fields]:
    """Fields of each record; of a key that is there twice the first, as a reason that somebody
    wrote comes last.
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


def _state(fields: Fields) -> tuple[str, str]:
    """Why no job can be placed on the node, and what else is said of its state. In slurm.conf
    ``State=UNKNOWN`` is what nodes start with: scontrol counts their processors (``CPUTot``) beside
    it.
    """
    state = fields.get("state", ("", ""))[0]
    return ("", "") if state.upper() == "UNKNOWN" and "cputot" not in fields else slurm_state(state)


def gpu_facts(fields: Fields) -> tuple[Found, ...]:
    """Facts of a node with GPUs; none of one that has none."""
    gpus, where = _gpus(fields)
    if not gpus:
        return ()
    types = {kind for kind, _ in gpus if kind}
    if len(types) > 1:
        raise ClusterError(
            f"{where}: GPUs of {len(types)} types in a node: {', '.join(sorted(types))[:80]}",
            hint="one type a node, and no parts",
        )
    found = [Found(What.DEVICES, sum(count for _, count in gpus), where)]
    found += [Found(What.PRODUCT, types.pop(), where)] if types else []
    memory, at = fields.get("realmemory", ("", ""))
    if memory not in _NOTHING:
        found.append(
            Found(
                What.HOST_MEMORY,
                whole_number(memory, what="RealMemory", where=at, most=MAX_MIB) * MIB,
                at,
            )
        )
    instance, at = fields.get("instancetype", ("", ""))
    if instance not in _NOTHING:
        found.append(Found(What.INSTANCE, instance[:MAX_WORD], at))
    return tuple(found)


def _gpus(fields: Fields) -> tuple[list[tuple[str, int]], str]:
    """(type, count) of a node's GPUs, and where that stands."""
    text, where = fields.get("gres", ("", ""))
    found = [_gres(entry, where=where) for entry in _entries(text) if entry.split(":")[0] == "gpu"]
    if found:
        return found, where
    text, where = fields.get("cfgtres", ("", ""))
    counted: dict[str, int] = {}
    for entry in _entries(text):
        key, _, count = entry.partition("=")
        if key == "gres/gpu" or key.startswith("gres/gpu:"):
            counted[key[9:][:MAX_WORD]] = whole_number(
                count, what=key[:40], where=where, most=MAX_DEVICES
            )
    # `gres/gpu` alone is the sum of those with a type.
    return [(kind, count) for kind, count in counted.items() if kind or len(counted) == 1], where


def _entries(text: str) -> list[str]:
    """Entries between commas, without what stands in brackets."""
    return [] if text in _NOTHING else re.sub(r"\([^()]*\)?", "", text).split(",")


def _gres(entry: str, *, where: str) -> tuple[str, int]:
    """``gpu:h100:8``, ``gpu:8`` or ``gpu`` as type and count."""
    words = [word for word in entry.split(":")[1:] if word != "no_consume"]
    count = words.pop() if words and words[-1].isdigit() else "1"
    return ":".join(words)[:MAX_WORD], whole_number(
        count, what="Gres", where=where, most=MAX_DEVICES
    )
