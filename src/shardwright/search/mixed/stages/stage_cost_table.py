"""Cost table of stages of mixed plans: seconds and bytes by pool, mesh and microbatch size.

All costs are linear in the units of layers of a stage.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.compiled_bound_array_records import ProblemNumbers
from shardwright.cost.network.networks_of_plan_devices import group_problem
from shardwright.cost.step.strategy_rank_bytes import again_bytes
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.mesh_synchronisation_table import shared_parameters
from shardwright.errors import UsageError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import TABLES
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import facts_of
from shardwright.search.mixed.stages.degree_rows_and_gradient_reduction_seconds import (
    reductions_table,
    stage_rows,
)
from shardwright.search.mixed.stages.device_pools import DevicePool, pools_of
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import (
    LAYER,
    LayerPattern,
    block_counts_of_parts,
    pattern_of,
)
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.tensor_and_expert_meshes_of_stage import StageMesh, meshes_of
from shardwright.search.mixed.stages.zero_sharded_lane_costs import (
    PLAIN,
    BlockSeconds,
    ZeroStages,
    lane_collectives,
    plain_columns,
    replica_classes,
    sharded_columns,
    zero_stages,
)

MICROBATCHES = (1, 2, 4, 8)
"""Microbatch sizes, in samples, of each data-parallel member of a stage."""
MODES = 3
"""Number of recomputation modes of a layer: none, selective, full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """Cost table with a row for each pool, mesh, microbatch size and ZeRO stage.

    Args:
        pattern: pattern of the model's layers; a layer below is one of its units.
        pool, tp: (rows,) pool and tensor parallel degree.
        size: (rows,) devices of a stage.
        mbs: (rows,) samples of a microbatch of a replica.
        pairs: (rows,) index of the row's pool and mesh in `meshes`.
        seconds: (rows, parts, 2) seconds of a forward and a backward.
        again: (rows, modes) seconds that recomputation adds to a layer's backward.
        saved: (rows, parts, modes) bytes of activations that a microbatch saves.
        parked: (rows, modes) bytes of a layer's activations in host memory.
        made: (rows, modes) bytes that a layer's backward recomputes.
        logits, logits_blocks, overlap: (rows,) bytes.
        workspace, buffers: (rows,) bytes of token dispatch.
        elements: (pairs, parts) trained parameters of one device, without experts.
        experts: (pairs, parts) trained parameters of experts.
        frozen: (pairs, parts) parameters that are not updated.
        still: (pairs, parts) parameters without a gradient, a part of `frozen`.
        tied: the weights of the last part are tied to those of the first one.
        end_bytes: (pairs,) temporary bytes of an embedding's gradient.
        zero: (rows,) ZeRO stage of a lane.
        least, most: (rows,) replicas of a lane, where it shards among them; else any.
        several: number of rows for pipelines of several stages; the rows after them are of lanes
            of one stage alone.
        own_sums: (2, rows, parts) seconds of an all-gather and of a gradient reduction a step
            inside a lane that shards.
        root: (rows, parts) elements that such a lane gathers for the whole step.
        unit: (rows, parts) elements that it gathers for the largest block.
    """

    pattern: LayerPattern
    pools: tuple[DevicePool, ...]
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
    facts: tuple[ProblemNumbers, ...]
    zero: IntArray
    least: IntArray
    most: IntArray
    several: int
    own_sums: FloatArray
    root: FloatArray
    unit: FloatArray

    @property
    def sharded(self) -> BoolArray:
        """(rows,) True for rows of lanes that shard gradients or parameters."""
        return np.asarray(self.zero > 1)

    @property
    def max_replicas(self) -> IntArray:
        """(rows,) most replicas of a lane with one such stage each that fit in the pool."""
        devices = np.array([pool.devices for pool in self.pools], dtype=np.int64)
        return np.asarray(np.minimum(self.most, devices[self.pool] // self.size))

    def fact(self, name: str) -> FloatArray:
        """(rows,) the field `name` of `ProblemNumbers` of each row's pool."""
        return np.array([getattr(facts, name) for facts in self.facts], dtype=np.float64)[self.pool]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.tp)

    @property
    def layers(self) -> int:
        """Number of units of layers of the model."""
        return self.pattern.units

    def mesh(self, row: int) -> StageMesh:
        """Mesh of the stages of table row `row`."""
        return self.meshes[int(self.pairs[row])][1]

    def text(self, row: int) -> str:
        """Describe a row: ``h100-sxm tp2``, or ``h100-sxm tp2 zero3`` of a lane that shards."""
        shards = f" zero{self.zero[row]}" if self.zero[row] > 1 else ""
        return f"{self.pools[self.pool[row]].name} {self.mesh(row).text()}{shards}"


def why_no_pipelines(problem: Problem) -> str:
    """Reason why pipelines over several pools are not searched; empty = they are searched."""
    model, runtime = problem.model, problem.runtime
    if model.joins_streams or model.teacher_layers:
        return f"{model.name} has branches"
    if "1f1b" not in runtime.schedules or not set(runtime.zero_stages) - {0}:
        return f"{runtime.name} has no 1F1B or no ZeRO"
    return ""


def stage_table(problem: Problem, choices: PinnedValues | None = None) -> StageTable:
    """Price one layer and both ends of the model on every pool, mesh and microbatch size.

    Raises:
        UsageError: no stage has the pinned values.
    """
    assert not why_no_pipelines(problem)
    pools, counts = pools_of(problem.cluster), block_counts_of_parts(problem.model)
    choices = choices or PinnedValues()
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
    if not any(chosen_meshes for _, chosen_meshes in rows):
        raise UsageError(
            f"no stage inside a node has the pinned values: {choices.text()}",
            hint="tp that divides a node and the heads, mbs up to the batch",
        )
    keys = tuple(
        dict.fromkeys(
            (pool.group, mesh) for pool, chosen_meshes in rows for mesh, _ in chosen_meshes
        )
    )
    of_pairs = {
        pool.group: [keys.index((pool.group, mesh)) for mesh, _ in chosen_meshes]
        for pool, chosen_meshes in rows
    }
    stages = zero_stages(problem, choices)
    if not stages.all_stages:
        raise UsageError(
            f"{problem.runtime.name} has no lanes with the pinned values: {choices.text()}",
            hint="leave zero free",
        )
    parts = [
        part
        for pool, chosen_meshes in rows
        if chosen_meshes
        for part in _pool_rows(problem, pool, counts, chosen_meshes, of_pairs[pool.group], stages)
    ]
    ordered_columns = [
        columns for one_stage in (False, True) for alone, columns in parts if alone is one_stage
    ]
    columns = {
        name: np.concatenate([rows[name] for rows in ordered_columns])
        for name in ordered_columns[0]
    }
    elements, experts, frozen, end_bytes, still = map(
        np.array,
        zip(
            *(_device_parameters(problem, pools[pool], mesh, counts) for pool, mesh in keys),
            strict=True,
        ),
    )
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
        elements=elements,
        experts=experts,
        frozen=frozen,
        end_bytes=end_bytes,
        still=still,
        tied=bool(shared_parameters(problem.model)),
        facts=facts,
        **columns,
    )


def _pool_rows(
    problem: Problem,
    pool: DevicePool,
    counts: IntArray,
    meshes: list[tuple[StageMesh, int]],
    pairs: list[int],
    stages: ZeroStages,
) -> list[tuple[bool, dict[str, FloatArray]]]:
    """(True = rows of one-stage lanes alone, table columns) of each ZeRO stage on one pool.

    Args:
        meshes: mesh and samples of a microbatch of each row.
        pairs: index in `StageTable.meshes` of each row.
    """
    own = group_problem(problem, pool.group)
    base, blocks = _plain_rows(own, pool, counts, meshes)
    base["pairs"] = np.array(pairs)
    columns = [(False, plain_columns(base))] if PLAIN in stages.several else []
    room = {mesh: pool.devices // mesh.size for mesh, _ in meshes}
    sums = {
        mesh: lane_collectives(own, mesh, most, nodes=pool.nodes)
        for mesh, most in room.items()
        if most > 1 and stages.all_stages != (PLAIN,)
    }
    for one_stage, every in ((False, stages.several), (True, stages.one)):
        for zero in (zero for zero in every if zero != PLAIN):
            rows = [
                (mesh, row, *part)
                for row, (mesh, _) in enumerate(meshes)
                for part in replica_classes(room[mesh], one_stage=one_stage)
            ]
            if rows:
                columns.append(
                    (one_stage, sharded_columns(own, base, blocks, sums, rows, zero=zero))
                )
    return columns


def _plain_rows(
    pool_problem: Problem, pool: DevicePool, counts: IntArray, meshes: list[tuple[StageMesh, int]]
) -> tuple[dict[str, FloatArray], BlockSeconds]:
    """Table columns of one pool's rows without sharding, and the seconds of each block."""
    tp, dp, ep, mbs = (
        np.array(column, dtype=np.int64)
        for column in zip(*((m.tp, m.dp, m.ep, size) for m, size in meshes), strict=True)
    )
    table = layer_table(
        pool_problem,
        stage_rows(
            tp,
            mbs // dp,
            sp=pool_problem.runtime.sequence_parallel,
            dp=dp,
            ep=ep,
            stride=np.where(dp > 1, tp, 1),
        ),
    )
    phases = table.seconds.sum(axis=2)
    layer = counts[LAYER] > 0
    saved = table.saved_bytes[:, :MODES].astype(np.float64)
    saved[~layer] = saved[~layer, :1]
    forward_backward = np.stack([phases[:, 0], phases[:, 1] + phases[:, 2]])
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
        "seconds": np.einsum("pb,kbn->npk", counts, forward_backward),
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
    return columns, BlockSeconds(
        forward=forward_backward[0],
        backward=forward_backward[1],
        selective=again[1],
        full=again[2],
        counts=counts,
    )


def _device_parameters(
    problem: Problem, pool: DevicePool, mesh: StageMesh, counts: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray, float, FloatArray]:
    """Device parameters by part: dense, expert, not updated; embedding gradient bytes; no gradient.

    In order: trained dense parameters, trained expert parameters, parameters that are not updated,
    the bytes, and parameters without a gradient.
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
