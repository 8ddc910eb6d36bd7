"""A closer lower bound of all members of a mesh: B0 of members with the best value of every choice
that is still open.

Between the bound of a mesh's compute (`mesh_bounds`) and B0 of its members: layers are priced
exactly but for where their groups lie (as near as they can), and everything that must be in memory
is; sums of gradients, gathers, borders and updates take no time. What memory leaves no room for is
so ruled out together with whole layers that would have to run again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.closed_form_arrays import Costs, Facts
from shardwright.cost.network.grid_groups import axes_of
from shardwright.cost.tables.mesh_table import scale_waits, untimed_table
from shardwright.cost.tables.row_cache import cached_table
from shardwright.cost.tables.table_columns import LayerTable
from shardwright.program.problem import Problem
from shardwright.search.grid.bounds.bound_arrays import (
    Prepared,
    bound_with,
    costs_of,
    facts_of,
    jitters,
    layouts_of,
    row_of_mesh,
    rows_of_meshes,
)
from shardwright.search.grid.bounds.mesh_bounds import MARGIN
from shardwright.search.grid.bounds.nearest_group_prices import LAYER, NearLayers, near_rows
from shardwright.search.grid.members.choice_columns import Columns, extended, first_of_each, select
from shardwright.search.grid.members.declared_space import AXES, Space
from shardwright.search.grid.members.device_meshes import MESH, Meshes
from shardwright.search.grid.members.member_arrays import Members, Options, chunked
from shardwright.search.grid.members.memory_choices import memory_choices
from shardwright.strategy.grid.grid_rules import GridFacts

NO_ROOM = 1e30
"""Seconds of a mesh none of whose members fits: more than any step, and not the infinity of one
without a legal member."""


def relaxed_bounds(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    meshes: Meshes,
    *,
    capacity: float,
    near: NearLayers | None = None,
    until: float = float("inf"),
) -> FloatArray:
    """(meshes,) lower bound in seconds of all members of each mesh; NO_ROOM where none fits, inf
    where none is legal.

    Args:
        capacity: bytes of a device.
        near: layers of the meshes, if they are priced already.
        until: members whose layers alone take as long are looked at no closer.
    """
    lean = _lean(space)
    first, place = first_of_each(_told_apart(problem, meshes))
    meshes = meshes.take(first)
    outers = _outers(lean, facts, meshes)
    layers, layer_row = _layers(problem, meshes, outers, lean, near)
    inner, start, _ = memory_choices(problem, lean, facts, meshes.columns, outers.columns)
    count = np.diff(start)
    found, close = _by_layers(
        problem, meshes, outers, layers, layer_row, legal=count > 0, until=until
    )
    if len(close):
        members = Members(
            space=lean,
            meshes=meshes,
            outers=Options(columns=select(outers.columns, close)),
            inner=replace(inner, zero_key=inner.zero_key[close], redo_key=inner.redo_key[close]),
            start=np.concatenate([start[:1], np.cumsum(count[close])]),
            enumerated=0,
            illegal=0,
            duplicates=0,
        )
        found = np.minimum(
            found, _by_members(problem, members, layers, layer_row[close], capacity=capacity)
        )
    return found[place]


def _told_apart(problem: Problem, meshes: Meshes) -> Columns:
    """Columns on which relaxed members of a mesh depend: its degrees, the ranks that share
    experts' states, the inner axis of replicas, and the wait for scales.
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


def _by_layers(
    problem: Problem,
    meshes: Meshes,
    outers: Options,
    layers: LayerTable,
    layer_row: IntArray,
    *,
    legal: BoolArray,
    until: float,
) -> tuple[FloatArray, IntArray]:
    """(meshes,) least mean over ranks of the layers' seconds among the legal choices that alone
    put the mesh at `until`; and the other choices.
    """
    mesh = outers.columns["mesh"]
    blocks = np.zeros(len(problem.model.blocks))
    for run in problem.model.runs:
        blocks[run.block] += run.count
    both = layers.seconds[:, :3].sum(axis=(1, 2))
    noise = jitters(problem, meshes.devices) * MARGIN
    spent = (
        outers.columns["microbatches"]
        * (blocks @ both)[layer_row]
        / meshes.columns["pp"][mesh]
        * noise[mesh]
    )
    found, far = np.full(len(meshes), np.inf), legal & (spent >= until)
    np.minimum.at(found, mesh[far], spent[far])
    return found, np.flatnonzero(legal & ~far)


def _by_members(
    problem: Problem, members: Members, layers: LayerTable, layer_row: IntArray, *, capacity: float
) -> FloatArray:
    """(meshes,) B0 of the best member of each choice; NO_ROOM where none fits, inf of no choice."""
    meshes, outer = members.meshes, members.outers.columns
    rows = rows_of_meshes(problem, meshes)
    tables = cached_table(untimed_table, problem, rows, shard=rows["cp"] * rows["dp"])
    prepared = Prepared(
        members=members,
        layers=layers,
        meshes=tables,
        layer_row=layer_row,
        mesh_row=row_of_mesh(problem, members),
        layouts=layouts_of(problem, members),
    )
    numbers = facts_of(problem, devices=members.space.devices, capacity=capacity)
    seconds, _ = bound_with(
        problem, prepared, _free(costs_of(problem, prepared)), _at_once(numbers)
    )
    found = np.full(len(meshes), np.inf)
    np.minimum.at(found, outer["mesh"], np.minimum(members.least_of(seconds) * MARGIN, NO_ROOM))
    return found


def _lean(space: Space) -> Space:
    """The part of `space` that needs least memory: states sharded over all holders, and as many
    of them offloaded as possible.
    """
    kept = dict(space.values)
    if 0 in kept["shard"]:
        kept["shard"] = (0,)
    kept["offload"] = (max(map(int, space.of("offload"))),)
    return replace(space, values=tuple((axis, kept[axis]) for axis in AXES))


def _outers(space: Space, facts: GridFacts, meshes: Meshes) -> Options:
    """The meshes with switches, microbatches, chunks and schedules, including those whose
    experts do not fold.
    """
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
    left = {
        name: columns[name] for name in ("mesh", "copies", "dp", "pp", "sp", "ulysses", "gather")
    }
    return chunked(space, facts, extended(left, "microbatch", space.of("mbs"), facts))


def _layers(
    problem: Problem, meshes: Meshes, outers: Options, space: Space, near: NearLayers | None
) -> tuple[LayerTable, IntArray]:
    """Layers of the members with groups that lie one inside the next, and the row of each outer."""
    outer, mesh = outers.columns, meshes.columns
    columns = {name: mesh[name][outer["mesh"]] if name in mesh else outer[name] for name in LAYER}
    columns["gather"] = np.where(columns["ulysses"] == columns["cp"], 0, columns["gather"])
    if near is None or near.modules != space.modules:
        near = near_rows(problem, columns, space.modules)
    return near.table, near.rows_of(columns)


def _free(costs: Costs) -> Costs:
    """The price tables without sends between pipeline ranks."""
    return costs._replace(border=np.zeros_like(costs.border))


def _at_once(facts: Facts) -> Facts:
    """The problem's numbers with updates that take no time."""
    return facts._replace(bandwidth=np.inf, host_rate=np.inf, left_rate=np.inf)
