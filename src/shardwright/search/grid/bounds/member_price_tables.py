"""Price tables of a set of members, and each member's rows in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import (
    with_free_parts_of_blocks,
    with_free_parts_of_sums,
)
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table, tensor_groups_inside
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable, MeshTable
from shardwright.cost.tables.grid_rows_and_memory_settings import TableRows
from shardwright.cost.tables.mesh_synchronisation_table import mesh_table
from shardwright.cost.tables.pipeline_chunk_layout import ChunkLayout, layout_of
from shardwright.cost.tables.rows_with_distinct_costs import distinct_rows
from shardwright.cost.tables.table_cache import cached_table
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.table_rows_of_chains_with_unequal_groups import (
    LineRows,
    line_rows,
)
from shardwright.search.grid.members.enumerate_members import Members
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import distinct
from shardwright.search.grid.members.legal_degrees_and_axis_orders import MeshRows
from shardwright.search.grid.members.zero_and_recompute_choices import legal_shards
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Price tables of a set of members, and the table rows of each choice without memory options.

    Args:
        layer_row, mesh_row: (outers,) rows; the layer row is that of the first module set, the mesh
            row that of shard option 0 (of the meshes that copy tokens over tp if experts are cut
            like the MLP).
        layouts: blocks of every chunk, by (pp, vpp).
        lines: rows of members whose groups differ in placement, which the tables price by the
            cheapest placement of any group; None = not requested, or no such members.
    """

    members: Members
    layers: LayerTable
    meshes: MeshTable
    layer_row: IntArray
    mesh_row: IntArray
    layouts: Mapping[tuple[int, int], ChunkLayout]
    lines: LineRows | None = None

    @property
    def layer_rows(self) -> int:
        """Number of layer rows under one set of recomputed modules."""
        return len(self.layers.logits_bytes) // len(self.members.space.modules)

    def priced(self, place: int) -> TableRows:
        """Price-table rows of the member at `place`: layer row, mesh row, and its layout."""
        i, redo, shard = self._table_place(place)
        return TableRows(
            layers=self.layers,
            layer_row=int(self.layer_row[i]) + redo * self.layer_rows,
            meshes=self.meshes,
            mesh_row=int(self.mesh_row[i]) + shard,
            layout=self.layouts[self._pipeline(i)],
        )

    def priced_by_way(self, place: int) -> tuple[TableRows, ...]:
        """Table rows of a member for each placement of a device's groups, from `lines`."""
        (i, redo, shard), lines = self._table_place(place), self.lines
        assert lines is not None
        ways, module_offset, layout = (
            slice(lines.start[i], lines.start[i + 1]),
            redo * lines.layer_rows,
            self.layouts[self._pipeline(i)],
        )
        rows = zip(
            (lines.layer_row[ways] + module_offset).tolist(),
            (lines.mesh_row[ways] + shard).tolist(),
            strict=True,
        )
        return tuple(
            [
                TableRows(
                    layers=lines.layers,
                    layer_row=layer_row,
                    meshes=lines.meshes,
                    mesh_row=mesh_row,
                    layout=layout,
                )
                for layer_row, mesh_row in rows
            ]
        )

    def _table_place(self, place: int) -> tuple[int, int, int]:
        """(outer, recomputed module set, sharding group) indices of the member at `place`."""
        chosen, choices = self.members.chosen(place), self.members.inner.choices
        return (
            chosen.outer,
            int(choices.redo_modules[chosen.redo]),
            int(choices.zero_shard[chosen.zero]),
        )

    def _pipeline(self, outer: int) -> tuple[int, int]:
        """(pp, vpp) of outer choice number `outer`, which fixes all axes except memory options."""
        columns = self.members.outers.columns
        return int(self.members.meshes.columns["pp"][columns["mesh"][outer]]), int(
            columns["vpp"][outer]
        )


def prepare(problem: Problem, members: Members) -> Prepared:
    """Compute the price tables of the members, with each distinct row priced once."""
    layer_rows, layer_row = _layer_rows(problem, members)
    layer_rows, place = cached_table(distinct_rows, problem, layer_rows)
    layer_row = place[layer_row]
    mesh_rows, shard = _mesh_rows(problem, members)
    return Prepared(
        members=members,
        layers=cached_table(
            layer_table,
            with_free_parts_of_blocks(problem),
            layer_rows,
            sets=len(members.space.modules),
            modules=members.space.modules,
        ),
        meshes=cached_table(mesh_table, with_free_parts_of_sums(problem), mesh_rows, shard=shard),
        layer_row=layer_row,
        mesh_row=row_of_mesh(problem, members) * len(members.space.of("shard")),
        layouts=layouts_of(problem, members),
    )


def with_lines(problem: Problem, prepared: Prepared, outers: BoolArray) -> Prepared:
    """Add price rows along each device chain of marked outers whose process groups lie unequally.

    Only the marked outers count. A chain, or line, has one device of each pipeline rank.
    """
    members = prepared.members
    is_cut = (members.meshes.columns["tp"][members.outers.columns["mesh"]] > 1) & (
        row_of_mesh(problem, members) < len(members.meshes)
    )
    return replace(
        prepared,
        lines=line_rows(problem, members, requested=outers, stream_cut=is_cut.astype(np.int64)),
    )


def layouts_of(problem: Problem, members: Members) -> dict[tuple[int, int], ChunkLayout]:
    """Blocks of every chunk of the members' pipelines, by (pp, vpp)."""
    outer = members.outers.columns
    first, last = members.space.first, members.space.last
    pipelines, _ = distinct(
        {"pp": members.meshes.columns["pp"][outer["mesh"]], "vpp": outer["vpp"]}
    )
    splits = zip(pipelines["pp"].tolist(), pipelines["vpp"].tolist(), strict=True)
    return {
        (pp, vpp): layout_of(problem.model, pp=pp, vpp=vpp, first=first, last=last)
        for pp, vpp in splits
    }


_MESH_ROW: Final = ("tp", "cp", "ep", "etp", "dp", "pp", "s_tp", "s_cp", "s_dp", "s_pp")


def _layer_rows(problem: Problem, members: Members) -> tuple[DegreeRows, IntArray]:
    """Distinct layer-table rows of the outers, and each outer's row."""
    outer, mesh = members.outers.columns, members.meshes.columns
    mesh_of = outer["mesh"]
    columns = {name: mesh[name][mesh_of] for name in _MESH_ROW}
    inside = tensor_groups_inside(DegreeRows(columns=mesh), island=problem.cluster.node.island)
    columns["within"] = inside[mesh_of].astype(np.int64)
    if not has_experts(problem.model):
        columns |= {name: np.ones_like(mesh_of) for name in ("dp", "pp", "s_dp", "s_pp")}
    # A group of one has no place on the network.
    columns["s_tp"] = np.where(columns["tp"] > 1, columns["s_tp"], 1)
    columns["s_cp"] = np.where(columns["cp"] > 1, columns["s_cp"], 1)
    columns |= {
        "sp": outer["sp"],
        "ulysses": outer["ulysses"],
        "gather": outer["gather"],
        "mbs": outer["mbs"],
    }
    distinct_rows_, place = distinct(columns)
    return DegreeRows(columns=distinct_rows_), place


def rows_of_meshes(problem: Problem, meshes: MeshRows) -> DegreeRows:
    """Mesh-table rows: each mesh with the stream cut over tp, then, with experts, with it uncut.

    Ranks with copies of the stream hold other parts of the experts.
    """
    times = 1 + has_experts(problem.model)
    columns = {name: np.tile(meshes.columns[name], times) for name in _MESH_ROW}
    ones = np.ones_like(columns["tp"])
    cut = (columns["tp"] > 1) & (np.arange(len(ones)) < len(meshes))
    return DegreeRows(
        columns=columns
        | {"sp": cut.astype(np.int64), "ulysses": ones, "gather": 0 * ones, "mbs": ones}
    )


def row_of_mesh(problem: Problem, members: Members) -> IntArray:
    """(outers,) row of each outer's mesh among `rows_of_meshes`."""
    outer = members.outers.columns
    copied = (
        has_experts(problem.model)
        & (outer["sp"] == 0)
        & (members.meshes.columns["tp"][outer["mesh"]] > 1)
    )
    row: IntArray = outer["mesh"] + copied * len(members.meshes)
    return row


def _mesh_rows(problem: Problem, members: Members) -> tuple[DegreeRows, IntArray]:
    """Mesh-table rows crossed with sharding group sizes; an illegal size stands for all holders."""
    rows, shards = (
        rows_of_meshes(problem, members.meshes),
        [int(s) for s in members.space.of("shard")],
    )
    columns = {name: np.repeat(column, len(shards)) for name, column in rows.columns.items()}
    return DegreeRows(columns=columns), legal_shards(
        DegreeRows(columns=columns), np.tile(np.array(shards, dtype=np.int64), len(rows))
    )
