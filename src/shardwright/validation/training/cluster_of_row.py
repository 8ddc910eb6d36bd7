"""The cluster of a table row: an expression, a file, or devices of one accelerator."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerators_by_name import accelerator_names, find_accelerator
from shardwright.hardware.catalog.default_nodes import default_node, smaller_node
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_expression import MAX_DEVICES, fill_nodes, parse_cluster
from shardwright.hardware.files.read_cluster_file import load_cluster
from shardwright.validation.tables.csv_rows import CLUSTER_FILES
from shardwright.validation.tables.skipped_rows import SkipReason, UnusableRowError
from shardwright.validation.tables.table_facts_from_toml import NetworkCards, TableFacts
from shardwright.validation.training.training_table_columns import TrainingMeasurement

_TERM: Final = re.compile(
    r"([0-9]{1,6})(?: nodes?)? ?[xX] ?(?:([0-9]{1,3}) ?[xX]? )?([A-Za-z0-9][^(),]{0,60}?)"
    r" *(?:[(,].*)?$"
)
_COUNT: Final = re.compile(r"^[0-9]{1,7}\s*[xX]\s*")
_MEMORY: Final = re.compile(r"([0-9]{2,3})\s?[gG](?:i?[bB])?\b")
MIXED: Final = "say its nodes in the column cluster, as h100-sxm:8 + a100-sxm:8"


def row_cluster(row: TrainingMeasurement, *, facts: TableFacts) -> Cluster:
    """The cluster of a row, from its cells `cluster`, or else `gpu`, `gpu_mix` and `inter_net`.

    Raises:
        UnusableRowError: the cells name no cluster, or one without `gpu_count` devices.
    """
    try:
        if row.cluster:
            return _require_device_count(_load_cell_cluster(row.cluster), row=row, text=row.cluster)
        if row.gpu.lower() == "mixed" or " + " in row.gpu_mix:
            return _require_device_count(
                _parse_mixed_cluster(row.gpu_mix), row=row, text=row.gpu_mix
            )
        cards = facts.networks.get(row.inter_net.lower())
        return _uniform_cluster(row, device=_accelerator(row.gpu), cards=cards)
    except ClusterError as error:
        raise UnusableRowError(SkipReason.INCONSISTENT_CONFIGURATION, error.message) from None


def _load_cell_cluster(cell: str) -> Cluster:
    """Cluster of a cell: a cluster file's path, or a cluster expression."""
    return load_cluster(cell) if cell.endswith(CLUSTER_FILES) else parse_cluster(cell)


def _require_device_count(cluster: Cluster, *, row: TrainingMeasurement, text: str) -> Cluster:
    """Return the cluster if it has the row's number of devices, else UnusableRowError."""
    if row.gpu_count and cluster.num_devices != row.gpu_count:
        raise UnusableRowError(
            SkipReason.INCONSISTENT_CONFIGURATION,
            f"{text[:60]} has {cluster.num_devices} devices, not {row.gpu_count}",
        )
    return cluster


def _parse_mixed_cluster(text: str) -> Cluster:
    """Parse a mixed cluster such as ``3 nodes x 4 V100-16GB + 1x4 T4``.

    ``8x H100 + 8x A100`` are devices in the catalog's nodes.
    """
    groups = []
    for term in text.split(" + "):
        match = _TERM.match(term.strip())
        if match is None:
            detail = f"{text[:80]}: {MIXED}" if text else MIXED
            raise UnusableRowError(SkipReason.MIXED_CLUSTER, detail)
        device = _accelerator(match[3])
        count, per_node = int(match[1]), int(match[2] or 0)
        devices = count * (per_node or 1)
        if not 0 < devices <= MAX_DEVICES:
            raise UnusableRowError(
                SkipReason.INCONSISTENT_CONFIGURATION,
                f"{term[:60]}: from 1 to {MAX_DEVICES} devices",
            )
        node = default_node(device)
        if per_node and per_node < node.num_devices:
            node = smaller_node(node, num_devices=per_node)
        groups.append(fill_nodes(node, num_devices=devices, name=device.name))
    names = (
        f"{group.kind.accelerator.name}:{group.count * group.kind.num_devices}" for group in groups
    )
    return Cluster(expression=" + ".join(names), groups=tuple(groups))


def _accelerator(text: str) -> Accelerator:
    """The accelerator that a cell names, also with a count (``8x A100``) or memory (``A100-40G``).

    Raises:
        UnusableRowError: no accelerator has that name.
    """
    bare = _COUNT.sub("", text.strip())
    for name in (text, _MEMORY.sub(r"\1GB", bare), _MEMORY.sub("", bare).strip(" -")):
        device = find_accelerator(name)
        if device is not None:
            return device
    raise UnusableRowError(
        SkipReason.UNKNOWN_ACCELERATOR, f"{text[:60]}: {nearest(text, accelerator_names())}"
    )


def _uniform_cluster(
    row: TrainingMeasurement, *, device: Accelerator, cards: float | NetworkCards | None
) -> Cluster:
    """Cluster of equal nodes of `device`; `cards`: bytes/s of a node's cards, None = usual ones."""
    node, count = default_node(device), row.gpu_count or 0
    size = row.gpus_per_node or node.num_devices
    if size < node.num_devices:
        node = smaller_node(node, num_devices=size)
    if cards is not None:
        bandwidth, efficiency = (
            (cards.bandwidth, cards.efficiency)
            if isinstance(cards, NetworkCards)
            else (cards, node.nic.efficiency)
        )
        nic = replace(
            node.nic,
            bandwidth=bandwidth / node.nics,
            reverse_bandwidth=0.0,
            efficiency=efficiency,
        )
        node = replace(node, nic=nic)
    return Cluster(
        expression=f"{device.name}:{count}",
        groups=(fill_nodes(node, num_devices=count, name=device.name),),
    )
