"""Costs of stages of mixed plans: seconds and bytes by pool, mesh and microbatch, linear in the
units of layers of a stage.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.closed_form_arrays import Facts
from shardwright.cost.network.plan_groups import group_problem
from shardwright.cost.step.grid_bytes import again_bytes
from shardwright.cost.tables.mesh_table import shared_parameters
from shardwright.cost.tables.problem_tables import layer_table
from shardwright.errors import UsageError
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.tensor_dims import TABLES
from shardwright.program.problem import Problem
from shardwright.search.grid.bounds.bound_arrays import facts_of
from shardwright.search.mixed.stages.device_pools import Pool, pools_of
from shardwright.search.mixed.stages.layer_cuts import LAYER, Pattern, parts_of, pattern_of
from shardwright.search.mixed.stages.pinned_values import Choices
from shardwright.search.mixed.stages.sharded_lanes import (
    PLAIN,
    Blocks,
    Stages,
    classes_of,
    lane_sums,
    plain_columns,
    sharded_columns,
    zero_stages,
)
from shardwright.search.mixed.stages.stage_meshes import StageMesh, meshes_of
from shardwright.search.mixed.stages.stage_rows import reductions_table, stage_rows

MICROBATCHES = (1, 2, 4, 8)
"""Samples of a microbatch that each data-parallel member of a stage has."""
MODES = 3
"""Recompute of a layer: none, selective, full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """A row for each pool, mesh and microbatch size.

    Args:
        pattern: of the model's layers; a layer below is one of its units.
        pool, tp: of each row;
        size: devices of a stage;
        mbs: samples of a microbatch of a replica;
        pairs: the place of its pool and mesh among all such (`meshes`).
        seconds: (rows, parts, 2) of a forward and a backward.
        again: (rows, modes) that recompute adds to a layer's backward.
        saved: (rows, parts, modes) bytes that a microbatch keeps;
        parked: (rows, modes) of a layer in host memory.
        made: (rows, modes) bytes that a layer's backward makes again.
        logits, logits_blocks, overlap: (rows,) bytes.
        workspace, buffers: (rows,) of token dispatch.
        elements: (pairs, parts) trained parameters of one device, but for experts.
        experts: of experts.
        frozen: those that are held and not updated;
        still: of them those without a gradient.
        tied: of the last part's elements, held by the first one's owner too.
        end_bytes: (pairs,) temporary of an embedding's gradient.
        zero: (rows,) ZeRO stage of a lane.
        least, most: (rows,) replicas of a lane, where it shards among them; else any.
        several: rows that pipelines of several stages are made of; those behind them are of lanes
            of one stage alone.
        own_sums: (2, rows, parts) seconds of a gather and of a gradient sum a step inside a lane
            that shards.
        root: (rows, parts) elements that it makes whole for the step;
        unit: (rows, parts) for the work of the largest block.
    """

    pattern: Pattern
    pools: tuple[Pool, ...]
    pool: IntArray
    tp: IntArray
    size: IntArray
    mbs: IntArray
    pairs: IntArray
    meshes: tuple[tuple[int, StageMesh], ...]
    seconds: FloatArray
    again: FloatArray
    saved: FloatArray
    parked: FloatArray
    made: FloatArray
    logits: FloatArray
    logits_blocks: FloatArray
    overlap: FloatArray
    workspace: FloatArray
    buffers: FloatArray
    elements: FloatArray
    experts: FloatArray
    frozen: FloatArray
    still: FloatArray
    tied: bool
    end_bytes: FloatArray
    facts: tuple[Facts, ...]
    zero: IntArray
    least: IntArray
    most: IntArray
    several: int
    own_sums: FloatArray
    root: FloatArray
    unit: FloatArray

    @property
    def sharded(self) -> BoolArray:
        """(rows,) those of lanes that shard gradients or parameters among their own replicas."""
        return np.asarray(self.zero > 1)

    @property
    def room(self) -> IntArray:
        """(rows,) replicas of a lane whose stages are of a row that find room, one stage each."""
        devices = np.array([pool.devices for pool in self.pools], dtype=np.int64)
        return np.asarray(np.minimum(self.most, devices[self.pool] // self.size))

    def fact(self, name: str) -> FloatArray:
        """(rows,) a number of each row's pool: the field `name` of `Facts`."""
        return np.array([getattr(facts, name) for facts in self.facts], dtype=np.float64)[self.pool]

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def layers(self) -> int:
        """Units of layers of the model."""
        return self.pattern.units

    def mesh(self, row: int) -> StageMesh:
        """The mesh of a row."""
        return self.meshes[int(self.pairs[row])][1]

    def text(self, row: int) -> str:
        """A row in words: ``h100-sxm tp2``, of a lane that shards ``h100-sxm tp2 zero3``."""
        shards = f" zero{self.zero[row]}" if self.zero[row] > 1 else ""
        return f"{self.pools[self.pool[row]].name} {self.mesh(row).text()}{shards}"


def why_alone(problem: Problem) -> str:
    """Why pipelines of the model are not searched, so that each pool has its own grids alone; empty
    = they are.
    """
    model, runtime = problem.model, problem.runtime
    if model.joins_streams or model.teacher_layers:
        return f"{model.name} has branches"
    if "1f1b" not in runtime.schedules or not set(runtime.zero_stages) - {0}:
        return f"{runtime.name} has no 1F1B or no ZeRO"
    return ""


def stage_table(problem: Problem, choices: Choices | None = None) -> StageTable:
    """Price one layer and both ends on every pool, in one table a pool.

    Raises:
        UsageError: no stage has what is pinned.
    """
    assert not why_alone(problem)
    pools, counts = pools_of(problem.cluster), parts_of(problem.model)
    choices = choices or Choices()
    sizes, batch = choices.sizes(MICROBATCHES), problem.job.global_batch
    rows = [
        (
            pool,
            [
                (mesh, size * mesh.dp)
                for mesh in meshes_of(problem, pool, choices)
                for size in sizes
                if size * mesh.dp <= batch
            ],
        )
        for pool in pools
    ]
    if not any(some for _, some in rows):
        raise UsageError(
            f"no stage inside a node has what is pinned: {choices.text()}",
            hint="tp that divides a node and the heads, mbs up to the batch",
        )
    keys = tuple(dict.fromkeys((pool.group, mesh) for pool, some in rows for mesh, _ in some))
    of_pairs = {
        pool.group: [keys.index((pool.group, mesh)) for mesh, _ in some] for pool, some in rows
    }
    stages = zero_stages(problem, choices)
    if not stages.every:
        raise UsageError(
            f"{problem.runtime.name} has no lanes with what is pinned: {choices.text()}",
            hint="leave zero free",
        )
    parts = [
        part
        for pool, some in rows
        if some
        for part in _pool_rows(problem, pool, counts, some, of_pairs[pool.group], stages)
    ]
    found = [
        columns for one_stage in (False, True) for alone, columns in parts if alone is one_stage
    ]
    columns = {name: np.concatenate([rows[name] for rows in found]) for name in found[0]}
    held = [_held(problem, pools[pool], mesh, counts) for pool, mesh in keys]
    capacities = [group.kind.accelerator.memory_bytes for group in problem.cluster.groups]
    facts = tuple(
        facts_of(
            group_problem(problem, pool.group), devices=1, capacity=float(capacities[pool.group])
        )
        for pool in pools
    )
    return StageTable(
        pattern=pattern_of(problem.model),
        pools=pools,
        several=sum(len(columns["tp"]) for alone, columns in parts if not alone),
        own_sums=np.stack([columns.pop(name) for name in ("own_gather", "own_reduce")]),
        meshes=keys,
        elements=np.array([one[0] for one in held]),
        experts=np.array([one[1] for one in held]),
        frozen=np.array([one[2] for one in held]),
        end_bytes=np.array([one[3] for one in held]),
        still=np.array([one[4] for one in held]),
        tied=bool(shared_parameters(problem.model)),
        facts=facts,
        **columns,
    )


def _pool_rows(
    problem: Problem,
    pool: Pool,
    counts: IntArray,
    some: list[tuple[StageMesh, int]],
    pairs: list[int],
    stages: Stages,
) -> list[tuple[bool, dict[str, FloatArray]]]:
    """(of lanes of one stage alone, columns) of one pool's rows. Args: some: mesh and samples of a
    microbatch of each. pairs: of each.
    """
    own = group_problem(problem, pool.group)
    base, blocks = _plain_rows(own, pool, counts, some)
    base["pairs"] = np.array(pairs)
    found = [(False, plain_columns(base))] if PLAIN in stages.several else []
    room = {mesh: pool.devices // mesh.size for mesh, _ in some}
    sums = {
        mesh: lane_sums(own, mesh, most, nodes=pool.nodes)
        for mesh, most in room.items()
        if most > 1 and stages.every != (PLAIN,)
    }
    for one_stage, every in ((False, stages.several), (True, stages.one)):
        for zero in (zero for zero in every if zero != PLAIN):
            rows = [
                (mesh, row, *part)
                for row, (mesh, _) in enumerate(some)
                for part in classes_of(room[mesh], one_stage=one_stage)
            ]
            if rows:
                found.append((one_stage, sharded_columns(own, base, blocks, sums, rows, zero=zero)))
    return found


def _plain_rows(
    own: Problem, pool: Pool, counts: IntArray, some: list[tuple[StageMesh, int]]
) -> tuple[dict[str, FloatArray], Blocks]:
    """Columns of one pool's meshes and microbatches as they are without sharding, and seconds of
    their blocks.
    """
    tp, dp, ep, mbs = (
        np.array(column, dtype=np.int64)
        for column in zip(*((m.tp, m.dp, m.ep, size) for m, size in some), strict=True)
    )
    table = layer_table(
        own,
        stage_rows(
            tp,
            mbs // dp,
            sp=own.runtime.sequence_parallel,
            dp=dp,
            ep=ep,
            stride=np.where(dp > 1, tp, 1),
        ),
    )
    phases = table.seconds.sum(axis=2)
    layer = counts[LAYER] > 0
    saved = table.saved_bytes[:, :MODES].astype(np.float64)
    saved[~layer] = saved[~layer, :1]
    both = np.stack([phases[:, 0], phases[:, 1] + phases[:, 2]])
    made = np.stack(
        [again_bytes(table.saved_bytes, mode)[layer].max(axis=0) for mode in range(MODES)]
    )
    again = np.stack([np.zeros((len(counts[0]), len(tp))), phases[:, 3], phases[:, 4]])
    inside = table.buffer_bytes[layer].max(axis=0).astype(np.float64)
    columns = {
        "pool": np.full(len(tp), pool.group),
        "tp": tp,
        "size": tp * dp,
        "mbs": mbs,
        "seconds": np.einsum("pb,kbn->npk", counts, both),
        "again": np.einsum("b,mbn->nm", counts[LAYER], again),
        "saved": np.einsum("pb,bmn->npm", counts, saved),
        "parked": np.einsum(
            "b,bmn->nm", counts[LAYER], table.host_bytes[:, :MODES].astype(np.float64)
        ),
        "made": made.T.astype(np.float64),
        "logits": table.logits_bytes.astype(np.float64),
        "logits_blocks": table.logits_blocks.astype(np.float64),
        "overlap": table.overlap_buffers.astype(np.float64),
        "buffers": inside[0],
        "workspace": inside[1],
    }
    return columns, Blocks(
        forward=both[0], backward=both[1], selective=again[1], full=again[2], counts=counts
    )


def _held(
    problem: Problem, pool: Pool, mesh: StageMesh, counts: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray, float, FloatArray]:
    """Elements of one device that are trained, those of experts, those that are not updated, bytes
    of an embedding's gradient, and elements without a gradient.
    """
    own, tp = group_problem(problem, pool.group), mesh.tp
    one = np.array([tp], dtype=np.int64)
    rows = stage_rows(
        one, np.ones_like(one), sp=own.runtime.sequence_parallel, dp=mesh.dp, ep=mesh.ep, stride=tp
    )
    table = reductions_table(own, rows, np.full_like(one, mesh.dp))
    trained = any(
        p.klass in TABLES and p.trainable
        for b in problem.model.blocks
        for o in b.operators
        for p in o.parameters
    )
    end = (
        trained
        * -(-problem.model.vocab // tp)
        * problem.model.hidden
        * problem.runtime.embedding_gradient_bytes
    )
    still = table.frozen_dense[:, 0] + table.frozen_experts[:, 0]
    kinds = (table.dense[:, 0], table.experts[:, 0], table.frozen[:, 0] + table.spread[:, 0], still)
    dense, experts, rest, without = ((counts @ elements).astype(np.float64) for elements in kinds)
    return dense, experts, rest, float(end), without
