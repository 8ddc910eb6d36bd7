"""Input arrays of the B0 bound kernel: price tables and pipelines; and its call for all members."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.bounds.closed_form_bounds import bound_members
from shardwright.cost.bounds.compiled_bound_array_records import (
    Costs,
    Outer,
    Patterns,
    ProblemNumbers,
)
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable, MeshTable
from shardwright.cost.tables.mesh_synchronisation_table import lies_in_units
from shardwright.cost.tables.pipeline_chunk_layout import block_facts
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.chunk_block_and_send_patterns import grid_patterns
from shardwright.search.grid.bounds.member_price_tables import Prepared
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import facts_of, jitters


def block_repeats(problem: Problem) -> FloatArray:
    """(blocks,) number of times that the model runs each of its distinct blocks."""
    repeats = np.zeros(len(problem.model.blocks))
    for run in problem.model.runs:
        repeats[run.block] += run.count
    return repeats


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
    """B0 of every member by given prices: seconds (inf if too large), bytes of the fullest rank."""
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
