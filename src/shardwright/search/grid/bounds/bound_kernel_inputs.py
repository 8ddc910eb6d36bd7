"""Input arrays of the B0 bound kernel: the members' price tables, table rows and pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.closed_form_arrays import Costs, Outer, Patterns, ProblemNumbers
from shardwright.cost.bounds.closed_form_bounds import bound_members
from shardwright.cost.bounds.straggler_jitter import jitter_factor
from shardwright.cost.buffers.communication_buffers import context_bytes
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.step.grid_bytes import reserve_factor
from shardwright.cost.tables.distinct_rows import distinct_rows
from shardwright.cost.tables.grid_memory_choices import TableRows
from shardwright.cost.tables.mesh_table import lies_in_units, mesh_table
from shardwright.cost.tables.model_layer_table import layer_table, tensor_groups_inside
from shardwright.cost.tables.optimizer_update_bytes import (
    frozen_shard_bytes,
    host_update_rate,
    narrow_copies,
    own_gradient_bytes,
    shard_bytes,
    update_bytes,
)
from shardwright.cost.tables.pipeline_chunk_layout import ChunkLayout, block_facts, layout_of
from shardwright.cost.tables.table_cache import cached_table
from shardwright.cost.tables.table_columns import LayerTable, MeshTable
from shardwright.lazy_dataclass import dataclass
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.pipeline_block_arrays import grid_patterns
from shardwright.search.grid.bounds.unequal_group_rows import LineRows, line_rows
from shardwright.search.grid.members.axis_value_columns import distinct
from shardwright.search.grid.members.device_meshes import MeshRows
from shardwright.search.grid.members.enumerate_members import Members
from shardwright.search.grid.members.zero_and_recompute_choices import legal_shards
from shardwright.strategy.grid.model_size_facts import has_experts


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
        """Rows of the member at `place` in the price tables."""
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
        """Outer, recomputed module set and sharding group of a member, by number."""
        chosen, choices = self.members.chosen(place), self.members.inner.choices
        return (
            chosen.outer,
            int(choices.redo_modules[chosen.redo]),
            int(choices.zero_shard[chosen.zero]),
        )

    def _pipeline(self, outer: int) -> tuple[int, int]:
        """(pp, vpp) of an outer choice, which fixes all axes except the memory options."""
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


def with_lines(problem: Problem, prepared: Prepared, outers: BoolArray) -> Prepared:
    """Add price rows along each chain of devices through pipelines with unequal process groups.

    Only the marked outers count. A chain, or line, has one device of each pipeline rank.
    """
    members = prepared.members
    is_cut = (members.meshes.columns["tp"][members.outers.columns["mesh"]] > 1) & (
        row_of_mesh(problem, members) < len(members.meshes)
    )
    return replace(
        prepared, lines=line_rows(problem, members, requested=outers, cut=is_cut.astype(np.int64))
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
    """Mesh-table rows: each mesh with the stream cut over tp, then, with experts, with copies.

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


def block_repeats(problem: Problem) -> FloatArray:
    """(blocks,) number of times that the model runs each of its distinct blocks."""
    repeats = np.zeros(len(problem.model.blocks))
    for run in problem.model.runs:
        repeats[run.block] += run.count
    return repeats


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
    """The price tables of prepared members as arguments of the B0 kernel."""
    return costs_in(problem, prepared.layers, prepared.meshes)


def costs_in(problem: Problem, layers: LayerTable, meshes: MeshTable) -> Costs:
    """Layer and mesh tables as arguments of the B0 kernel."""
    total = layers.seconds.sum(axis=2)
    facts = block_facts(problem.model)
    layer, unit = facts.layer, facts.unit[:, None]
    # Modules that predict further tokens have cores too, and are no layers: a policy leaves them.
    saved, border_across_tiers = (
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
            np.concatenate([border_across_tiers, layers.border])
            .reshape(-1, layers.border.shape[-1])
            .T
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
    """The array as contiguous 64-bit floats."""
    return np.ascontiguousarray(array, dtype=np.float64)


def patterns_of(problem: Problem, prepared: Prepared) -> tuple[Patterns, IntArray, IntArray]:
    """Distinct pipelines as arrays, each outer's pattern, and its first border column."""
    members, units = prepared.members, tuple(tier.num_devices for tier in problem.cluster.tiers())
    outer, mesh = members.outers.columns, members.meshes.columns
    mesh_of = outer["mesh"]
    pp, stride = mesh["pp"][mesh_of], mesh["s_pp"][mesh_of]
    crosses_several = np.zeros(len(mesh_of), dtype=np.bool_)
    border = np.full(len(mesh_of), len(units) - 1, dtype=np.int64)
    for tier in range(len(units) - 2, -1, -1):
        border[stride < units[tier]] = tier
        crosses_several |= (stride < units[tier]) & (pp * stride > units[tier])
    if crosses_several.any():
        crosses_several &= lies_in_units(DegreeRows(columns=mesh), units)[mesh_of]
    pipelines = {
        "pp": pp,
        "vpp": outer["vpp"],
        "border": border,
        "apart": np.where(crosses_several, stride, 0),
    }
    patterns, row = grid_patterns(problem, members.space, prepared.layouts, pipelines, units=units)
    return patterns, row, np.where(crosses_several, prepared.layers.border[..., 0].size, 0)


def least_jitter(problem: Problem, devices: int) -> float:
    """Jitter factor for a lower bound: the step's factor, reduced by the rounding of clocks.

    Clocks of B1 and S are whole picoseconds, and no task is shorter than a microsecond.
    """
    return jitter_factor(problem, devices) * (1 - 1e-6)


def jitters(problem: Problem, devices: IntArray) -> FloatArray:
    """(n,) jitter factors for lower bounds of many plans, by their numbers of devices."""
    numbers, place = np.unique(devices, return_inverse=True)
    return _jitters(Same(problem), tuple(numbers.tolist()))[place.reshape(-1)]


@lru_cache(maxsize=64)
def _jitters(problem: Same[Problem], devices: tuple[int, ...]) -> FloatArray:
    """Cached jitter factors for each number of devices."""
    return np.array([least_jitter(problem.value, number) for number in devices])


def facts_of(problem: Problem, *, devices: int, capacity: float) -> ProblemNumbers:
    """Constants of the problem for the B0 kernel."""
    device, runtime, job = problem.cluster.node.accelerator, problem.runtime, problem.job
    kinds = [i for i, b in enumerate(problem.model.blocks) if b.is_layer]
    return ProblemNumbers(
        # Reserved bytes are whole, rounded down: less than one more byte still fits.
        capacity=capacity + 1.0,
        workspace=float(runtime.workspace_bytes),
        context=float(context_bytes(problem)),
        # As if all parameters were as narrow as those of GEMMs: at most the bytes of any mixture.
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
    """B0 of every member: seconds (inf if memory cannot fit), and bytes of the fullest rank."""
    if not prepared.members.num_members:
        return np.empty(0), np.empty(0)
    facts = facts_of(problem, devices=prepared.members.space.devices, capacity=capacity)
    return bound_with(problem, prepared, costs_of(problem, prepared), facts)


def bound_with(
    problem: Problem, prepared: Prepared, costs: Costs, facts: ProblemNumbers
) -> tuple[FloatArray, FloatArray]:
    """B0 of every member under given price tables and constants: seconds and bytes."""
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
