"""Chains of devices through pipelines with unequal process groups, with price-table rows.

A chain, or line, has one device of each pipeline rank.
"""

from __future__ import annotations

import numpy as np

from shardwright import arrays
from shardwright.arrays import BoolArray, IntArray
from shardwright.collectives.groups.span_members_by_network_tier import lie_alike, span_with
from shardwright.cost.gradients.layer_reduce_gather_seconds_and_link_shares import SumSpans
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Network,
    axes_of,
    network_of,
    tokens_copied,
)
from shardwright.cost.network.pipeline_chains_with_distinct_group_placement import (
    INSIDE,
    OF_ULYSSES,
    Lines,
    distinct_lines,
)
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import with_free_parts_of_blocks
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table, tensor_groups_inside
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable, MeshTable
from shardwright.cost.tables.mesh_synchronisation_table import lies_in_units, mesh_table
from shardwright.cost.tables.table_cache import cached_table
from shardwright.hardware.link_and_network_tier import Tier
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.grid.members.enumerate_members import Members
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import (
    Columns,
    distinct,
    first_of_each,
)
from shardwright.search.grid.members.zero_and_recompute_choices import legal_shards

_MESH = ("tp", "cp", "dp", "pp", "ep", "etp", "s_tp", "s_cp", "s_dp", "s_pp")
_DEGREES = ("tp", "cp", "ep", "etp")
_CHOICES = ("sp", "ulysses", "gather", "mbs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRows:
    """Price-table rows of each outer choice for every placement of its process groups.

    Args:
        lines: pipeline lines of the meshes with unequal groups.
        of_outer: (outers,) place in `lines`, -1 = all groups lie alike, or not requested.
        start: (outers + 1,) first entry of each outer in `layer_row` and `mesh_row`, rows as
            in `Prepared`.
        layer_rows: number of layer rows under one set of modules.
    """

    lines: tuple[Lines, ...]
    of_outer: IntArray
    start: IntArray
    layers: LayerTable
    layer_row: IntArray
    meshes: MeshTable
    mesh_row: IntArray
    layer_rows: int


def line_rows(
    problem: Problem, members: Members, *, requested: BoolArray, stream_cut: IntArray
) -> LineRows | None:
    """Device chains of requested outers with unequal groups, with table rows; None if none has.

    Args:
        requested: (outers,) True where lines are requested.
        stream_cut: (outers,) 1 where tp cuts the stream, as in `rows_of_meshes`.
    """
    outer, mesh = members.outers.columns, members.meshes.columns
    if not requested.any():
        return None
    tiers = problem.cluster.tiers()
    degrees = tuple(arrays.distinct(outer["ulysses"][requested]).tolist())
    requested_meshes = arrays.distinct(outer["mesh"][requested])
    unequal_meshes = requested_meshes[
        _groups_differ({name: mesh[name][requested_meshes] for name in _MESH}, tiers, degrees)
    ]
    if not len(unequal_meshes):
        return None
    units = tuple([tier.num_devices for tier in tiers])
    keys = zip(*(mesh[name][unequal_meshes].tolist() for name in _MESH), strict=True)
    shard_sizes = tuple(int(s) for s in members.space.of("shard"))
    lines = tuple(
        [
            distinct_lines(
                tuple(zip(_MESH, key, strict=True)), units, ulysses=degrees, shards=shard_sizes
            )
            for key in keys
        ]
    )
    place = np.full(len(members.meshes), -1, dtype=np.int64)
    place[unequal_meshes] = np.arange(len(unequal_meshes))
    of_outer = np.where(requested, place[outer["mesh"]], -1)
    ways = np.where(
        of_outer >= 0, np.array([mesh_lines.num_ways for mesh_lines in lines])[of_outer], 0
    )
    start = np.concatenate([[0], np.cumsum(ways)])
    outer_of = np.repeat(np.arange(len(ways)), ways)
    pairs = _OuterPlacements(
        lines, outer_of, of_outer[outer_of], np.arange(int(start[-1])) - start[outer_of]
    )
    layers, layer_row = _layers(problem, members, pairs)
    meshes, mesh_row = _meshes(
        problem, members, pairs, stream_cut=stream_cut, shards=np.array(shard_sizes, dtype=np.int64)
    )
    return LineRows(
        lines=lines,
        of_outer=of_outer,
        start=start,
        layers=layers,
        layer_row=layer_row,
        meshes=meshes,
        mesh_row=mesh_row,
        layer_rows=len(layers.logits_bytes) // len(members.space.modules),
    )


def _groups_differ(mesh: Columns, tiers: tuple[Tier, ...], ulysses: tuple[int, ...]) -> BoolArray:
    """(meshes,) True where the groups of some axis differ in their network placement."""
    ones = np.ones_like(mesh["tp"])
    rows = DegreeRows(
        columns={name: mesh[name] for name in _MESH}
        | {"sp": ones, "ulysses": ones, "gather": 0 * ones, "mbs": ones}
    )
    units = tuple([tier.num_devices for tier in tiers])
    equal_placement = lies_in_units(rows, units)
    for axis in ("tp", "etp", "ep", "coset", "edp"):
        equal_placement &= lie_alike(tiers, axes_of(axis, rows))
    # Where cp fills units, Ulysses' runs of it may straddle them.
    for degree in ulysses:
        run = degree * mesh["s_cp"]
        for unit in units[:-1]:
            equal_placement &= (mesh["cp"] % degree != 0) | (unit % run == 0) | (run % unit == 0)
    return ~equal_placement


class _OuterPlacements:
    """Each outer with each placement of its groups.

    Args:
        outer: (pairs,) place of the outer.
        line: (pairs,) place of its mesh among the lines.
        way: (pairs,) number of the placement.
    """

    def __init__(
        self, lines: tuple[Lines, ...], outer: IntArray, line: IntArray, way: IntArray
    ) -> None:
        """Store the pairs and locate each pair's row among the placements of all lines."""
        first = np.concatenate([[0], np.cumsum([mesh_lines.num_ways for mesh_lines in lines])])
        self.lines, self.outer, self.line, self.way = lines, outer, line, way
        self._row = first[line] + way

    def below(self, kind: str, part: IntArray) -> IntArray:
        """(pairs, tiers - 1) most members of group (`kind`, `part`) in a unit of a tier; 0 if none.

        Kinds are those of `pipeline_chains_with_distinct_group_placement.Group`.
        """
        tiers = next(iter(self.lines[0].below.values())).shape[1]
        counts = np.zeros((len(self.outer), tiers), dtype=np.int64)
        for number in arrays.distinct(part).tolist():
            is_part = part == number
            tables = [
                mesh_lines.below.get(
                    (kind, number), np.zeros((mesh_lines.num_ways, tiers), dtype=np.int64)
                )
                for mesh_lines in self.lines
            ]
            counts[is_part] = np.concatenate(tables)[self._row[is_part]]
        return counts


def _layers(
    problem: Problem, members: Members, pairs: _OuterPlacements
) -> tuple[LayerTable, IntArray]:
    """Layer table of the pairs' distinct rows, and each pair's row."""
    outer, mesh, outer_of = members.outers.columns, members.meshes.columns, pairs.outer
    columns = {name: mesh[name][outer["mesh"][outer_of]] for name in _DEGREES} | {
        name: outer[name][outer_of] for name in _CHOICES
    }
    for axis in INSIDE:
        placement = pairs.below(
            axis, columns["ulysses"] if axis in OF_ULYSSES else np.zeros_like(outer_of)
        )
        columns = DegreeRows(columns=columns).where(axis, placement.T).columns
    mesh_rows = DegreeRows(columns={name: mesh[name][outer["mesh"][outer_of]] for name in _MESH})
    columns["within"] = tensor_groups_inside(mesh_rows, island=problem.cluster.node.island).astype(
        np.int64
    )
    distinct_rows, row = distinct(columns)
    strides = dict.fromkeys(
        ("dp", "pp", "s_tp", "s_cp", "s_dp", "s_pp"),
        np.ones(len(distinct_rows["tp"]), dtype=np.int64),
    )
    modules = members.space.modules
    return (
        cached_table(
            layer_table,
            with_free_parts_of_blocks(problem),
            DegreeRows(columns=distinct_rows | strides),
            sets=len(modules),
            modules=modules,
        ),
        row,
    )


def _meshes(
    problem: Problem,
    members: Members,
    pairs: _OuterPlacements,
    *,
    stream_cut: IntArray,
    shards: IntArray,
) -> tuple[MeshTable, IntArray]:
    """Mesh table with a row for each mesh, placement and shard size, and each pair's first row.

    Args:
        stream_cut: see `line_rows`.
        shards: sizes of the space's sharding groups.
    """
    outer, mesh = members.outers.columns, members.meshes.columns
    key = {"mesh": outer["mesh"][pairs.outer], "sp": stream_cut[pairs.outer], "way": pairs.way}
    first, row = first_of_each(key)
    pair_of = np.repeat(first, len(shards))
    expanded = _OuterPlacements(
        pairs.lines, pairs.outer[pair_of], pairs.line[pair_of], pairs.way[pair_of]
    )
    columns = {name: mesh[name][key["mesh"][pair_of]] for name in _MESH} | {
        "sp": key["sp"][pair_of]
    }
    ones = np.ones_like(pair_of)
    rows = DegreeRows(columns=columns | {"ulysses": ones, "gather": 0 * ones, "mbs": ones})
    wanted = np.tile(shards, len(first))
    shard = legal_shards(rows, wanted)
    return mesh_table(
        problem, rows, shard, lying=_gradient_spans(problem, expanded, rows, shard)
    ), row * len(shards)


def _gradient_spans(
    problem: Problem, pairs: _OuterPlacements, rows: DegreeRows, shard: IntArray
) -> tuple[SumSpans, SumSpans]:
    """Network spans of the groups that reduce dense gradients, and of those for expert gradients.

    Experts that are cut like the MLP are reduced with the dense gradients.
    """
    network, holders = (
        network_of(problem.cluster, library=problem.runtime.collective_library),
        rows["cp"] * rows["dp"],
    )
    is_copied = tokens_copied(rows)
    edp = np.where(is_copied, holders, rows["tp"] * holders // (rows["ep"] * rows["etp"]))
    expert_shard = np.gcd(np.maximum(shard * edp // holders, 1), edp)
    dense = _sum_spans(
        pairs, network, is_expert=np.zeros_like(is_copied), members=holders, shard=shard
    )
    return dense, _sum_spans(pairs, network, is_expert=~is_copied, members=edp, shard=expert_shard)


def _sum_spans(
    pairs: _OuterPlacements,
    network: Network,
    *,
    is_expert: BoolArray,
    members: IntArray,
    shard: IntArray,
) -> SumSpans:
    """Spans of the expert-gradient groups where `is_expert` is True, else of the dense groups."""

    def lying(part: IntArray) -> IntArray:
        """Most members in a unit of each tier of gradient groups of shard size `part` (0 = all)."""
        return np.where(
            is_expert[:, None], pairs.below("experts", part), pairs.below("dense", part)
        )

    all_members, is_partial = lying(np.zeros_like(shard)), (shard > 1) & (shard < members)
    inner, outer = (lying(np.where(is_partial, sign * shard, 0)) for sign in (1, -1))
    # Parts with unknown placement are not priced.
    is_known = (inner > 0).all(axis=1) & (outer > 0).all(axis=1)
    sizes = np.where(is_known, shard, 1), np.where(is_known, members // shard, 1), members
    spans = (
        (np.where((size > 1)[:, None], counts, 1), size)
        for counts, size in zip((inner, outer, all_members), sizes, strict=True)
    )
    group_spans = [
        span_with(
            network.tiers, (*counts.T, size), in_network_reduction=network.in_network_reduction
        )
        for counts, size in spans
    ]
    return SumSpans(group_spans[0], group_spans[1], group_spans[2], shard)
