"""The cluster that a row ran on: an expression or a file in its column `cluster`, or so many of one
accelerator in its usual nodes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.catalog.catalog import accelerator_names, find_accelerator
from shardwright.hardware.catalog.nodes import node_of, smaller_node
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.device import Accelerator
from shardwright.hardware.expression import MAX_DEVICES, fill_nodes, parse_cluster
from shardwright.hardware.files.yaml_cluster import load_cluster
from shardwright.validation.tables.measured_rows import FILES, Measurement
from shardwright.validation.tables.measured_run import SkipReason
from shardwright.validation.tables.table_facts import Cards, Facts

_TERM: Final = re.compile(
    r"([0-9]{1,6})(?: nodes?)? ?[xX] ?(?:([0-9]{1,3}) ?[xX]? )?([A-Za-z0-9][^(),]{0,60}?)"
    r" *(?:[(,].*)?$"
)
_COUNT: Final = re.compile(r"^[0-9]{1,7}\s*[xX]\s*")
_MEMORY: Final = re.compile(r"([0-9]{2,3})\s?[gG](?:i?[bB])?\b")
MIXED: Final = "say its nodes in the column cluster, as h100-sxm:8 + a100-sxm:8"


def row_cluster(row: Measurement, *, facts: Facts) -> Cluster | tuple[SkipReason, str]:
    """The cluster of a row, or why there is none.

    What `cluster` says wins over `gpu`, `gpus_per_node` and `inter_net`; it must have `gpu_count`
    devices.
    """
    try:
        if row.cluster:
            return _said(row)
        if is_mixed(row):
            return _mixed(row)
        device = _accelerator(row.gpu)
        if device is None:
            return (
                SkipReason.UNKNOWN_ACCELERATOR,
                f"{row.gpu[:60]}: {nearest(row.gpu, accelerator_names())}",
            )
        return _of_one_kind(row, device=device, cards=facts.networks.get(row.inter_net.lower()))
    except ClusterError as error:
        return SkipReason.INCONSISTENT_CONFIGURATION, error.message


def is_mixed(row: Measurement) -> bool:
    """Its devices are of several kinds, by its own words."""
    return row.gpu.lower() == "mixed" or " + " in row.gpu_mix


def _mixed(row: Measurement) -> Cluster | tuple[SkipReason, str]:
    """Groups of nodes in the words of `gpu_mix`, ``3 nodes x 4 V100-16GB + 1x4 T4``; ``8x H100 + 8x
    A100`` are devices in usual nodes.
    """
    groups = []
    for words in row.gpu_mix.split(" + "):
        found = _TERM.match(words.strip())
        if found is None:
            return (
                SkipReason.MIXED_CLUSTER,
                f"{row.gpu_mix[:80]}: {MIXED}" if row.gpu_mix else MIXED,
            )
        device = _accelerator(found[3])
        if device is None:
            return (
                SkipReason.UNKNOWN_ACCELERATOR,
                f"{found[3][:60]}: {nearest(found[3], accelerator_names())}",
            )
        first, second = int(found[1]), int(found[2] or 0)
        kind, count = node_of(device), first * (second or 1)
        if not 0 < count <= MAX_DEVICES:
            return (
                SkipReason.INCONSISTENT_CONFIGURATION,
                f"{words[:60]}: from 1 to {MAX_DEVICES} devices",
            )
        if second and second < kind.num_devices:
            kind = smaller_node(kind, num_devices=second)
        groups.append(fill_nodes(kind, num_devices=count, name=device.name))
    names = (
        f"{group.kind.accelerator.name}:{group.count * group.kind.num_devices}" for group in groups
    )
    cluster = Cluster(expression=" + ".join(names), groups=tuple(groups))
    if row.gpu_count and cluster.num_devices != row.gpu_count:
        return (
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"{row.gpu_mix[:60]} has {cluster.num_devices} devices, not {row.gpu_count}",
        )
    return cluster


def _accelerator(words: str) -> Accelerator | None:
    """The accelerator of a cell, also where it says how many (``8x A100``) or short of how much
    memory (``A100-40G``).
    """
    bare = _COUNT.sub("", words.strip())
    ways = (words, _MEMORY.sub(r"\1GB", bare), _MEMORY.sub("", bare).strip(" -"))
    return next((found for way in ways if (found := find_accelerator(way))), None)


def _said(row: Measurement) -> Cluster | tuple[SkipReason, str]:
    cluster = (
        load_cluster(row.cluster) if row.cluster.endswith(FILES) else parse_cluster(row.cluster)
    )
    if row.gpu_count and cluster.num_devices != row.gpu_count:
        words = f"{row.cluster[:60]} has {cluster.num_devices} devices, not {row.gpu_count}"
        return SkipReason.INCONSISTENT_CONFIGURATION, words
    return cluster


def _of_one_kind(row: Measurement, *, device: Accelerator, cards: float | Cards | None) -> Cluster:
    """Nodes of the printed size with the printed network, else the catalog's node."""
    kind, count = node_of(device), row.gpu_count or 0
    size = row.gpus_per_node or kind.num_devices
    if size < kind.num_devices:
        kind = smaller_node(kind, num_devices=size)
    if cards is not None:
        known = (
            cards
            if isinstance(cards, Cards)
            else Cards(bandwidth=cards, efficiency=kind.nic.efficiency, because="")
        )
        nic = replace(
            kind.nic,
            bandwidth=known.bandwidth / kind.nics,
            reverse_bandwidth=0.0,
            efficiency=known.efficiency,
        )
        kind = replace(kind, nic=nic)
    return Cluster(
        expression=f"{device.name}:{count}",
        groups=(fill_nodes(kind, num_devices=count, name=device.name),),
    )
