"""Reader of Kubernetes nodes: ``kubectl get nodes -o json`` or ``-o yaml``.

Facts come from the labels of GPU operators, clouds and Topograph:

| label | of |
|---|---|
| nvidia.com/gpu.product, .count, .memory (MiB), .replicas, .clique | NVIDIA GPU feature discovery |
| amd.com/gpu.product-name, beta.amd.com/gpu.product-name | AMD's node labeller |
| node.kubernetes.io/instance-type, topology.kubernetes.io/zone | kubelet |
| cloud.google.com/gke-accelerator, karpenter.k8s.aws/instance-gpu-name | GKE, Karpenter on AWS |
| fabric.topograph.run/tier-N (0 = nearest), accelerator.topograph.run/domain | Topograph |
| network.topology.nvidia.com/.. | earlier Topograph, for the same |

Devices are what kubelet reports (``status.capacity``), over the replicas of devices shared by time;
where it reports none, the label's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.parse_yaml_without_aliases import parse_yaml
from shardwright.hardware.inventories.documents.size_limited_text import MAX_WORD, whole_number
from shardwright.hardware.inventories.node_facts import FactKind, FoundFact, Inventory, SeenNode
from shardwright.hardware.inventories.outputs.select_schedulable_nodes import kubernetes_state
from shardwright.units import GIB, KIB, MIB

MAX_BRACKETS: Final = 1_000_000
MAX_VALUES: Final = 4_000_000
MAX_DEVICES: Final = 1024
MAX_BYTES: Final = 2**50
MAX_TIERS: Final = 16
_HINT: Final = "what kubectl get nodes -o json, or -o yaml, prints"
_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu")
_PRODUCTS: Final = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
_LABELS: Final = {
    FactKind.INSTANCE: ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    FactKind.ZONE: ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    FactKind.DOMAIN: (
        "nvidia.com/gpu.clique",
        "accelerator.topograph.run/domain",
        "network.topology.nvidia.com/accelerator",
    ),
}
_TIERS: Final = (
    tuple(f"fabric.topograph.run/tier-{number}" for number in range(MAX_TIERS)),
    tuple(f"network.topology.nvidia.com/{name}" for name in ("leaf", "spine", "core")),
)
_QUANTITY: Final = re.compile(r"([0-9]{1,18})(Ki|Mi|Gi|Ti|k|M|G|T|)")
_SCALES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": KIB,
    "Mi": MIB,
    "Gi": GIB,
    "Ti": KIB * GIB,
}


def is_kubernetes(text: str) -> bool:
    """True if the text is JSON, or YAML that begins with a key of Kubernetes."""
    return text.lstrip()[:1] in ("{", "[") or _is_yaml(text)


def _is_yaml(text: str) -> bool:
    """True if the text is YAML that begins with a key of a Kubernetes object."""
    return (
        re.match(r"(?:---[ \t]*\n|#[^\n]*\n|\s)*(?:apiVersion|kind|items|metadata)[ \t]*:", text)
        is not None
    )


def read_kubernetes_nodes(text: str, *, name: str) -> Inventory:
    """Read the nodes with GPUs from ``kubectl get nodes -o json`` or YAML: state and switches too.

    Raises:
        ClusterError: the text is no JSON of nodes or too large, a number is wrong, or devices are
            allocated in parts.
    """
    nodes: dict[str, SeenNode] = {}
    without = 0
    for number, item in enumerate(_node_items(_parse_text(text, name=name), name=name)):
        metadata = _mapping(item, "metadata")
        called = metadata.get("name")
        if (
            not isinstance(called, str)
            or not 0 < len(called) <= MAX_WORD
            or not called.isprintable()
            or called in nodes
        ):
            raise ClusterError(f"{name}: item {number} has no name, or that of another", hint=_HINT)
        where = f"{name}, node {called}"
        facts = _node_facts(
            item,
            {
                key: value
                for key, value in _mapping(metadata, "labels").items()
                if isinstance(value, str)
            },
            where,
        )
        if facts:
            away, remark = kubernetes_state(item)
            remark = " and ".join(one for one in (remark, _unhealthy_remark(item)) if one)
            above = _switch_names(_mapping(metadata, "labels"))
            nodes[called] = SeenNode(
                name=called, where=where, facts=facts, above=above, away=away, remark=remark
            )
        else:
            without += 1
    if not nodes:
        raise ClusterError(
            f"{name}: none of {without} nodes has a GPU",
            hint="nvidia.com/gpu or amd.com/gpu in its capacity says that one has",
        )
    notes = (
        (FoundFact(FactKind.NODES, f"{without} without GPUs, left out", name),) if without else ()
    )
    return Inventory(file=name, nodes=tuple(nodes.values()), notes=notes)


def _parse_text(text: str, *, name: str) -> Any:
    """Parse JSON or YAML text; ClusterError if it is neither or has too many values."""
    if _is_yaml(text):
        return parse_yaml(text, name=name, hint=_HINT)
    if text.count("{") + text.count("[") > MAX_BRACKETS or text.count(",") > MAX_VALUES:
        raise ClusterError(
            f"{name} has too many values",
            hint=f"at most {MAX_BRACKETS:,} objects and {MAX_VALUES:,} values; ask for fewer nodes",
        )

    def refuse_constant(word: str) -> NoReturn:
        """Raise ValueError for NaN or infinity in JSON."""
        raise ValueError(word)

    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ClusterError(f"{name}{where}: no JSON", hint=_HINT) from None


def _node_items(value: Any, *, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the node objects of a list, or the single one; ClusterError if one is no node."""
    items = value.get("items", [value]) if isinstance(value, dict) else value
    if (
        not isinstance(items, list)
        or not items
        or not all(isinstance(item, dict) for item in items)
    ):
        raise ClusterError(f"{name}: no list of nodes", hint=_HINT)
    kind = next((item["kind"] for item in items if item.get("kind", "Node") != "Node"), "Node")
    if kind != "Node":
        raise ClusterError(f"{name}: {str(kind)[:40]!r} is no node", hint=_HINT)
    yield from items


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Mapping under a key; empty where there is none."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _node_facts(
    item: Mapping[str, Any], labels: Mapping[str, str], where: str
) -> tuple[FoundFact, ...]:
    """Facts of a node with GPUs; empty for a node without GPUs, ClusterError for MIG devices."""
    capacity = _mapping(_mapping(item, "status"), "capacity")
    part = next(
        (
            key
            for key in capacity
            if key.startswith("nvidia.com/mig-") and str(capacity[key]) != "0"
        ),
        "",
    )
    if part:
        raise ClusterError(
            f"{where}: {part[:60]} are parts of devices (MIG)",
            hint="clusters are of whole devices: leave the node out",
        )
    devices = _device_count_fact(capacity, labels, where)
    if devices is None:
        return ()
    found = [devices]
    named = next(((key, labels[key]) for key in _PRODUCTS if labels.get(key)), None)
    if named is not None:
        found.append(FoundFact(FactKind.PRODUCT, named[1][:MAX_WORD], f"{where}, {named[0]}"))
    memory = labels.get("nvidia.com/gpu.memory")
    if memory:
        place = f"{where}, nvidia.com/gpu.memory"
        found.append(
            FoundFact(
                FactKind.DEVICE_MEMORY,
                whole_number(memory, what="memory", where=place, most=2**24) * MIB,
                place,
            )
        )
    if isinstance(capacity.get("memory"), str):
        found.append(
            FoundFact(
                FactKind.HOST_MEMORY,
                _parse_quantity(capacity["memory"], where=f"{where}, status.capacity.memory"),
                f"{where}, status.capacity.memory",
            )
        )
    for what, keys in _LABELS.items():
        key = next((key for key in keys if labels.get(key)), "")
        if key:
            found.append(FoundFact(what, labels[key][:MAX_WORD], f"{where}, {key}"))
    return tuple(found)


def _device_count_fact(
    capacity: Mapping[str, Any], labels: Mapping[str, str], where: str
) -> FoundFact | None:
    """Fact of a node's physical GPUs (time-shared replicas divided out); None without GPUs."""
    resource = next((key for key in _RESOURCES if str(capacity.get(key, "0")) != "0"), "")
    if resource:
        place = f"{where}, status.capacity {resource}"
        count = whole_number(
            str(capacity[resource]), what=resource, where=place, most=MAX_DEVICES * MAX_DEVICES
        )
        replicas = whole_number(
            labels.get("nvidia.com/gpu.replicas") or "1",
            what="replicas",
            where=where,
            most=MAX_DEVICES,
        )
        shared = (
            replicas
            if count % replicas == 0 and labels.get("nvidia.com/gpu.sharing-strategy", "") != "none"
            else 1
        )
        return FoundFact(
            FactKind.DEVICES,
            whole_number(str(count // shared), what=resource, where=place, most=MAX_DEVICES),
            place,
        )
    if labels.get("nvidia.com/gpu.count"):
        place = f"{where}, nvidia.com/gpu.count"
        return FoundFact(
            FactKind.DEVICES,
            whole_number(
                labels["nvidia.com/gpu.count"], what="count", where=place, most=MAX_DEVICES
            ),
            place,
        )
    return None


def _unhealthy_remark(item: Mapping[str, Any]) -> str:
    """Remark on devices that kubelet reports but does not allocate; empty where all are healthy."""
    capacity, allocatable = (
        _mapping(_mapping(item, "status"), key) for key in ("capacity", "allocatable")
    )
    for key in _RESOURCES:
        all_of_them, healthy = (
            str(capacity.get(key, "0")),
            str(allocatable.get(key, capacity.get(key, "0"))),
        )
        if (
            all_of_them.isdecimal()
            and healthy.isdecimal()
            and int(healthy[:9]) < int(all_of_them[:9])
        ):
            return f"{healthy[:9]} of {all_of_them[:9]} {key} can be allocated"
    return ""


def _parse_quantity(text: str, *, where: str) -> int:
    """Parse a Kubernetes quantity such as ``2113481272Ki`` as bytes; ClusterError if it is none."""
    match = _QUANTITY.fullmatch(text)
    size = int(match[1]) * _SCALES[match[2]] if match else 0
    if not 0 < size <= MAX_BYTES:
        raise ClusterError(
            f"{where}: {text[:40]!r} is no size of memory", hint="such as 2113481272Ki"
        )
    return size


def _switch_names(labels: Mapping[str, Any]) -> tuple[str, ...]:
    """Switches above a node by its topology labels, nearest first; empty without labels."""
    for keys in _TIERS:
        names: list[str] = []
        for key in keys:
            if not isinstance(labels.get(key), str) or not labels[key]:
                break
            names.append(labels[key][:MAX_WORD])
        if names:
            return tuple(names)
    return ()
