"""Arrays of the B0 kernel from members: prices of their layer and mesh rows, and their
pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.closed_form_arrays import Costs, Facts, Outer, Patterns
from shardwright.cost.bounds.closed_form_bounds import bound_members
from shardwright.cost.bounds.longest_path import jitter_factor
from shardwright.cost.buffers.communication_buffers import context_bytes
from shardwright.cost.degree_columns import Rows
from shardwright.cost.step.grid_bytes import reserve_factor
from shardwright.cost.tables.bytes_per_parameter import (
    frozen_shard_bytes,
    host_update_rate,
    narrow_copies,
    own_gradient_bytes,
    shard_bytes,
    update_bytes,
)
from shardwright.cost.tables.distinct_rows import distinct_rows
from shardwright.cost.tables.grid_rows import TableRows
from shardwright.cost.tables.layers_by_chunk import ChunkLayout, block_facts, layout_of
from shardwright.cost.tables.mesh_table import lies_in_units, mesh_table
from shardwright.cost.tables.problem_tables import layer_table, tensor_groups_inside
from shardwright.cost.tables.row_cache import cached_table
from shardwright.cost.tables.table_columns import LayerTable, MeshTable
from shardwright.lazy_dataclass import dataclass
from shardwright.program.identity_keys import Same
from shardwright.program.problem import Problem
from shardwright.search.grid.bounds.layer_spread_arrays import grid_patterns
from shardwright.search.grid.bounds.pipeline_lines import LineRows, line_rows
from shardwright.search.grid.members.choice_columns import distinct
from shardwright.search.grid.members.device_meshes import Meshes
from shardwright.search.grid.members.member_arrays import Members
from shardwright.search.grid.members.memory_choices import legal_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Price tables, and the row of each outer in them.

    Args:
        layer_row, mesh_row: (outers,) rows; the layer row is that of the first set of modules, the
            mesh row that of shard option 0 (of the meshes that copy tokens over tp where experts
            are cut like the MLP).
        layouts: by (pp, vpp).
        lines: of members whose groups do not all lie alike, which the rows price by the cheapest
            that some group may take; None = not asked for, or none.
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
        """Layer rows under one set of modules."""
        return len(self.layers.logits_bytes) // len(self.members.space.modules)

    def priced(self, place: int) -> TableRows:
        """Rows of a member in the tables."""
        i, redo, shard = self._rows_behind(place)
        return TableRows(
            layers=self.layers,
            layer_row=int(self.layer_row[i]) + redo * self.layer_rows,
            meshes=self.meshes,
            mesh_row=int(self.mesh_row[i]) + shard,
            layout=self.layouts[self._pipeline(i)],
        )

    def priced_by_way(self, place: int) -> tuple[TableRows, ...]:
        """Rows of a member for each way in which the groups of a device of it may lie, from
        `lines`.
        """
        (i, redo, shard), known = self._rows_behind(place), self.lines
        assert known is not None
        ways, more, layout = (
            slice(known.start[i], known.start[i + 1]),
            redo * known.layer_rows,
            self.layouts[self._pipeline(i)],
        )
        rows = zip(
            (known.layer_row[ways] + more).tolist(),
            (known.mesh_row[ways] + shard).tolist(),
            strict=True,
        )
        return tuple(
            [
                TableRows(
                    layers=known.layers,
                    layer_row=one,
                    meshes=known.meshes,
                    mesh_row=two,
                    layout=layout,
                )
                for one, two in rows
            ]
        )

    def _rows_behind(self, place: int) -> tuple[int, int, int]:
        """The outer of a member, its set of recomputed modules, and its sharding group."""
        chosen, choices = self.members.chosen(place), self.members.inner.choices
        return (
            chosen.outer,
            int(choices.redo_modules[chosen.redo]),
            int(choices.zero_shard[chosen.zero]),
        )

    def _pipeline(self, outer: int) -> tuple[int, int]:
        columns = self.members.outers.columns
        return int(self.members.meshes.columns["pp"][columns["mesh"][outer]]), int(
            columns["vpp"][outer]
        )


def prepare(problem: Problem, members: Members) -> Prepared:
    """Price tables of the members, each distinct row priced once."""
    layer_rows, layer_row = _layer_rows(problem, members)
    layer_rows, place = cached_table(distinct_rows, problem, layer_rows)
    layer_row = place[layer_row]
    mesh_rows, shard = _mesh_rows(problem, members)
    return Prepared(
        members=members,
        layers=cached_table(
            layer_table,
            problem,
            layer_rows,
            sets=len(members.space.modules),
            modules=members.space.modules,
        ),
        meshes=cached_table(mesh_table, problem, mesh_rows, shard=shard),
        layer_row=layer_row,
        mesh_row=row_of_mesh(problem, members) * len(members.space.of("shard")),
        layouts=layouts_of(problem, members),
    )


def with_lines(problem: Problem, prepared: Prepared, some: BoolArray) -> Prepared:
    """`prepared` with the lines of those of `some` outers whose process groups lie unequally."""
    members = prepared.members
    cut = (members.meshes.columns["tp"][members.outers.columns["mesh"]] > 1) & (
        row_of_mesh(problem, members) < len(members.meshes)
    )
    return replace(prepared, lines=line_rows(problem, members, some=some, cut=cut.astype(np.int64)))


def layouts_of(problem: Problem, members: Members) -> dict[tuple[int, int], ChunkLayout]:
    """Blocks of every chunk of the members' pipelines, by (pp, vpp)."""
    outer = members.outers.columns
    first, last = members.space.first, members.space.last
    pipelines, _ = distinct(
        {"pp": members.meshes.columns["pp"][outer["mesh"]], "vpp": outer["vpp"]}
    )
    cuts = zip(pipelines["pp"].tolist(), pipelines["vpp"].tolist(), strict=True)
    return {
        (pp, vpp): layout_of(problem.model, pp=pp, vpp=vpp, first=first, last=last)
        for pp, vpp in cuts
    }


_MESH_ROW: Final = ("tp", "cp", "ep", "etp", "dp", "pp", "s_tp", "s_cp", "s_dp", "s_pp")


def _layer_rows(problem: Problem, members: Members) -> tuple[Rows, IntArray]:
    outer, mesh = members.outers.columns, members.meshes.columns
    at = outer["mesh"]
    columns = {name: mesh[name][at] for name in _MESH_ROW}
    inside = tensor_groups_inside(Rows(columns=mesh), island=problem.cluster.node.island)
    columns["within"] = inside[at].astype(np.int64)
    if not _has_experts(problem):
        columns |= {name: np.ones_like(at) for name in ("dp", "pp", "s_dp", "s_pp")}
    # A group of one has no place on the network.
    columns["s_tp"] = np.where(columns["tp"] > 1, columns["s_tp"], 1)
    columns["s_cp"] = np.where(columns["cp"] > 1, columns["s_cp"], 1)
    columns |= {
        "sp": outer["sp"],
        "ulysses": outer["ulysses"],
        "gather": outer["gather"],
        "mbs": outer["mbs"],
    }
    few, place = distinct(columns)
    return Rows(columns=few), place


def rows_of_meshes(problem: Problem, meshes: Meshes) -> Rows:
    """The meshes with the stream cut over tp; for models with experts, the same again with
    copies of the stream, as they hold other parts of experts.
    """
    times = 1 + _has_experts(problem)
    columns = {name: np.tile(meshes.columns[name], times) for name in _MESH_ROW}
    ones = np.ones_like(columns["tp"])
    cut = (columns["tp"] > 1) & (np.arange(len(ones)) < len(meshes))
    return Rows(
        columns=columns
        | {"sp": cut.astype(np.int64), "ulysses": ones, "gather": 0 * ones, "mbs": ones}
    )


def row_of_mesh(problem: Problem, members: Members) -> IntArray:
    """(outers,) the row of each outer's mesh among `rows_of_meshes`."""
    outer = members.outers.columns
    copied = (
        _has_experts(problem)
        & (outer["sp"] == 0)
        & (members.meshes.columns["tp"][outer["mesh"]] > 1)
    )
    row: IntArray = outer["mesh"] + copied * len(members.meshes)
    return row


def _has_experts(problem: Problem) -> bool:
    return any(o.experts is not None for b in problem.model.blocks for o in b.operators)


def _mesh_rows(problem: Problem, members: Members) -> tuple[Rows, IntArray]:
    """Each row of a mesh with each sharding group; for illegal groups the whole."""
    rows, shards = (
        rows_of_meshes(problem, members.meshes),
        [int(s) for s in members.space.of("shard")],
    )
    columns = {name: np.repeat(column, len(shards)) for name, column in rows.columns.items()}
    return Rows(columns=columns), legal_shards(
        Rows(columns=columns), np.tile(np.array(shards, dtype=np.int64), len(rows))
    )


_SUMS: Final = (
    *(
        "gather",
        "reduce",
        "all_reduce",
        "fetch",
        "refetch",
        "scatter",
        "apart",
        "dense",
        "experts",
        "spread",
        "shard",
        "expert_shard",
    ),
    *("frozen", "frozen_dense", "frozen_experts", "regathered"),
)


def costs_of(problem: Problem, prepared: Prepared) -> Costs:
    """The price tables in the form of the B0 kernel."""
    return costs_in(problem, prepared.layers, prepared.meshes)


def costs_in(problem: Problem, layers: LayerTable, meshes: MeshTable) -> Costs:
    """Layer and mesh tables in the form of the B0 kernel."""
    total = layers.seconds.sum(axis=2)
    of = block_facts(problem.model)
    layer, unit = of.layer, of.unit[:, None]
    # Modules that predict further tokens have cores too, and are no layers: a policy leaves them.
    saved, farther = (
        layers.saved_bytes.copy(),
        np.minimum.accumulate(layers.border[:, ::-1], axis=1)[:, ::-1],
    )
    saved[:, 1] = np.where(layer[:, None], saved[:, 1], saved[:, 0])
    return Costs(
        forward=_floats(total[:, 0]),
        backward=_floats(total[:, 1] + total[:, 2]),
        selective=_floats(np.where(layer[:, None], total[:, 3], 0.0)),
        full=_floats(total[:, 4]),
        saved=_floats(saved),
        transient=_floats(np.where(layer[:, None], layers.transient_bytes, 0)),
        border=_floats(
            np.concatenate([farther, layers.border]).reshape(-1, layers.border.shape[-1]).T
        ),
        logits=_floats(layers.logits_bytes),
        **{name: _floats(getattr(meshes.sync, name)) for name in _SUMS},
        unit=_floats(meshes.sync.gathered * unit),
        root=_floats(meshes.sync.gathered * ~unit),
        norm=_floats(meshes.norm_s),
        tied=_floats(np.stack([meshes.sync.tied_all_reduce, meshes.sync.tied_reduce])),
        passes=_floats(meshes.gradient_bytes),
        table=_floats(meshes.table_bytes),
        logits_blocks=_floats(layers.logits_blocks),
        overlap_buffers=_floats(layers.overlap_buffers),
        copied=_floats(meshes.sync.tied),
        communicators=_floats(meshes.communicator_bytes),
        slowdown=_floats(meshes.slowdown),
        scales=_floats(meshes.scales_s),
        gather_copy=_floats(meshes.gather_copy_s),
        regather_copy=_floats(meshes.regather_copy_s),
        reduce_copy=_floats(meshes.reduce_copy_s),
        host_gradient=_floats(meshes.host_gradient_s),
    )


def _floats(array: IntArray | FloatArray) -> FloatArray:
    return np.ascontiguousarray(array, dtype=np.float64)


def patterns_of(problem: Problem, prepared: Prepared) -> tuple[Patterns, IntArray, IntArray]:
    """The distinct pipelines of the members as arrays, each outer's pattern, and the column of
    `Costs.border` where its borders begin.
    """
    members, units = prepared.members, tuple(tier.num_devices for tier in problem.cluster.tiers())
    outer, mesh = members.outers.columns, members.meshes.columns
    at = outer["mesh"]
    pp, stride = mesh["pp"][at], mesh["s_pp"][at]
    several = np.zeros(len(at), dtype=np.bool_)
    border = np.full(len(at), len(units) - 1, dtype=np.int64)
    for tier in range(len(units) - 2, -1, -1):
        border[stride < units[tier]] = tier
        several |= (stride < units[tier]) & (pp * stride > units[tier])
    if several.any():
        several &= lies_in_units(Rows(columns=mesh), units)[at]
    pipelines = {
        "pp": pp,
        "vpp": outer["vpp"],
        "border": border,
        "apart": np.where(several, stride, 0),
    }
    patterns, row = grid_patterns(problem, members.space, prepared.layouts, pipelines, units=units)
    return patterns, row, np.where(several, prepared.layers.border[..., 0].size, 0)


def least_jitter(problem: Problem, devices: int) -> float:
    """Factor of jitter on a lower bound: that of the step, less what clocks round.

    Clocks of B1 and S are whole picoseconds, and no task is shorter than a microsecond.
    """
    return jitter_factor(problem, devices) * (1 - 1e-6)


def jitters(problem: Problem, devices: IntArray) -> FloatArray:
    """The same factor for each of many plans, by their numbers of devices."""
    numbers, place = np.unique(devices, return_inverse=True)
    return _jitters(Same(problem), tuple(numbers.tolist()))[place.reshape(-1)]


@lru_cache(maxsize=64)
def _jitters(problem: Same[Problem], devices: tuple[int, ...]) -> FloatArray:
    return np.array([least_jitter(problem.value, number) for number in devices])


def facts_of(problem: Problem, *, devices: int, capacity: float) -> Facts:
    """Numbers of the problem for the B0 kernel."""
    device, runtime, job = problem.cluster.node.accelerator, problem.runtime, problem.job
    kinds = [i for i, b in enumerate(problem.model.blocks) if b.is_layer]
    return Facts(
        # Reserved bytes are whole, rounded down: less than one more byte still fits.
        capacity=capacity + 1.0,
        workspace=float(runtime.workspace_bytes),
        context=float(context_bytes(problem)),
        # As if all parameters were as narrow as those of products: no more than what any mixture
        # holds.
        parameter_bytes=job.parameter.bits / 8 + min(narrow_copies(problem), 0.0),
        shard_bytes=shard_bytes(problem),
        frozen_shard_bytes=frozen_shard_bytes(problem),
        gradient_bytes=runtime.gradient_dtype.bits / 8,
        own_gradient_bytes=float(own_gradient_bytes(problem)),
        state_bytes=float(problem.optimizer.state_bytes),
        prefetch=float(runtime.gather_prefetch),
        reuse=float(runtime.reuse_elements),
        update_bytes=update_bytes(problem),
        bandwidth=device.memory_bandwidth * device.element_efficiency,
        host_rate=host_update_rate(problem, zero=0),
        left_rate=host_update_rate(problem, zero=2),
        jitter=least_jitter(problem, devices),
        every_microbatch=runtime.reduce_every_microbatch,
        gradients_leave=runtime.gradients_on_host,
        overlap_gather=runtime.overlap_param_gather,
        blocks_plain=runtime.blocks_sends(1),
        blocks_several=runtime.blocks_sends(2),
        layer_block=kinds[0] if len(kinds) == 1 else -1,
        blocks=len(problem.model.blocks),
        layer_rows=0,
        reserve=reserve_factor(problem),
    )


def bound_all(
    problem: Problem, prepared: Prepared, *, capacity: float
) -> tuple[FloatArray, FloatArray]:
    """B0 of every member: seconds (inf where memory cannot fit), and bytes before they are rounded
    down.
    """
    if not prepared.members.num_members:
        return np.empty(0), np.empty(0)
    facts = facts_of(problem, devices=prepared.members.space.devices, capacity=capacity)
    return bound_with(problem, prepared, costs_of(problem, prepared), facts)


def bound_with(
    problem: Problem, prepared: Prepared, costs: Costs, facts: Facts
) -> tuple[FloatArray, FloatArray]:
    """B0 of every member with given tables and numbers."""
    members = prepared.members
    outer = members.outers.columns
    patterns, pattern_row, border = patterns_of(problem, prepared)
    inner = members.inner
    return bound_members(
        costs,
        patterns,
        Outer(
            layer=prepared.layer_row,
            mesh=prepared.mesh_row,
            pattern=pattern_row,
            schedule=outer["schedule"],
            microbatches=outer["microbatches"],
            border=border,
            zero_list=inner.zero_key,
            redo_list=inner.redo_key,
            start=members.start,
            jitter=jitters(problem, members.meshes.devices)[outer["mesh"]],
        ),
        inner.choices,
        facts._replace(layer_rows=prepared.layer_rows),
    )
