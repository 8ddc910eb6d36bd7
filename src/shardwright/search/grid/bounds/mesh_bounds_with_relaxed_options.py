"""Closer lower bound of all members of a mesh: B0 with the best value of every open choice.

It lies between the bound of a mesh's compute (`mesh_bounds`) and B0 of its members. Layers are
priced exactly except for the placement of their groups (as near as possible), and all memory is
counted; gradient reductions, gathers, borders and updates take no time. So choices that memory
rules out are excluded, together with the recompute that would make them fit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.compiled_bound_array_records import Costs, ProblemNumbers
from shardwright.cost.network.grid_groups_and_collective_seconds import axes_of
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import with_free_parts_of_sums
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.cost.tables.mesh_synchronisation_table import scale_waits, untimed_table
from shardwright.cost.tables.table_cache import cached_table
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.bound_kernel_inputs import block_repeats, bound_with, costs_of
from shardwright.search.grid.bounds.layer_times_with_nearest_placement import (
    LAYER,
    NearLayers,
    near_rows,
)
from shardwright.search.grid.bounds.member_price_tables import (
    Prepared,
    layouts_of,
    row_of_mesh,
    rows_of_meshes,
)
from shardwright.search.grid.bounds.mesh_bounds import MARGIN
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import facts_of, jitters
from shardwright.search.grid.members.enumerate_members import ChoiceRows, Members, pipelined
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import (
    Columns,
    extended,
    first_of_each,
    ring_gather,
    select,
)
from shardwright.search.grid.members.grid_search_space import AXES, Space
from shardwright.search.grid.members.legal_degrees_and_axis_orders import MESH, MeshRows
from shardwright.search.grid.members.zero_and_recompute_choices import memory_choices
from shardwright.strategy.grid.grid_rules import GridFacts

NO_ROOM = 1e30
"""Seconds of a mesh without a member that fits: more than any step, but not the infinity of a mesh
without a legal member."""


def relaxed_bounds(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    meshes: MeshRows,
    *,
    capacity: float,
    near: NearLayers | None = None,
    until_s: float = float("inf"),
) -> FloatArray:
    """(meshes,) relaxed B0 seconds of each mesh; NO_ROOM if no member fits, inf if none is legal.

    Args:
        capacity: bytes of a device that a plan may fill.
        near: layers of the meshes, if they are priced already.
        until_s: choices whose layers alone take this many seconds are bounded no further.
    """
    lean = _least_memory_part(space)
    first, place = first_of_each(_distinguishing_columns(problem, meshes))
    meshes = meshes.take(first)
    outers = _outers(lean, facts, meshes)
    layers, layer_row = _layers(problem, meshes, outers, lean, near)
    inner, start, _ = memory_choices(problem, lean, facts, meshes.columns, outers.columns)
    count = np.diff(start)
    bounds, below_limit = _layer_bounds(
        problem, meshes, outers, layers, layer_row, legal=count > 0, until_s=until_s
    )
    if len(below_limit):
        members = Members(
            space=lean,
            meshes=meshes,
            outers=ChoiceRows(columns=select(outers.columns, below_limit)),
            inner=replace(
                inner, zero_key=inner.zero_key[below_limit], redo_key=inner.redo_key[below_limit]
            ),
            start=np.concatenate([start[:1], np.cumsum(count[below_limit])]),
            enumerated=0,
            illegal=0,
            duplicates=0,
        )
        bounds = np.minimum(
            bounds,
            _relaxed_member_bounds(
                problem, members, layers, layer_row[below_limit], capacity=capacity
            ),
        )
    return bounds[place]


def _distinguishing_columns(problem: Problem, meshes: MeshRows) -> Columns:
    """Columns that determine the relaxed members of a mesh.

    Its degrees, the holders of expert states, the inner axis of replicas, and the wait for FP8
    scales.
    """
    rows = rows_of_meshes(problem, meshes).take(np.arange(len(meshes)))
    (below, _), (above, _) = axes_of("edp", rows)
    _, waits = np.unique(scale_waits(problem, rows), return_inverse=True)
    inside = (meshes.columns["s_cp"] < meshes.columns["s_dp"]).astype(np.int64)
    return {name: meshes.columns[name] for name in MESH} | {
        "holders": below * above,
        "inner": inside,
        "waits": waits.reshape(-1),
    }


def _layer_bounds(
    problem: Problem,
    meshes: MeshRows,
    outers: ChoiceRows,
    layers: LayerTable,
    layer_row: IntArray,
    *,
    legal: BoolArray,
    until_s: float,
) -> tuple[FloatArray, IntArray]:
    """(meshes,) least layer seconds of choices that reach `until_s`, else inf; the others' places.

    Layer seconds are averaged over pipeline ranks.
    """
    mesh = outers.columns["mesh"]
    block_seconds = layers.seconds[:, :3].sum(axis=(1, 2))
    factor = jitters(problem, meshes.devices) * MARGIN
    seconds = (
        outers.columns["microbatches"]
        * (block_repeats(problem) @ block_seconds)[layer_row]
        / meshes.columns["pp"][mesh]
        * factor[mesh]
    )
    bounds, is_above = np.full(len(meshes), np.inf), legal & (seconds >= until_s)
    np.minimum.at(bounds, mesh[is_above], seconds[is_above])
    return bounds, np.flatnonzero(legal & ~is_above)


def _relaxed_member_bounds(
    problem: Problem, members: Members, layers: LayerTable, layer_row: IntArray, *, capacity: float
) -> FloatArray:
    """(meshes,) B0 seconds of the best relaxed member; NO_ROOM if none fits, inf if none is legal.

    Only the choices left by `_layer_bounds` count.
    """
    meshes, outer = members.meshes, members.outers.columns
    rows = rows_of_meshes(problem, meshes)
    tables = cached_table(
        untimed_table, with_free_parts_of_sums(problem), rows, shard=rows["cp"] * rows["dp"]
    )
    prepared = Prepared(
        members=members,
        layers=layers,
        meshes=tables,
        layer_row=layer_row,
        mesh_row=row_of_mesh(problem, members),
        layouts=layouts_of(problem, members),
    )
    problem_facts = facts_of(problem, devices=members.space.devices, capacity=capacity)
    seconds, _ = bound_with(
        problem,
        prepared,
        _without_sends(costs_of(problem, prepared)),
        _without_update_time(problem_facts),
    )
    bounds = np.full(len(meshes), np.inf)
    np.minimum.at(bounds, outer["mesh"], np.minimum(members.least_of(seconds) * MARGIN, NO_ROOM))
    return bounds


def _least_memory_part(space: Space) -> Space:
    """The part of `space` with the least memory: full sharding, and the most offload."""
    values = dict(space.values)
    if 0 in values["shard"]:
        values["shard"] = (0,)
    values["offload"] = (max(map(int, space.of("offload"))),)
    return replace(space, values=tuple((axis, values[axis]) for axis in AXES))


def _outers(space: Space, facts: GridFacts, meshes: MeshRows) -> ChoiceRows:
    """Cross meshes with switches, microbatches, chunks and schedules; expert meshes unchecked."""
    columns = {"mesh": np.arange(len(meshes))} | {
        name: meshes.columns[name] for name in (*MESH, "copies")
    }
    for axis in ("sp", "ulysses", "gather"):
        columns = extended(columns, axis, space.of(axis), facts)
    columns = select(
        columns,
        (columns["ulysses"] != columns["cp"])
        | (columns["gather"] == columns["gather"].min(initial=0)),
    )
    return pipelined(space, facts, columns)


def _layers(
    problem: Problem, meshes: MeshRows, outers: ChoiceRows, space: Space, near: NearLayers | None
) -> tuple[LayerTable, IntArray]:
    """Layer table with nested groups, and the row of each outer."""
    outer, mesh = outers.columns, meshes.columns
    columns = {name: mesh[name][outer["mesh"]] if name in mesh else outer[name] for name in LAYER}
    columns["gather"] = ring_gather(columns)
    if near is None or near.modules != space.modules:
        near = near_rows(problem, columns, space.modules)
    return near.table, near.rows_of(columns)


def _without_sends(costs: Costs) -> Costs:
    """The price tables with sends between pipeline ranks that take no time."""
    return costs._replace(border=np.zeros_like(costs.border))


def _without_update_time(facts: ProblemNumbers) -> ProblemNumbers:
    """The problem's constants with optimizer updates that take no time."""
    return facts._replace(bandwidth=np.inf, host_rate=np.inf, left_rate=np.inf)
