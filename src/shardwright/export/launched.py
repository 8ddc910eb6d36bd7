"""Nodes that a plan is launched on."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.export.exporter import Given, Shortfall


def unlike_nodes(given: Given) -> Iterator[Shortfall]:
    """Nodes of unlike numbers of devices, where a target has one number for all."""
    sizes = {group.kind.num_devices for group in given.problem.cluster.groups}
    if len(sizes) > 1:
        yield Shortfall(what=f"nodes of {' and '.join(map(str, sorted(sizes)))} devices", hint="nodes of one size")


def nodes_of(given: Given) -> tuple[int, int]:
    """How many nodes the plan's devices are, and devices of each that work; of nodes of one size."""
    size, devices = given.problem.cluster.node.num_devices, given.grid.devices
    nodes = max(-(-devices // size), 1)
    return nodes, devices // nodes
