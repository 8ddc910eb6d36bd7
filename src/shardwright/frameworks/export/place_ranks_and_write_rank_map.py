"""Rank map and host file of an exported plan: node and mesh coordinates of every rank.

Rank r is the plan's device r: devices are numbered node by node, in the order of the cluster's
groups, and a grid is on the first of them. The cost of a plan depends on which ranks share a node,
so another order of the hosts is another plan.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from shardwright.errors import DataError, StrategyError
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    ExportFile,
    PlanToExport,
    one_line,
)
from shardwright.frameworks.export.parse_host_file import HostEntry
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import names
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.grid.axis_coordinates_of_every_device import coordinates
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.stage_splits_and_policies import Stage

RANKS, TABLE, HOSTS = "ranks.json", "ranks.csv", "hostfile"
COORDINATES: Final = names("tp cp dp pp ep etp")
MOST_RANKS: Final = 2**20
"""Most ranks of a map, which has a line for each."""
COLUMNS: Final = ("rank", "node", "local_rank", *COORDINATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """A node with its host name, accelerator kind, zone and ranks.

    Args:
        name: host name.
        zone: zone of the node; empty where the cluster has one zone.
        first: first rank on the node.
        ranks: number of ranks, on the node's first devices.
    """

    name: str
    kind: NodeKind
    zone: str
    first: int
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Assignment of a plan's ranks to nodes, with the layers of each pipeline rank.

    Args:
        grids: grids whose ranks are numbered one after the other, in the target's order of axes:
            one grid, or one for each stage where stages differ.
        nodes: nodes in the order of their ranks.
        named: the user gave the host names; otherwise they are placeholders.
        layers: text for each pipeline rank: numbers of layers and names of other blocks, chunk by
            chunk.
    """

    grids: tuple[Grid, ...]
    nodes: tuple[PlacedNode, ...]
    named: bool
    layers: tuple[str, ...]


def placement_of(
    export: PlanToExport, *, order: Sequence[str] = (), hosts: Sequence[HostEntry] = ()
) -> RankPlacement:
    """Place ranks on nodes in device order, with host names of `hosts` or placeholder names.

    Args:
        order: order of the axes, innermost first, where the target's differs from the plan's.
        hosts: hosts of the nodes in their order; extra hosts at the end stay idle. Empty =
            placeholder names.

    Raises:
        StrategyError: there are more ranks than a map may have. DataError: there are fewer hosts
        than the plan has nodes, more than the cluster has, or one has too few slots.
    """
    grids = tuple(mesh.grid for mesh in export.meshes for _ in mesh.layers) or (export.grid,)
    if export.ranks > MOST_RANKS:
        raise StrategyError(
            f"a map of {export.ranks:,} ranks", hint=f"at most {MOST_RANKS:,}", rule="export.ranks"
        )
    nodes = tuple(nodes_in_use(export.problem.cluster, export.ranks))
    if hosts:
        nodes = _with_host_names(
            nodes, hosts, most=sum(group.count for group in export.problem.cluster.groups)
        )
    if order:
        grids = tuple(replace(grid, order=tuple(order)) for grid in grids)
    return RankPlacement(
        grids=grids, nodes=nodes, named=bool(hosts), layers=_layers_by_pipeline_rank(export)
    )


def placement_files(placement: RankPlacement, *, plan: str, cluster: str) -> tuple[ExportFile, ...]:
    """Files of a placement: rank map as JSON and CSV, and host file with slots.

    Args:
        plan, cluster: names in words.
    """
    return (
        ExportFile(
            name=RANKS,
            text=_rank_map_json(placement, plan=one_line(plan), cluster=one_line(cluster)),
        ),
        ExportFile(name=TABLE, text=_rank_map_csv(placement)),
        ExportFile(
            name=HOSTS,
            text="".join(f"{node.name} slots={node.ranks}\n" for node in placement.nodes),
        ),
    )


def rank_rows(placement: RankPlacement) -> Iterator[tuple[int, ...]]:
    """Yield rank-map rows in rank order: rank, node, local rank, coordinate on each axis."""
    columns: dict[str, list[int]] = {axis: [] for axis in COORDINATES}
    for stage, grid in enumerate(placement.grids):
        for axis, places in coordinates(grid).items():
            columns[axis] += (
                places if axis != "pp" or not stage else [stage + place for place in places]
            )
    for number, node in enumerate(placement.nodes):
        for local in range(node.ranks):
            rank = node.first + local
            yield rank, number, local, *(columns[axis][rank] for axis in COORDINATES)


def nodes_in_use(cluster: Cluster, ranks: int) -> Iterator[PlacedNode]:
    """Nodes that hold the first `ranks` devices of a cluster, with placeholder names."""
    number = first = 0
    for group in cluster.groups:
        for _ in range(group.count):
            if first >= ranks:
                return
            size = group.kind.num_devices
            yield PlacedNode(
                name=f"node{number}",
                kind=group.kind,
                zone=group.zone,
                first=first,
                ranks=min(size, ranks - first),
            )
            number, first = number + 1, first + size


def _with_host_names(
    nodes: Sequence[PlacedNode], hosts: Sequence[HostEntry], *, most: int
) -> tuple[PlacedNode, ...]:
    """Nodes with a host file's names; DataError for few slots or hosts, or over `most` hosts."""
    if not len(nodes) <= len(hosts) <= most:
        needs = f"{len(nodes)} to {most}" if most > len(nodes) else str(most)
        raise DataError(
            f"{len(hosts)} hosts for a plan on {len(nodes)} nodes",
            hint=f"{needs} lines, in the order of the cluster's nodes",
        )
    few = next(
        (
            pair
            for pair in zip(nodes, hosts, strict=False)
            if pair[1].slots and pair[1].slots < pair[0].ranks
        ),
        None,
    )
    if few is not None:
        node, host = few
        raise DataError(
            f"host {host.name} has {host.slots} slots for {node.ranks} ranks",
            hint=f"its node is {node.kind.name}",
        )
    return tuple(replace(node, name=host.name) for node, host in zip(nodes, hosts, strict=False))


def _layers_by_pipeline_rank(export: PlanToExport) -> tuple[str, ...]:
    """Text of blocks and layer ranges, such as ``0-3; 8-11``, for each pipeline rank in order."""
    stride = export.grid.strides()["pp"]
    chunks: list[list[str]] = [[] for _ in range(export.grid.pp)]
    # Lanes of a pipeline whose stages differ are alike.
    for lane in export.plan.lanes[:1] if export.meshes else export.plan.lanes:
        first = 0
        for number, stage in enumerate(lane.stages):
            words, first = _chunk_text(stage, first)
            chunks[number if export.meshes else stage.base // stride].append(words)
    return tuple("; ".join(words) for words in chunks)


def _chunk_text(stage: Stage, first: int) -> tuple[str, int]:
    """(text of a chunk's blocks, layers as ranges from `first`; next chunk's first layer)."""
    words = []
    for item in stage.items:
        if item.name:
            words.append(item.name if item.count <= 1 else f"{item.count} {item.name}")
        elif item.count:
            words.append(f"{first}-{first + item.count - 1}" if item.count > 1 else str(first))
            first += item.count
    return " + ".join(words) or "nothing", first


def _rank_map_csv(placement: RankPlacement) -> str:
    """Rank map as CSV text: a row a rank."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow((*COLUMNS, "host", "device", "layers"))
    stage = COLUMNS.index("pp")
    for row in rank_rows(placement):
        node = placement.nodes[row[1]]
        rows.writerow(
            (
                *row,
                node.name,
                one_line(node.kind.accelerator.name),
                one_line(placement.layers[row[stage]]),
            )
        )
    return out.getvalue()


def _rank_map_json(placement: RankPlacement, *, plan: str, cluster: str) -> str:
    """Rank map as JSON text: a row a rank, one row a line."""
    head = {
        "plan": plan,
        "cluster": cluster,
        "grids": [
            {"order": list(grid.order), **{axis: getattr(grid, axis) for axis in COORDINATES}}
            for grid in placement.grids
        ],
        "layers": [one_line(words) for words in placement.layers],
        "columns": list(COLUMNS),
    }
    nodes = [
        {
            "host": node.name,
            "device": one_line(node.kind.accelerator.name),
            "zone": node.zone,
            "first_rank": node.first,
            "ranks": node.ranks,
        }
        for node in placement.nodes
    ]
    lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in head.items()]
    for name, rows in (("nodes", nodes), ("ranks", list(rank_rows(placement)))):
        inside = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        lines.append(f'"{name}": [\n{inside}\n]')
    return "{" + ",\n".join(lines) + "}\n"
