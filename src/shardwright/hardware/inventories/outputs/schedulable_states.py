"""States of nodes as schedulers print them: nodes on which no job can be placed are left out and
listed.

Source: slurm.schedmd.com/sinfo.html (NODE STATE CODES),
kubernetes.io/docs/concepts/architecture/nodes (conditions) and
kubernetes.io/docs/reference/labels-annotations-taints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.lines_and_numbers import MAX_WORD
from shardwright.hardware.inventories.node_facts import Found, SeenNode, What

MAX_NAMED: Final = 8
"""Nodes that a remark names."""
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
"""States in which a job can be placed, with something that it has to wait for or be allowed to."""
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
"""Marks behind a state of sinfo: * does not answer, $ in a maintenance reservation, @ and ^ about
to restart."""
_AWAY_SUFFIXES: Final = {
    "*": "does not answer",
    "$": "in maintenance",
    "@": "about to restart",
    "^": "about to restart",
}
_TAINTS: Final = "node.kubernetes.io/"
_GPU_TAINTS: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Taints that keep jobs without GPUs away."""


def slurm_state(text: str) -> tuple[str, str]:
    """Why no job can be placed on a node in a state such as ``IDLE+DRAIN`` or ``down*`` (empty =
    one can), and what else is said of it.
    """
    marks = {mark for mark in text if mark in _AWAY_SUFFIXES}
    words = [word.strip(_SUFFIXES) for word in text.upper().split("+")]
    away = [word.lower()[:MAX_WORD] for word in words if word and word not in _RUNS]
    away += [_AWAY_SUFFIXES[mark] for mark in sorted(marks)]
    said = [word.lower() for word in words if word in _SAID]
    said += ["powered off"] if "~" in text and not said else []
    return " and ".join(dict.fromkeys(away)), " and ".join(dict.fromkeys(said))


def kubernetes_state(item: Mapping[str, Any]) -> tuple[str, str]:
    """Why no job can be placed on a Kubernetes node (empty = one can), and which taints a job has
    to tolerate.
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
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def schedulable(
    nodes: Sequence[SeenNode], *, all_nodes: bool
) -> tuple[tuple[SeenNode, ...], tuple[Found, ...]]:
    """The nodes that a job can be placed on (all, with `all_nodes`), and remarks that name those
    that are left out or need something.

    Raises:
        ClusterError: there is none.
    """
    away = [node for node in nodes if node.away]
    kept = nodes if all_nodes else [node for node in nodes if not node.away]
    if not kept and nodes:
        raise ClusterError(
            f"{nodes[0].where}: no job can be placed on any of {len(nodes)} nodes: {named(away)}",
            hint="--all-nodes counts them all the same",
        )
    remarks = (
        [
            Found(
                What.NODES,
                f"{len(away)} {'counted all the same' if all_nodes else 'left out'}: {named(away)}",
                away[0].where,
            )
        ]
        if away
        else []
    )
    said = [node for node in kept if node.remark]
    if said:
        remarks.append(
            Found(What.NODES, f"{len(said)} counted: {named(said, remark=True)}", said[0].where)
        )
    return tuple(kept), tuple(remarks)


def named(nodes: Iterable[SeenNode], *, remark: bool = False) -> str:
    """Names of some nodes by their state:
    ``gpu3, gpu7 (drain); gpu9 (down and does not answer)``.
    """
    by_state: dict[str, list[str]] = {}
    for node in nodes:
        by_state.setdefault(node.remark if remark else node.away, []).append(node.name)
    return "; ".join(
        f"{', '.join(names[:MAX_NAMED])}"
        f"{f' and {len(names) - MAX_NAMED} more' if len(names) > MAX_NAMED else ''}"
        f" ({state})"
        for state, names in by_state.items()
    )
