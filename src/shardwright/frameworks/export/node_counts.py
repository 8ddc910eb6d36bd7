"""Number of nodes and ranks per node of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    PlanToExport,
    Shortfall,
)
from shardwright.frameworks.export.place_ranks_and_write_rank_map import nodes_in_use


def unequal_node_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Yield a shortfall if a plan's nodes have different numbers of ranks.

    The target has one number for all nodes.
    """
    sizes = {node.ranks for node in nodes_in_use(export.problem.cluster, export.ranks)}
    if len(sizes) > 1:
        yield Shortfall(
            what=f"nodes of {' and '.join(map(str, sorted(sizes)))} ranks",
            hint="nodes of one size, all of whose devices work",
        )


def node_and_rank_counts(export: PlanToExport) -> tuple[int, int]:
    """(number of nodes that a plan uses, number of ranks on its first node)."""
    nodes = tuple(nodes_in_use(export.problem.cluster, export.ranks))
    return len(nodes), nodes[0].ranks
