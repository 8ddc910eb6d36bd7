"""Table rows of lanes that shard gradients (ZeRO-2), or also parameters (ZeRO-3), by replica count.

Such a lane shards among its own replicas. It gathers and reduces in each microbatch, beside its
kernels, so all costs of a stage depend on the number of replicas. Rows have classes of replica
counts; inside a class each value is the smallest over the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.groups.span_members_by_network_tier import span_of
from shardwright.cost.gradients.layer_synchronisation_table_classes import SyncTable
from shardwright.cost.network.grid_groups_and_collective_seconds import axes_of, network_of
from shardwright.cost.step.shared_scalar_cost_formulas import (
    backward_layer,
    forward_layer,
    gathers_again,
)
from shardwright.cost.tables.pipeline_chunk_layout import is_unit
from shardwright.cost.tables.sharding_copies_and_overlap_slowdown import (
    copy_seconds,
    overlap_slowdown,
)
from shardwright.kernel_compilation import allocation_free
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.degree_rows_and_gradient_reduction_seconds import (
    reductions_table,
    stage_rows,
    with_full_nodes,
)
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import LAYER
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.tensor_and_expert_meshes_of_stage import StageMesh

PLAIN: Final = 1
"""ZeRO stage of lanes that reduce gradients once a step, together with all other such lanes."""
ANY: Final = 2**30
"""More replicas than any plan has."""
NEAR: Final = 8
"""Most replicas in the first class of lanes of several stages; the second class has the others.

For lanes of one stage, classes end at powers of two.
"""
GATHER, REDUCE = range(2)


class ZeroStages(NamedTuple):
    """ZeRO stages that lanes may have.

    several: ZeRO stages of pipelines of several stages. one: ZeRO stages with table rows of their
    own for pipelines of one stage.
    """

    several: tuple[int, ...]
    one: tuple[int, ...]

    @property
    def all_stages(self) -> tuple[int, ...]:
        """All ZeRO stages of lanes of one pipeline stage or of several, ascending."""
        return tuple(sorted({*self.several, *self.one}))


def zero_stages(problem: Problem, choices: PinnedValues) -> ZeroStages:
    """ZeRO stages of lanes that the runtime supports and the request allows."""
    runtime = problem.runtime
    allowed = [zero for zero in (1, 2, 3) if zero in runtime.zero_stages and choices.has_zero(zero)]
    several = tuple(zero for zero in allowed if zero == PLAIN or zero <= runtime.zero_with_pipeline)
    return ZeroStages(several=several, one=tuple(zero for zero in allowed if zero != PLAIN))


def replica_classes(max_replicas: int, *, one_stage: bool) -> list[tuple[int, int]]:
    """(least, most) replicas of each class of lanes that shard, up to `max_replicas` replicas.

    The edges are the same in every cluster.
    """
    if not one_stage:
        return [part for part in ((2, NEAR), (NEAR + 1, ANY)) if part[0] <= max_replicas]
    classes = [(2, 2)]
    for power in count(1):
        least = 2**power + 1
        if least > max_replicas:
            return classes if max_replicas >= 2 else []
        classes.append((least, 2 ** (power + 1)))
    raise AssertionError


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockSeconds:
    """Seconds of each block of the model in the rows of a pool, without sharding.

    (blocks, rows) seconds of a forward, a backward, and the additions of selective and full
    recomputation.

    Args:
        counts: (parts, blocks) number of times that each block is in each part.
    """

    forward: FloatArray
    backward: FloatArray
    selective: FloatArray
    full: FloatArray
    counts: IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneCollectives:
    """Collectives of a lane of one mesh, for each number of replicas k from 2 on.

    Args:
        sync: (blocks, k) seconds of one layer of each block.
        copies: (blocks, k) seconds of copies around its gathers and its reduction, as
            `copy_seconds`.
        slowdown: (k,) factor on kernels that run beside the collectives.
    """

    sync: SyncTable
    copies: tuple[FloatArray, FloatArray, FloatArray]
    slowdown: FloatArray


def lane_collectives(
    pool_problem: Problem, mesh: StageMesh, replicas: int, *, nodes: int
) -> LaneCollectives:
    """Price the collectives of lanes of 2 to `replicas` replicas in nodes of the mesh's pool.

    Where the pool has several nodes, a lane may begin inside one. Its groups then have fewer
    members in a node, down to half of the densest group, and slower collectives, for which fewer
    channels run beside kernels: the slowdown is that of half as many members.

    Args:
        pool_problem: the problem of the pool's kind of device.
        nodes: number of nodes of the pool.
    """
    pool_problem = with_full_nodes(pool_problem, set_size=mesh.size)
    counts = np.arange(2, replicas + 1, dtype=np.int64)
    tp = np.full_like(counts, mesh.tp)
    rows = stage_rows(
        tp,
        np.ones_like(counts),
        sp=pool_problem.runtime.sequence_parallel,
        dp=mesh.dp * counts,
        ep=mesh.ep,
        stride=tp,
    )
    sync = reductions_table(pool_problem, rows, mesh.dp * counts)
    network = network_of(pool_problem.cluster, library=pool_problem.runtime.collective_library)
    axes = axes_of("dp-cp", rows)
    span = span_of(network.tiers, axes)
    if nodes > 1:
        span = span_of(network.tiers, axes, fewer=tuple(below // 2 for below in span.below[:-1]))
    return LaneCollectives(
        sync=sync,
        copies=copy_seconds(pool_problem, sync),
        slowdown=overlap_slowdown(pool_problem, span, network),
    )


def sharded_columns(
    pool_problem: Problem,
    base: dict[str, FloatArray],
    blocks: BlockSeconds,
    sums: dict[StageMesh, LaneCollectives],
    row_choices: list[tuple[StageMesh, int, int, int]],
    *,
    zero: int,
) -> dict[str, FloatArray]:
    """Table columns of the rows of lanes of one ZeRO stage.

    Args:
        base: columns of the pool's rows without sharding.
        sums: collectives of each mesh.
        row_choices: mesh, row of the base, least and most replicas of each new row.
    """
    which = np.array([row for _, row, _, _ in row_choices], dtype=np.int64)
    columns = {name: column[which] for name, column in base.items()}
    spent = np.stack(
        [
            _least_block_seconds(pool_problem, blocks, sums[mesh], row, (low, high), zero=zero)
            for mesh, row, low, high in row_choices
        ],
        axis=-1,
    )
    # A unit's recompute adds to layers alone, as in the base.
    columns["seconds"] = np.einsum("pb,kbn->npk", blocks.counts, spent[:2])
    columns["again"] = np.einsum(
        "b,mbn->nm",
        blocks.counts[LAYER],
        np.concatenate([np.zeros((1, *spent.shape[1:])), spent[2:]]),
    )
    held = [
        _step_end_collectives(pool_problem, blocks.counts, sums[mesh], (low, high), zero=zero)
        for mesh, _, low, high in row_choices
    ]
    columns["own_gather"], columns["own_reduce"] = (
        np.stack([one[which] for one in held]) for which in (GATHER, REDUCE)
    )
    whole = [
        _gathered_elements(pool_problem, blocks.counts, sums[mesh])
        if zero == 3
        else np.zeros((2, len(blocks.counts)))
        for mesh, *_ in row_choices
    ]
    columns["root"], columns["unit"] = (
        np.stack([one[place] for one in whole]) for place in range(2)
    )
    columns |= {"zero": np.full(len(row_choices), zero)}
    columns |= {
        name: np.array([one[place] for one in row_choices])
        for name, place in (("least", 2), ("most", 3))
    }
    return columns


def plain_columns(base: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Table columns of the rows of lanes that do not shard."""
    n, parts = base["seconds"].shape[:2]
    none = np.zeros((n, parts))
    columns = dict(base)
    columns |= dict.fromkeys(("own_gather", "own_reduce", "root", "unit"), none)
    return columns | {
        "zero": np.full(n, PLAIN),
        "least": np.ones(n, dtype=np.int64),
        "most": np.full(n, ANY),
    }


def _replica_slice(sums: LaneCollectives, replica_range: tuple[int, int]) -> slice:
    """Slice of the collectives' replica axis for a (least, most) range of replicas."""
    return slice(replica_range[0] - 2, min(replica_range[1] - 1, len(sums.slowdown)))


def _least_block_seconds(
    pool_problem: Problem,
    blocks: BlockSeconds,
    sums: LaneCollectives,
    row: int,
    replica_range: tuple[int, int],
    *,
    zero: int,
) -> FloatArray:
    """(4, blocks) least seconds of table row `row`: forward, backward, more if selective or full.

    The least over the range of replicas.
    """
    sync, some, runtime = sums.sync, _replica_slice(sums, replica_range), pool_problem.runtime
    moved = (
        (sync.fetch, sync.refetch, sync.scatter)
        if zero == 3
        else (sync.gather, np.zeros_like(sync.gather), sync.reduce)
    )
    columns = [
        np.ascontiguousarray(one[:, some])
        for one in (*moved, sync.apart, *sums.copies, sync.regathered.astype(np.float64))
    ]
    plain = np.stack(
        [one[:, row] for one in (blocks.forward, blocks.backward, blocks.selective, blocks.full)]
    )
    found = np.full((4, len(blocks.forward)), np.inf)
    slowdown = np.array(sums.slowdown[some])
    _fill(
        found,
        plain,
        np.stack(columns),
        slowdown,
        zero,
        runtime.reduce_every_microbatch,
        float(runtime.reuse_elements),
    )
    return found


@allocation_free
def _fill(
    found: FloatArray,
    plain: FloatArray,
    sums: FloatArray,
    slowdown: FloatArray,
    zero: int,
    every: bool,
    reuse: float,
) -> None:
    for b in range(found.shape[1]):
        f, back = plain[0, b], plain[1, b]
        for k in range(len(slowdown)):
            fetch, again, reduce, apart = sums[0, b, k], sums[1, b, k], sums[2, b, k], sums[3, b, k]
            copy, recopy, put, slow = sums[4, b, k], sums[5, b, k], sums[6, b, k], slowdown[k]
            once = backward_layer(back, again, reduce, apart, recopy, put, zero, every, slow)
            some = backward_layer(
                back + plain[2, b], again, reduce, apart, recopy, put, zero, every, slow
            )
            times = gathers_again(sums[7, b, k], reuse)
            full = backward_layer(
                back + plain[3, b],
                times * again,
                reduce,
                apart,
                times * recopy,
                put,
                zero,
                every,
                slow,
            )
            found[0, b] = min(found[0, b], forward_layer(f, fetch, copy, zero, slow))
            found[1, b] = min(found[1, b], once)
            found[2, b] = min(found[2, b], some - once)
            found[3, b] = min(found[3, b], full - once)


def _step_end_collectives(
    pool_problem: Problem,
    counts: IntArray,
    sums: LaneCollectives,
    replica_range: tuple[int, int],
    *,
    zero: int,
) -> FloatArray:
    """(2, parts) least seconds of a lane's gather at the step's start and reduction at its end.

    The reduction is 0 where each microbatch reduces.
    """
    sync, some = sums.sync, _replica_slice(sums, replica_range)
    gather = counts @ sync.gather[:, some] if zero == 2 else np.zeros((len(counts), 1))
    reduce = sync.scatter if zero == 3 else sync.reduce
    late = (
        np.zeros((len(counts), 1))
        if pool_problem.runtime.reduce_every_microbatch
        else counts @ reduce[:, some]
    )
    return np.stack([gather.min(axis=1), late.min(axis=1)])


def _gathered_elements(
    pool_problem: Problem, counts: IntArray, sums: LaneCollectives
) -> FloatArray:
    """(2, parts) elements that ZeRO-3 gathers: for the whole step, and for the largest block."""
    unit = np.array([is_unit(block) for block in pool_problem.model.blocks], dtype=np.bool_)
    block = sums.sync.gathered[:, 0].astype(np.float64)
    return np.stack([counts @ (block * ~unit), ((counts > 0) * (block * unit)).max(axis=1)])
