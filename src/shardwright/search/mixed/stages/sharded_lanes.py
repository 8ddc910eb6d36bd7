"""Rows of lanes that shard gradients (ZeRO-2), or parameters too (ZeRO-3), among their own
replicas, by how many these are.

A lane gathers and reduces in each microbatch, beside its kernels, so all that a stage takes depends
on its replicas. Rows have classes of them; inside one each number is the least of any.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.groups.tier_counts import span_of
from shardwright.compiled import allocation_free
from shardwright.cost.gradients.synchronisation_table import SyncTable
from shardwright.cost.network.grid_groups import axes_of, network_of
from shardwright.cost.step.scalar_terms import backward_layer, forward_layer, gathers_again
from shardwright.cost.tables.layers_by_chunk import is_unit
from shardwright.cost.tables.sharding_overhead import copy_seconds, overlap_slowdown
from shardwright.program.problem import Problem
from shardwright.search.mixed.stages.layer_cuts import LAYER
from shardwright.search.mixed.stages.pinned_values import Choices
from shardwright.search.mixed.stages.stage_meshes import StageMesh
from shardwright.search.mixed.stages.stage_rows import filled, reductions_table, stage_rows

PLAIN: Final = 1
"""ZeRO stage of lanes that sum gradients once a step, with all other such lanes."""
ANY: Final = 2**30
"""More replicas than there may be."""
NEAR: Final = 8
"""Replicas of the first class of lanes of several stages; the second has all others. Of one stage
classes end at powers of two."""
GATHER, REDUCE = range(2)


class Stages(NamedTuple):
    """ZeRO stages of lanes: of pipelines of several stages, and of those of one stage that have
    rows of their own.
    """

    several: tuple[int, ...]
    one: tuple[int, ...]

    @property
    def every(self) -> tuple[int, ...]:
        """All of them, in order."""
        return tuple(sorted({*self.several, *self.one}))


def zero_stages(problem: Problem, choices: Choices) -> Stages:
    """ZeRO stages of lanes that the runtime has and the request allows."""
    runtime = problem.runtime
    some = [zero for zero in (1, 2, 3) if zero in runtime.zero_stages and choices.has_zero(zero)]
    several = tuple(zero for zero in some if zero == PLAIN or zero <= runtime.zero_with_pipeline)
    return Stages(several=several, one=tuple(zero for zero in some if zero != PLAIN))


def classes_of(most: int, *, one_stage: bool) -> list[tuple[int, int]]:
    """(least, most) replicas of each class of lanes that shard, up to so many; the same edges in
    every cluster.
    """
    if not one_stage:
        return [part for part in ((2, NEAR), (NEAR + 1, ANY)) if part[0] <= most]
    found = [(2, 2)]
    for power in count(1):
        least = 2**power + 1
        if least > most:
            return found if most >= 2 else []
        found.append((least, 2 ** (power + 1)))
    raise AssertionError


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """A layer of each block in the rows of a pool: (blocks, rows) seconds of a forward, a backward,
    and what both recomputes add.

    Args:
        counts: (parts, blocks) how often each is in each part.
    """

    forward: FloatArray
    backward: FloatArray
    selective: FloatArray
    full: FloatArray
    counts: IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneSums:
    """Collectives of a lane of one mesh, k = replicas from 2 on.

    Args:
        sync: (blocks, k) seconds of one layer of each block.
        copies: (blocks, k) around its gathers and its reduction, as `sharded.copy_seconds`.
        slowdown: (k,) of kernels beside them.
    """

    sync: SyncTable
    copies: tuple[FloatArray, FloatArray, FloatArray]
    slowdown: FloatArray


def lane_sums(own: Problem, mesh: StageMesh, replicas: int, *, nodes: int) -> LaneSums:
    """Collectives of lanes of 2 to `replicas` replicas, side by side in nodes of the mesh's pool.

    Where the pool has several nodes, a lane may begin inside one. Its groups then have fewer
    members in a node, down to half of what the densest group has, and slower collectives, for which
    fewer channels run beside kernels: the slowdown is that of half as many.

    Args:
        own: the problem of the pool's kind.
        nodes: of the pool.
    """
    own = filled(own, by=mesh.size)
    many = np.arange(2, replicas + 1, dtype=np.int64)
    tp = np.full_like(many, mesh.tp)
    rows = stage_rows(
        tp,
        np.ones_like(many),
        sp=own.runtime.sequence_parallel,
        dp=mesh.dp * many,
        ep=mesh.ep,
        stride=tp,
    )
    sync = reductions_table(own, rows, mesh.dp * many)
    network = network_of(own.cluster, library=own.runtime.collective_library)
    axes = axes_of("dp-cp", rows)
    span = span_of(network.tiers, axes)
    if nodes > 1:
        span = span_of(network.tiers, axes, fewer=tuple(below // 2 for below in span.below[:-1]))
    return LaneSums(
        sync=sync, copies=copy_seconds(own, sync), slowdown=overlap_slowdown(own, span, network)
    )


def sharded_columns(
    own: Problem,
    base: dict[str, FloatArray],
    blocks: Blocks,
    sums: dict[StageMesh, LaneSums],
    chosen: list[tuple[StageMesh, int, int, int]],
    *,
    zero: int,
) -> dict[str, FloatArray]:
    """Columns of the rows of lanes of a ZeRO stage.

    Args:
        base: columns of the pool's rows as they are without sharding.
        sums: of each mesh.
        chosen: mesh, row of the base, least and most replicas of each row.
    """
    which = np.array([row for _, row, _, _ in chosen], dtype=np.int64)
    columns = {name: column[which] for name, column in base.items()}
    spent = np.stack(
        [
            _least_of(own, blocks, sums[mesh], row, (low, high), zero=zero)
            for mesh, row, low, high in chosen
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
        _own_sums(own, blocks.counts, sums[mesh], (low, high), zero=zero)
        for mesh, _, low, high in chosen
    ]
    columns["own_gather"], columns["own_reduce"] = (
        np.stack([one[which] for one in held]) for which in (GATHER, REDUCE)
    )
    whole = [
        _gathered(own, blocks.counts, sums[mesh])
        if zero == 3
        else np.zeros((2, len(blocks.counts)))
        for mesh, *_ in chosen
    ]
    columns["root"], columns["unit"] = (
        np.stack([one[place] for one in whole]) for place in range(2)
    )
    columns |= {"zero": np.full(len(chosen), zero)}
    columns |= {
        name: np.array([one[place] for one in chosen])
        for name, place in (("least", 2), ("most", 3))
    }
    return columns


def plain_columns(base: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Columns of the rows of lanes that do not shard."""
    n, parts = base["seconds"].shape[:2]
    none = np.zeros((n, parts))
    columns = dict(base)
    columns |= dict.fromkeys(("own_gather", "own_reduce", "root", "unit"), none)
    return columns | {
        "zero": np.full(n, PLAIN),
        "least": np.ones(n, dtype=np.int64),
        "most": np.full(n, ANY),
    }


def _among(sums: LaneSums, choice_of_shapes: tuple[int, int]) -> slice:
    """The columns of least to most replicas."""
    return slice(choice_of_shapes[0] - 2, min(choice_of_shapes[1] - 1, len(sums.slowdown)))


def _least_of(
    own: Problem,
    blocks: Blocks,
    sums: LaneSums,
    row: int,
    choice_of_shapes: tuple[int, int],
    *,
    zero: int,
) -> FloatArray:
    """(4, blocks) seconds at least of a layer's forward and backward, and of what selective and
    full recompute add to it.
    """
    sync, some, runtime = sums.sync, _among(sums, choice_of_shapes), own.runtime
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


def _own_sums(
    own: Problem, counts: IntArray, sums: LaneSums, choice_of_shapes: tuple[int, int], *, zero: int
) -> FloatArray:
    """(2, parts) seconds at least of what a lane gathers at the step's start, and sums at its end
    where no microbatch does.
    """
    sync, some = sums.sync, _among(sums, choice_of_shapes)
    gather = counts @ sync.gather[:, some] if zero == 2 else np.zeros((len(counts), 1))
    reduce = sync.scatter if zero == 3 else sync.reduce
    late = (
        np.zeros((len(counts), 1))
        if own.runtime.reduce_every_microbatch
        else counts @ reduce[:, some]
    )
    return np.stack([gather.min(axis=1), late.min(axis=1)])


def _gathered(own: Problem, counts: IntArray, sums: LaneSums) -> FloatArray:
    """(2, parts) elements that ZeRO-3 makes whole: embeddings and heads for the step, and the
    largest block gathered by itself.
    """
    unit = np.array([is_unit(block) for block in own.model.blocks], dtype=np.bool_)
    block = sums.sync.gathered[:, 0].astype(np.float64)
    return np.stack([counts @ (block * ~unit), ((counts > 0) * (block * unit)).max(axis=1)])
