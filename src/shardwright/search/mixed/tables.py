"""What stages of mixed plans take: seconds and bytes by pool, tensor parallel degree and microbatch, linear in the layers of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.bound_arrays import Facts
from shardwright.cost.column_sums import SyncTable, sync_table
from shardwright.cost.columns import layer_table, programs_of
from shardwright.cost.communication import network_of
from shardwright.cost.degree_rows import Rows
from shardwright.cost.device_network import group_problem
from shardwright.cost.mesh_table import shared_parameters
from shardwright.cost.step_bytes import again_bytes
from shardwright.errors import UsageError
from shardwright.model.ir.tensor import TABLES
from shardwright.program.block.grid_structure import Structure
from shardwright.program.problem import Problem
from shardwright.search.grid.prepare import facts_of
from shardwright.search.joint.arrays import is_alike
from shardwright.search.joint.chain import Chain, chain_of
from shardwright.search.mixed.choices import Choices
from shardwright.search.mixed.pools import Pool, pools_of
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.facts import grid_facts
from shardwright.strategy.grid.rules import violations

LAYER, BEFORE, AFTER = range(3)
"""Parts of a stage: one of its layers, what stands before the first layer of the model, what stands behind the last."""
MICROBATCHES = (1, 2, 4, 8)
"""Samples of a microbatch that shapes have."""
MODES = 3
"""Recompute of a layer: none, selective, full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """A row for each pool, tensor parallel degree and microbatch size.

    Args:
        layers: of the model. pool, tp, mbs: of each row; pairs: the place of its pool and degree among all such (`tps`).
        seconds: (rows, parts, 2) of a forward and a backward. again: (rows, modes) that recompute adds to a layer's backward.
        saved: (rows, parts, modes) bytes that a microbatch keeps. made: (rows, modes) bytes that a layer's backward makes again.
        logits, logits_blocks, overlap: (rows,) bytes. workspace, buffers: (rows,) of token dispatch.
        elements: (pairs, parts) trained parameters of one device. frozen: those that are held and not updated. tied: of the last part's
            elements, held by the first one's owner too.
        end_bytes: (pairs,) temporary of an embedding's gradient.
    """

    layers: int
    pools: tuple[Pool, ...]
    pool: IntArray
    tp: IntArray
    mbs: IntArray
    pairs: IntArray
    tps: tuple[tuple[int, int], ...]
    seconds: FloatArray
    again: FloatArray
    saved: FloatArray
    made: FloatArray
    logits: FloatArray
    logits_blocks: FloatArray
    overlap: FloatArray
    workspace: FloatArray
    buffers: FloatArray
    elements: FloatArray
    frozen: FloatArray
    tied: bool
    end_bytes: FloatArray
    facts: tuple[Facts, ...]

    def __len__(self) -> int:
        return len(self.tp)


def parts_of(chain: Chain, blocks: int) -> IntArray:
    """(parts, blocks) how often each block of the model is in each part."""
    counts = np.zeros((3, blocks), dtype=np.int64)
    for part, some in enumerate((chain.layers[0], chain.before, chain.after)):
        np.add.at(counts[part], list(some), 1)
    return counts


def grid_of(problem: Problem, *, tp: int, mbs: int, replicas: int = 1) -> Grid:
    """The grid that one stage of a mixed plan is."""
    sp = tp > 1 and problem.runtime.sequence_parallel
    return Grid(tp=tp, sp=sp, dp=replicas, microbatch=mbs, zero=1)


def why_alone(problem: Problem) -> str:
    """Why pipelines of the model are not searched, so that each pool has its own grids alone; empty = they are."""
    model, runtime = problem.model, problem.runtime
    if any(len(run.inputs) > 1 for run in model.runs):
        return f"{model.name} has branches"
    if any(o.experts is not None for b in model.blocks for o in b.operators):
        return f"{model.name} has experts"
    if not is_alike(chain_of(model)):
        return f"layers of {model.name} differ"
    if "1f1b" not in runtime.schedules or 1 not in runtime.zero_stages:
        return f"{runtime.name} has no 1F1B or no ZeRO-1"
    return ""


def stage_table(problem: Problem, choices: Choices | None = None) -> StageTable:
    """Price one layer and both ends on every pool, in one table a pool.

    Raises:
        UsageError: no stage has what is pinned.
    """
    assert not why_alone(problem)
    chain, pools = chain_of(problem.model), pools_of(problem.cluster)
    counts = parts_of(chain, len(problem.model.blocks))
    choices = choices or Choices()
    sizes = [size for size in choices.sizes(MICROBATCHES) if size <= problem.job.global_batch]
    open_pools = [(pool, degrees) for pool in pools if (degrees := choices.degrees(degrees_of(problem, pool))) and sizes]
    if not open_pools:
        raise UsageError(
            f"no stage inside a node has what is pinned: {choices.text()}", hint="tp that divides a node and the heads, mbs up to the batch"
        )
    found = [_pool_rows(problem, pool, counts, degrees=degrees, sizes=sizes) for pool, degrees in open_pools]
    keys = [(pool.group, tp) for (pool, _), rows in zip(open_pools, found, strict=True) for tp in dict.fromkeys(rows["tp"].tolist())]
    number = {key: place for place, key in enumerate(keys)}
    columns = {name: np.concatenate([rows[name] for rows in found]) for name in found[0]}
    pairs = np.array([number[k, t] for k, t in zip(columns["pool"].tolist(), columns["tp"].tolist(), strict=True)], dtype=np.int64)
    held = [_held(problem, pools[k], tp, counts) for k, tp in keys]
    capacities = [group.kind.accelerator.memory_bytes for group in problem.cluster.groups]
    facts = tuple(facts_of(group_problem(problem, pool.group), devices=1, capacity=float(capacities[pool.group])) for pool in pools)
    return StageTable(
        layers=len(chain),
        pools=pools,
        pairs=pairs,
        tps=tuple(keys),
        elements=np.array([one[0] for one in held]),
        frozen=np.array([one[1] for one in held]),
        end_bytes=np.array([one[2] for one in held]),
        tied=bool(shared_parameters(problem.model)),
        facts=facts,
        **columns,
    )


def degrees_of(problem: Problem, pool: Pool) -> tuple[int, ...]:
    """Tensor parallel degrees inside a node of the pool that are legal for the model."""
    job = problem.job
    facts = grid_facts(problem.model, devices=pool.devices, global_batch=job.global_batch, seq_len=job.sequence_length)
    within = (tp for tp in range(1, pool.node + 1) if pool.node % tp == 0)
    return tuple(tp for tp in within if not violations(grid_of(problem, tp=tp, mbs=1), facts=facts))


def stage_rows(tp: IntArray, mbs: IntArray, *, sp: bool, replicas: IntArray | int = 1, stride: int = 1) -> Rows:
    """Rows of a table: stages of some degrees, whose replicas stand `stride` devices apart."""
    ones = np.ones_like(tp)
    columns = dict.fromkeys(("cp", "ep", "etp", "pp", "ulysses", "s_tp", "s_cp", "s_pp"), ones)
    columns |= {"tp": tp, "mbs": mbs, "dp": ones * replicas, "s_dp": ones * stride}
    columns |= {"sp": (tp > 1).astype(np.int64) * sp, "gather": 0 * ones}
    return Rows(columns=columns)


def _pool_rows(problem: Problem, pool: Pool, counts: IntArray, *, degrees: Sequence[int], sizes: Sequence[int]) -> dict[str, FloatArray]:
    """Columns of one pool's rows."""
    own = group_problem(problem, pool.group)
    tp = np.repeat(np.array(degrees, dtype=np.int64), len(sizes))
    mbs = np.tile(np.array(sizes, dtype=np.int64), len(degrees))
    table = layer_table(own, stage_rows(tp, mbs, sp=own.runtime.sequence_parallel))
    phases = table.seconds.sum(axis=2)
    layer = counts[LAYER] > 0
    saved = table.saved_bytes[:, :MODES].astype(np.float64)
    saved[~layer] = saved[~layer, :1]
    both = np.stack([phases[:, 0], phases[:, 1] + phases[:, 2]])
    made = np.stack([again_bytes(table.saved_bytes, mode)[layer].max(axis=0) for mode in range(MODES)])
    again = np.stack([np.zeros((len(counts[0]), len(tp))), phases[:, 3], phases[:, 4]])
    inside = table.buffer_bytes[counts.sum(axis=0) > 0].max(axis=0).astype(np.float64)
    return {
        "pool": np.full(len(tp), pool.group),
        "tp": tp,
        "mbs": mbs,
        "seconds": np.einsum("pb,kbn->npk", counts, both),
        "again": np.einsum("b,mbn->nm", counts[LAYER], again),
        "saved": np.einsum("pb,bmn->npm", counts, saved),
        "made": made.T.astype(np.float64),
        "logits": table.logits_bytes.astype(np.float64),
        "logits_blocks": table.logits_blocks.astype(np.float64),
        "overlap": table.overlap_buffers.astype(np.float64),
        "buffers": inside[0],
        "workspace": inside[1],
    }


def _held(problem: Problem, pool: Pool, tp: int, counts: IntArray) -> tuple[FloatArray, FloatArray, float]:
    """Elements of one device that are trained, those that are not, and bytes of an embedding's gradient."""
    own = group_problem(problem, pool.group)
    one = np.array([tp], dtype=np.int64)
    table = sums_table(own, stage_rows(one, np.ones_like(one), sp=own.runtime.sequence_parallel), np.ones_like(one))
    trained = any(p.klass in TABLES and p.trainable for b in problem.model.blocks for o in b.operators for p in o.parameters)
    end = trained * -(-problem.model.vocab // tp) * problem.model.hidden * problem.runtime.embedding_gradient_bytes
    dense, rest = table.dense[:, 0], table.frozen[:, 0] + table.spread[:, 0]
    return (counts @ dense).astype(np.float64), (counts @ rest).astype(np.float64), float(end)


def sums_table(own: Problem, rows: Rows, shard: IntArray) -> SyncTable:
    """Seconds of gradient sums and gathers of one layer of each block, of a uniform problem."""
    repeats = [0] * len(own.model.blocks)
    for run in own.model.runs:
        repeats[run.block] += run.count
    return sync_table(
        programs_of(own, Structure(sequence_parallel=True, routed=True)),
        unrouted=(),
        repeats=tuple(repeats),
        rows=rows,
        shard=shard,
        network=network_of(own.cluster, library=own.runtime.collective_library),
        job=own.job,
        runtime=own.runtime,
        shared=shared_parameters(own.model),
    )
