"""From members to the arrays of the B0 kernel: price the layer and mesh rows that the members need, and describe their pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.bound_arrays import MAX_RANKS, Costs, Facts, Outer, Patterns
from shardwright.cost.bounds import bound_members
from shardwright.cost.bytes_per_parameter import host_update_rate, narrow_copies, own_gradient_bytes, shard_bytes, update_bytes
from shardwright.cost.chunk_layout import ChunkLayout, layout_of
from shardwright.cost.columns import LayerTable, layer_table
from shardwright.cost.critical_path import jitter
from shardwright.cost.degree_rows import Rows
from shardwright.cost.device_buffers import context_bytes
from shardwright.cost.distinct_rows import distinct_rows
from shardwright.cost.mesh_table import MeshTable, mesh_table
from shardwright.cost.priced import Priced
from shardwright.cost.step_bytes import reserve_factor
from shardwright.cost.step_costs import pieces_of
from shardwright.program.problem import Problem
from shardwright.search.grid.columns import distinct
from shardwright.search.grid.members import Members
from shardwright.search.grid.memory_choices import shard_is_legal
from shardwright.search.grid.meshes import Meshes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Tables, and the row of each outer in them.

    Args:
        layer_row, mesh_row: (outers,) rows; the layer row is that of the first set of modules, the mesh row that of shard option 0 (of the
            meshes that copy tokens over tp where experts are cut like the MLP). layouts: by (pp, vpp).
    """

    members: Members
    layers: LayerTable
    meshes: MeshTable
    layer_row: IntArray
    mesh_row: IntArray
    layouts: Mapping[tuple[int, int], ChunkLayout]

    @property
    def layer_rows(self) -> int:
        """Layer rows under one set of modules."""
        return len(self.layers.logits_bytes) // len(self.members.space.modules)

    def priced(self, place: int) -> Priced:
        """Where the numbers of a member stand."""
        inner, choices = self.members.inner, self.members.inner.choices
        i = int(np.searchsorted(self.members.start, place, side="right")) - 1
        rest = place - int(self.members.start[i])
        redos = int((choices.redo_lists[inner.redo_key[i]] >= 0).sum())
        zero = int(choices.zero_lists[inner.zero_key[i]][rest // (redos * len(choices.offload))])
        redo = int(choices.redo_lists[inner.redo_key[i]][rest // len(choices.offload) % redos])
        return Priced(
            layers=self.layers,
            layer_row=int(self.layer_row[i]) + int(choices.redo_modules[redo]) * self.layer_rows,
            meshes=self.meshes,
            mesh_row=int(self.mesh_row[i] + choices.zero_shard[zero]),
            layout=self.layouts[self._pipeline(i)],
        )

    def _pipeline(self, outer: int) -> tuple[int, int]:
        columns = self.members.outers.columns
        return int(self.members.meshes.columns["pp"][columns["mesh"][outer]]), int(columns["vpp"][outer])


def prepare(problem: Problem, members: Members) -> Prepared:
    """Price what the members need, each distinct row once."""
    layer_rows, layer_row = _layer_rows(problem, members)
    layer_rows, place = distinct_rows(problem, layer_rows)
    layer_row = place[layer_row]
    mesh_rows, shard = _mesh_rows(problem, members)
    return Prepared(
        members=members,
        layers=layer_table(problem, layer_rows, modules=members.space.modules),
        meshes=mesh_table(problem, mesh_rows, shard),
        layer_row=layer_row,
        mesh_row=row_of_mesh(problem, members) * len(members.space.of("shard")),
        layouts=layouts_of(problem, members),
    )


def layouts_of(problem: Problem, members: Members) -> dict[tuple[int, int], ChunkLayout]:
    """How the pipelines of the members spread blocks, by (pp, vpp)."""
    outer = members.outers.columns
    pipelines, _ = distinct({"pp": members.meshes.columns["pp"][outer["mesh"]], "vpp": outer["vpp"]})
    first, last = members.space.first, members.space.last
    cuts = zip(pipelines["pp"].tolist(), pipelines["vpp"].tolist(), strict=True)
    return {(pp, vpp): layout_of(problem.model, pp=pp, vpp=vpp, first=first, last=last) for pp, vpp in cuts}


_MESH_ROW: Final = ("tp", "cp", "ep", "etp", "dp", "pp", "s_tp", "s_cp", "s_dp", "s_pp")


def _layer_rows(problem: Problem, members: Members) -> tuple[Rows, IntArray]:
    outer, mesh = members.outers.columns, members.meshes.columns
    at = outer["mesh"]
    columns = {name: mesh[name][at] for name in _MESH_ROW}
    if not _has_experts(problem):
        columns |= {name: np.ones_like(at) for name in ("dp", "pp", "s_dp", "s_pp")}
    # A group of one has no place on the network.
    columns["s_tp"] = np.where(columns["tp"] > 1, columns["s_tp"], 1)
    columns["s_cp"] = np.where(columns["cp"] > 1, columns["s_cp"], 1)
    columns |= {"sp": outer["sp"], "ulysses": outer["ulysses"], "gather": outer["gather"], "mbs": outer["mbs"]}
    few, place = distinct(columns)
    return Rows(columns=few), place


def rows_of_meshes(problem: Problem, meshes: Meshes) -> Rows:
    """The meshes with the stream cut over tp; with experts, the same with copies of it behind them: these hold other parts of experts."""
    times = 1 + _has_experts(problem)
    columns = {name: np.tile(meshes.columns[name], times) for name in _MESH_ROW}
    ones = np.ones_like(columns["tp"])
    cut = (columns["tp"] > 1) & (np.arange(len(ones)) < len(meshes))
    return Rows(columns=columns | {"sp": cut.astype(np.int64), "ulysses": ones, "gather": 0 * ones, "mbs": ones})


def row_of_mesh(problem: Problem, members: Members) -> IntArray:
    """(outers,) the row of each outer's mesh among `rows_of_meshes`."""
    outer = members.outers.columns
    copied = _has_experts(problem) & (outer["sp"] == 0) & (members.meshes.columns["tp"][outer["mesh"]] > 1)
    row: IntArray = outer["mesh"] + copied * len(members.meshes)
    return row


def _has_experts(problem: Problem) -> bool:
    return any(o.experts is not None for b in problem.model.blocks for o in b.operators)


def _mesh_rows(problem: Problem, members: Members) -> tuple[Rows, IntArray]:
    """Each row of a mesh with each sharding group; groups that are not legal there stand in with the whole."""
    rows, shards = rows_of_meshes(problem, members.meshes), [int(s) for s in members.space.of("shard")]
    columns = {name: np.repeat(column, len(shards)) for name, column in rows.columns.items()}
    holders = columns["cp"] * columns["dp"]
    inner = np.where(columns["s_cp"] < columns["s_dp"], columns["cp"], columns["dp"])
    wanted = np.tile(np.array(shards, dtype=np.int64), len(rows))
    cases = zip(wanted.tolist(), holders.tolist(), inner.tolist(), strict=True)
    legal = np.array([shard_is_legal(s, holders=h, inner=i) for s, h, i in cases], dtype=bool)
    return Rows(columns=columns), np.where(legal & (wanted > 0), wanted, holders)


_SUMS = ("gather", "reduce", "all_reduce", "fetch", "scatter", "apart", "dense", "experts", "spread", "frozen", "shard", "expert_shard")


def costs_of(problem: Problem, prepared: Prepared) -> Costs:
    """The tables as the B0 kernel reads them."""
    layers, meshes = prepared.layers, prepared.meshes
    total = layers.seconds.sum(axis=2)
    layer = np.array([b.is_layer for b in problem.model.blocks])
    # Modules that predict further tokens have cores too, and are no layers: a policy leaves them.
    saved = layers.saved_bytes.copy()
    saved[:, 1] = np.where(layer[:, None], saved[:, 1], saved[:, 0])
    return Costs(
        forward=_floats(total[:, 0]),
        backward=_floats(total[:, 1] + total[:, 2]),
        selective=_floats(np.where(layer[:, None], total[:, 3], 0.0)),
        full=_floats(total[:, 4]),
        saved=_floats(saved),
        transient=_floats(np.where(layer[:, None], layers.transient_bytes, 0)),
        # A pipeline border may cross any tier above the lowest that it can: the cheapest of them counts.
        border=_floats(np.minimum.accumulate(layers.border[::-1], axis=0)[::-1].T),
        logits=_floats(layers.logits_bytes),
        **{name: _floats(getattr(meshes.sync, name)) for name in _SUMS},
        norm=_floats(meshes.norm_s),
        tied=_floats(np.stack([meshes.sync.tied_all_reduce, meshes.sync.tied_reduce])),
        passes=_floats(meshes.gradient_bytes),
        embedding=_floats(meshes.embedding_bytes),
        logits_blocks=_floats(layers.logits_blocks),
        overlap_buffers=_floats(layers.overlap_buffers),
        copied=_floats(meshes.sync.tied),
        communicators=_floats(meshes.communicator_bytes),
        slowdown=_floats(meshes.slowdown),
        scales=_floats(meshes.scales_s),
        gather_copy=_floats(meshes.gather_copy_s),
        reduce_copy=_floats(meshes.reduce_copy_s),
    )


def _floats(array: IntArray | FloatArray) -> FloatArray:
    return np.ascontiguousarray(array, dtype=np.float64)


def patterns_of(problem: Problem, prepared: Prepared) -> tuple[Patterns, IntArray]:
    """The distinct (pp, vpp) of the members as arrays, and each outer's pattern."""
    members = prepared.members
    outer = members.outers.columns
    pp = members.meshes.columns["pp"][outer["mesh"]]
    pipelines, row = distinct({"pp": pp, "vpp": outer["vpp"]})
    ks = np.array([int(k) for k in members.space.of("recompute_layers")], dtype=np.int64)
    cuts = zip(pipelines["pp"].tolist(), pipelines["vpp"].tolist(), strict=True)
    parts = [_pattern(problem, prepared.layouts[cut], ks) for cut in cuts]
    columns = {name: np.stack([part[name] for part in parts]) for name in Patterns._fields}
    return Patterns(**columns), row


def _pattern(problem: Problem, layout: ChunkLayout, ks: IntArray) -> dict[str, npt.NDArray[Any]]:
    """One (pp, vpp) for the kernel; `ks`: numbers of recomputed layers, 0 = all."""
    pp, counts = layout.pp, layout.counts
    layers = counts[:, layout.layer].sum(axis=1)
    redone = np.minimum(np.where(ks == 0, layers.max(), ks)[None, :], layers[:, None]).astype(np.float64)
    looked = sorted({0, min(1, pp - 1), max(pp - 2, 0), pp - 1})
    ranks = np.array(looked + [pp - 1] * (MAX_RANKS - len(looked)), dtype=np.int64)
    chunks = counts.reshape(layout.vpp, pp, -1)
    redone_chunks = redone.reshape(layout.vpp, pp, -1)
    before = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts, axis=0)])
    redone_before = np.concatenate([np.zeros((1, redone.shape[1])), np.cumsum(redone, axis=0)])
    pieces = pieces_of(problem, layout)
    stage, redone_stage, final = layout.by_rank, redone_chunks.sum(axis=0), ranks + (layout.vpp - 1) * pp
    return {
        "ranks": np.array(pp),
        "chunks_per_rank": np.array(layout.vpp),
        "looked": np.array(len(looked)),
        "rank": ranks,
        "stage": stage[ranks].astype(np.float64),
        "before": before[ranks].astype(np.float64),
        "around": (before[final] + pp * (counts[final] - stage[ranks])).astype(np.float64),
        "own": counts[ranks].astype(np.float64),
        "least": chunks.min(axis=0)[ranks].astype(np.float64),
        "pieces": pieces[ranks].astype(np.float64),
        "first": counts[0].astype(np.float64),
        "first_pieces": np.array(float(pieces[0])),
        "total": counts.sum(axis=0).astype(np.float64),
        "redone": redone_stage[ranks],
        "redone_before": redone_before[ranks],
        "redone_around": redone_before[final] + pp * (redone[final] - redone_stage[ranks]),
        "redone_own": redone[ranks],
        "redone_least": redone_chunks.min(axis=0)[ranks],
        "redone_total": redone.sum(axis=0),
        "has_head": (stage[ranks][:, layout.head].sum(axis=1) > 0).astype(np.int64),
        "has_end": (stage[ranks][:, layout.end].sum(axis=1) > 0).astype(np.int64),
    }


def least_jitter(problem: Problem, devices: int) -> float:
    """Factor on the seconds of a bound: that of the step, less what clocks round.

    Clocks of B1 and S are whole picoseconds, and no task is shorter than a microsecond.
    """
    return jitter(problem, devices) * (1 - 1e-6)


def jitters(problem: Problem, devices: IntArray) -> FloatArray:
    """The same of each of many plans, by the number of devices that it uses."""
    numbers, place = np.unique(devices, return_inverse=True)
    each = np.array([least_jitter(problem, int(number)) for number in numbers])
    return each[place.reshape(-1)]


def facts_of(problem: Problem, *, devices: int, capacity: float) -> Facts:
    """Numbers of the problem for the kernel."""
    device, runtime, job = problem.cluster.node.accelerator, problem.runtime, problem.job
    kinds = [i for i, b in enumerate(problem.model.blocks) if b.is_layer]
    return Facts(
        # Reserved bytes are whole, rounded down: less than one more byte still fits.
        capacity=capacity + 1.0,
        workspace=float(runtime.workspace_bytes),
        context=float(context_bytes(problem)),
        # As if all parameters were as narrow as those of products: no more than what any mixture holds.
        parameter_bytes=job.parameter.bits / 8 + min(narrow_copies(problem), 0.0),
        shard_bytes=shard_bytes(problem),
        gradient_bytes=runtime.gradient_dtype.bits / 8,
        own_gradient_bytes=float(own_gradient_bytes(problem)),
        state_bytes=float(problem.optimizer.state_bytes),
        prefetch=float(runtime.gather_prefetch),
        reuse=float(runtime.reuse_elements),
        update_bytes=update_bytes(problem),
        bandwidth=device.memory_bandwidth * device.element_efficiency,
        host_rate=host_update_rate(problem),
        jitter=least_jitter(problem, devices),
        every_microbatch=runtime.reduce_every_microbatch,
        overlap_gather=runtime.overlap_param_gather,
        blocks_plain=runtime.blocks_sends(1),
        blocks_several=runtime.blocks_sends(2),
        layer_block=kinds[0] if len(kinds) == 1 else -1,
        layer_rows=0,
        reserve=reserve_factor(problem),
    )


def bound_all(problem: Problem, prepared: Prepared, *, capacity: float) -> tuple[FloatArray, FloatArray]:
    """B0 of every member: seconds (inf where memory cannot fit), and bytes before they are rounded down."""
    if not prepared.members.num_members:
        return np.empty(0), np.empty(0)
    facts = facts_of(problem, devices=prepared.members.space.devices, capacity=capacity)
    return bound_with(problem, prepared, costs_of(problem, prepared), facts)


def bound_with(problem: Problem, prepared: Prepared, costs: Costs, facts: Facts) -> tuple[FloatArray, FloatArray]:
    """The same with other tables, or another problem's numbers."""
    members = prepared.members
    outer, mesh = members.outers.columns, members.meshes.columns
    patterns, pattern_row = patterns_of(problem, prepared)
    units = [t.num_devices for t in problem.cluster.tiers()]
    stride = mesh["s_pp"][outer["mesh"]]
    border = np.full(len(stride), len(units) - 1, dtype=np.int64)
    for index in range(len(units) - 1, -1, -1):
        border[stride < units[index]] = index
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
