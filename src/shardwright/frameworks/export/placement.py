"""The rank map and the host file of an exported plan: the node and the place on each axis of every
rank.

Rank r is the plan's device r: devices are numbered node by node, in the order of the cluster's
groups, and a grid is on the first of them. What a plan costs depends on which ranks share a node,
so that another order of the hosts is another plan.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from shardwright.errors import DataError, StrategyError
from shardwright.frameworks.export.exporter import ExportFile, Given, one_line
from shardwright.frameworks.export.hosts import Host
from shardwright.frameworks.settings.name_lists import names
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.lazy_dataclass import dataclass
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.rank_coordinates import coordinates
from shardwright.strategy.plan.stages import Stage

RANKS, TABLE, HOSTS = "ranks.json", "ranks.csv", "hostfile"
COORDINATES: Final = names("tp cp dp pp ep etp")
MOST_RANKS: Final = 2**20
"""Of a map, which has a line for each."""
COLUMNS: Final = ("rank", "node", "local_rank", *COORDINATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that has ranks.

    Args:
        name: of the host.
        zone: that it is in; empty where the cluster has one.
        first: rank on it.
        ranks: on it, on its first devices.
    """

    name: str
    kind: NodeKind
    zone: str
    first: int
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Ranks on nodes.

    Args:
        grids: whose ranks are numbered one after the other, each in the order that the target has:
            one, or one for each stage of a pipeline whose stages differ.
        nodes: by rank.
        named: somebody gave the hosts' names; else they are ours.
        layers: of each pipeline rank, in words: numbers of layers and names of other blocks, chunk
            by chunk.
    """

    grids: tuple[Grid, ...]
    nodes: tuple[Node, ...]
    named: bool
    layers: tuple[str, ...]


def placement_of(
    given: Given, *, order: Sequence[str] = (), hosts: Sequence[Host] = ()
) -> Placement:
    """The node of each rank of a plan.

    Args:
        order: of the axes, from the innermost, where the target has another than the plan.
        hosts: of the nodes in their order; those behind the last one that is needed stay idle. None
            = placeholders.

    Raises:
        StrategyError: there are more ranks than a map may have. DataError: there are fewer hosts
        than the plan has nodes, more than the cluster has, or one has too few slots.
    """
    grids = tuple(mesh.grid for mesh in given.meshes for _ in mesh.layers) or (given.grid,)
    if given.ranks > MOST_RANKS:
        raise StrategyError(
            f"a map of {given.ranks:,} ranks", hint=f"at most {MOST_RANKS:,}", rule="export.ranks"
        )
    nodes = tuple(nodes_in_use(given.problem.cluster, given.ranks))
    if hosts:
        nodes = _named(
            nodes, hosts, most=sum(group.count for group in given.problem.cluster.groups)
        )
    if order:
        grids = tuple(replace(grid, order=tuple(order)) for grid in grids)
    return Placement(grids=grids, nodes=nodes, named=bool(hosts), layers=_layers(given))


def placement_files(placement: Placement, *, plan: str, cluster: str) -> tuple[ExportFile, ...]:
    """The rank map, as JSON and as a table, and the host file.

    Args:
        plan, cluster: in words.
    """
    return (
        ExportFile(
            name=RANKS, text=_document(placement, plan=one_line(plan), cluster=one_line(cluster))
        ),
        ExportFile(name=TABLE, text=_table(placement)),
        ExportFile(
            name=HOSTS,
            text="".join(f"{node.name} slots={node.ranks}\n" for node in placement.nodes),
        ),
    )


def rank_rows(placement: Placement) -> Iterator[tuple[int, ...]]:
    """The rank map: rows of `COLUMNS`, by rank."""
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


def nodes_in_use(cluster: Cluster, ranks: int) -> Iterator[Node]:
    """Nodes of so many ranks on the first devices of a cluster, with names of ours."""
    number = first = 0
    for group in cluster.groups:
        for _ in range(group.count):
            if first >= ranks:
                return
            size = group.kind.num_devices
            yield Node(
                name=f"node{number}",
                kind=group.kind,
                zone=group.zone,
                first=first,
                ranks=min(size, ranks - first),
            )
            number, first = number + 1, first + size


def _named(nodes: Sequence[Node], hosts: Sequence[Host], *, most: int) -> tuple[Node, ...]:
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


def _layers(given: Given) -> tuple[str, ...]:
    stride = given.grid.strides()["pp"]
    chunks: list[list[str]] = [[] for _ in range(given.grid.pp)]
    # Lanes of a pipeline whose stages differ are alike.
    for lane in given.plan.lanes[:1] if given.meshes else given.plan.lanes:
        first = 0
        for number, stage in enumerate(lane.stages):
            words, first = _words(stage, first)
            chunks[number if given.meshes else stage.base // stride].append(words)
    return tuple("; ".join(words) for words in chunks)


def _words(stage: Stage, first: int) -> tuple[str, int]:
    """The blocks of a chunk whose first layer has that number, and the number of the next one's."""
    words = []
    for item in stage.items:
        if item.name:
            words.append(item.name if item.count <= 1 else f"{item.count} {item.name}")
        elif item.count:
            words.append(f"{first}-{first + item.count - 1}" if item.count > 1 else str(first))
            first += item.count
    return " + ".join(words) or "nothing", first


def _table(placement: Placement) -> str:
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


def _document(placement: Placement, *, plan: str, cluster: str) -> str:
    """A row a line: the map is read by people, too."""
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
