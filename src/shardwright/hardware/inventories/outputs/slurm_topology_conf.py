"""Reader of Slurm's ``topology.conf``: switches or blocks, and the nodes below each.

Lines are ``SwitchName=s1 Nodes=..``, ``Switches=..`` or ``BlockName=b1 Nodes=..``.

Source: slurm.schedmd.com/topology.conf.html. ``LinkSpeed`` is a note that Slurm does not use, and
``BlockSizes`` are how it plans jobs: neither states the rate of links.
"""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.inventories.documents.size_limited_text import MAX_WORD, numbered_lines
from shardwright.hardware.inventories.node_facts import Inventory, Switch
from shardwright.hardware.inventories.outputs.slurm_hostlist import expand_hostlist

MAX_NAMES: Final = 262_144
"""Most names of nodes and switches in one file."""
_KEYS: Final = ("switchname", "blockname", "nodes", "switches", "linkspeed", "blocksizes")
_HINT: Final = "SwitchName=leaf1 Nodes=gpu[01-16]"


def is_slurm_topology(text: str) -> bool:
    """True if the text has a line of a switch or of a block."""
    return (
        re.search(r"^[ \t]*(SwitchName|BlockName)=", text, re.MULTILINE | re.IGNORECASE) is not None
    )


def read_slurm_topology(text: str, *, name: str) -> Inventory:
    """Read the switches, or blocks, of Slurm's topology.conf, in the order of the file.

    Raises:
        ClusterError: a line is wrong, a list of names is too long, or a node or switch is below two
            switches.
    """
    switches: list[Switch] = []
    parents: dict[tuple[str, str], Switch] = {}
    names = set[str]()
    for where, line in numbered_lines(text, name=name):
        given = _parse_keys(line, where=where)
        called = given.get("switchname") or given.get("blockname")
        if called is None:
            continue  # a remark, or BlockSizes alone
        below = {
            key: expand_hostlist(given[key], where=where) if key in given else ()
            for key in ("nodes", "switches")
        }
        if (
            len(called) > MAX_WORD
            or called in names
            or bool(below["nodes"]) == bool(below["switches"])
        ):
            raise ClusterError(
                f"{where}: {called[:60]!r} has a second line, or neither nodes nor switches, or"
                " both",
                hint=_HINT,
            )
        names.add(called)
        one = Switch(
            name=called,
            where=where,
            nodes=below["nodes"],
            switches=below["switches"],
            is_block="blockname" in given,
        )
        for key in ((kind, child) for kind, children in below.items() for child in children):
            other = parents.setdefault(key, one)
            if other is not one:
                raise ClusterError(
                    f"{key[1]!r} is below {other.name!r} in {other.where}, and below {one.name!r}"
                    f" in {where}",
                    hint="below one switch each",
                )
        if len(parents) > MAX_NAMES:
            raise ClusterError(
                f"{where}: more than {MAX_NAMES:,} nodes and switches", hint="write a smaller file"
            )
        switches.append(one)
    _require_tree(switches)
    return Inventory(file=name, switches=tuple(switches))


def _parse_keys(line: str, *, where: str) -> dict[str, str]:
    """Parse a line of topology.conf into {key in lower case: value}; ClusterError if unknown."""
    given: dict[str, str] = {}
    for word in line.partition("#")[0].split():
        key, equals, value = word.partition("=")
        if not equals or not value or key.lower() not in _KEYS or key.lower() in given:
            raise ClusterError(
                f"{where}: {word[:60]!r} is no key of topology.conf",
                hint=f"{nearest(key[:40].lower(), _KEYS)}; {_HINT}",
            )
        given[key.lower()] = value
    return given


def _require_tree(switches: list[Switch]) -> None:
    """Raise ClusterError for blocks beside switches, a child without a line, or a cycle."""
    known = {one.name: one for one in switches}
    if len({one.is_block for one in switches}) > 1:
        raise ClusterError(
            f"{switches[-1].where}: blocks beside switches", hint="topology.conf has either"
        )
    above = {child: one for one in switches for child in one.switches}
    for child, one in above.items():
        if child not in known:
            raise ClusterError(f"{one.where}: switch {child[:60]!r} has no line", hint=_HINT)
    # Every switch is below at most one other: a switch not reached from a root is in a cycle.
    ends = {one.name for one in switches if one.name not in above}
    waiting = list(ends)
    while waiting:
        for child in known[waiting.pop()].switches:
            ends.add(child)
            waiting.append(child)
    lost = next((one for one in switches if one.name not in ends), None)
    if lost is not None:
        raise ClusterError(
            f"{lost.where}: switch {lost.name[:60]!r} is below itself", hint="switches form a tree"
        )
