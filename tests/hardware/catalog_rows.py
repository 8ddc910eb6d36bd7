"""Default nodes of catalog entries, for tests that run once for each entry."""

from __future__ import annotations

from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerators_by_name import find_accelerator
from shardwright.hardware.catalog.default_node_table import ROWS
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.cluster import NodeKind
from tests.registries import place, require_members

NODES = place("src/shardwright/hardware/catalog/default_node_table.py", "ROWS")


def require_row(name: str) -> None:
    """Fail where `name` is an accelerator of the catalog without a default node, and say to add it
    to `ROWS`; without a row it would have a node of an unknown host.
    """
    device = find_accelerator(name)
    if device is not None:
        require_members(ROWS, [device.name], NODES)


def node_of(device: Accelerator) -> NodeKind:
    """Default node of an accelerator of the catalog, which must have a row."""
    require_row(device.name)
    return default_node(device)
