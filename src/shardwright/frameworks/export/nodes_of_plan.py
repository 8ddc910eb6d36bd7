"""Nodes that a plan is launched on."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.frameworks.export.exporter import Given, Shortfall
from shardwright.frameworks.export.placement import nodes_in_use


def unlike_nodes(given: Given) -> Iterator[Shortfall]:
    """Nodes of unlike numbers of ranks, where a target has one number for all."""
    sizes = {node.ranks for node in nodes_in_use(given.problem.cluster, given.ranks)}
    if len(sizes) > 1:
        yield Shortfall(
            what=f"nodes of {' and '.join(map(str, sorted(sizes)))} ranks",
            hint="nodes of one size, all of whose devices work",
        )


def nodes_of(given: Given) -> tuple[int, int]:
    """The number of nodes that the plan uses, and the number of ranks on the first node."""
    nodes = tuple(nodes_in_use(given.problem.cluster, given.ranks))
    return len(nodes), nodes[0].ranks
