"""Node states of Slurm and Kubernetes: nodes on which no job can be placed are left out.

Source: slurm.schedmd.com/sinfo.html (NODE STATE CODES),
kubernetes.io/docs/concepts/architecture/nodes (conditions) and
kubernetes.io/docs/reference/labels-annotations-taints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.size_limited_text import MAX_WORD
from shardwright.hardware.inventories.node_facts import FactKind, FoundFact, SeenNode

MAX_NAMED: Final = 8
"""Most nodes that a remark names."""
_SAID: Final = frozenset(
    [
        "RESERVED",
        "RESV",
        "CLOUD",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POW_DN",
        "POWER_DOWN",
        "BLOCKED",
    ]
)
"""States in which a job can be placed after a wait or with a permission; a remark lists them."""
_RUNS: Final = _SAID | frozenset(
    [
        *(
            "IDLE",
            "ALLOCATED",
            "ALLOC",
            "MIXED",
            "MIX",
            "COMPLETING",
            "COMP",
            "PLANNED",
            "PLND",
            "POWERING_UP",
            "POW_UP",
            "POWER_UP",
        ),
        *("POWERED_UP", "DYNAMIC_NORM", "PERFCTRS", "NPC", "EXTERNAL"),
    ]
)
"""States in which a job can be placed, now or after the jobs that run."""
_SUFFIXES: Final = "*~#!%$@^+-"
"""Marks after a state of sinfo: * does not answer, $ in a maintenance reservation, @ and ^ about to
restart.
"""
_AWAY_SUFFIXES: Final = {
    "*": "does not answer",
    "$": "in maintenance",
    "@": "about to restart",
    "^": "about to restart",
}
_TAINTS: Final = "node.kubernetes.io/"
_GPU_TAINTS: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Taints that exclude jobs without GPUs."""


def slurm_state(text: str) -> tuple[str, str]:
    """(reason why no job can be placed, empty = can be; remark) from a Slurm state like ``down*``.

    An empty reason = a job can be placed.
    """
    marks = {mark for mark in text if mark in _AWAY_SUFFIXES}
    words = [word.strip(_SUFFIXES) for word in text.upper().split("+")]
    away = [word.lower()[:MAX_WORD] for word in words if word and word not in _RUNS]
    away += [_AWAY_SUFFIXES[mark] for mark in sorted(marks)]
    said = [word.lower() for word in words if word in _SAID]
    said += ["powered off"] if "~" in text and not said else []
    return " and ".join(dict.fromkeys(away)), " and ".join(dict.fromkeys(said))


def kubernetes_state(item: Mapping[str, Any]) -> tuple[str, str]:
    """(reason why no job can be placed, empty = can be; taints that a job must tolerate).

    An empty reason = a job can be placed.
    """
    spec, status = (
        value if isinstance(value := item.get(key), dict) else {} for key in ("spec", "status")
    )
    away, said = [], []
    for condition in _mappings(status.get("conditions")):
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            away.append("not ready" if condition.get("status") == "False" else "readiness unknown")
    if spec.get("unschedulable"):
        away.append("cordoned")
    for taint in _mappings(spec.get("taints")):
        key, effect = str(taint.get("key"))[:MAX_WORD], taint.get("effect")
        if key.startswith(_TAINTS) and effect in ("NoSchedule", "NoExecute"):
            away.append(key.removeprefix(_TAINTS))
        elif effect in ("NoSchedule", "NoExecute") and key not in _GPU_TAINTS:
            said.append(f"tainted {key}")
    if "cordoned" in away and "unschedulable" in away:
        away.remove("unschedulable")
    return " and ".join(dict.fromkeys(away)), " and ".join(dict.fromkeys(said))


def _mappings(value: object) -> list[Mapping[str, Any]]:
    """Mappings of a list; empty where the value is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def schedulable_nodes(
    nodes: Sequence[SeenNode], *, all_nodes: bool
) -> tuple[tuple[SeenNode, ...], tuple[FoundFact, ...]]:
    """(nodes on which a job can be placed, or all with `all_nodes`; remarks to the user).

    `all_nodes` keeps all nodes.

    Raises:
        ClusterError: no node is left.
    """
    away = [node for node in nodes if node.away]
    kept = nodes if all_nodes else [node for node in nodes if not node.away]
    if not kept and nodes:
        raise ClusterError(
            f"{nodes[0].where}: no job can be placed on any of {len(nodes)} nodes:"
            f" {nodes_by_state_text(away)}",
            hint="--all-nodes counts them all the same",
        )
    remarks = (
        [
            FoundFact(
                FactKind.NODES,
                f"{len(away)} {'counted all the same' if all_nodes else 'left out'}:"
                f" {nodes_by_state_text(away)}",
                away[0].where,
            )
        ]
        if away
        else []
    )
    said = [node for node in kept if node.remark]
    if said:
        remarks.append(
            FoundFact(
                FactKind.NODES,
                f"{len(said)} counted: {nodes_by_state_text(said, remark=True)}",
                said[0].where,
            )
        )
    return tuple(kept), tuple(remarks)


def nodes_by_state_text(nodes: Iterable[SeenNode], *, remark: bool = False) -> str:
    """Text of nodes by state (or by remark): ``gpu3, gpu7 (drain); gpu9 (down)``."""
    by_state: dict[str, list[str]] = {}
    for node in nodes:
        by_state.setdefault(node.remark if remark else node.away, []).append(node.name)
    return "; ".join(
        f"{', '.join(names[:MAX_NAMED])}"
        f"{f' and {len(names) - MAX_NAMED} more' if len(names) > MAX_NAMED else ''}"
        f" ({state})"
        for state, names in by_state.items()
    )
