"""Pipelines as arrays for the B0 kernel: the blocks of every chunk, the sends between chunks.

A block's seconds depend on its process groups, so the same block on ranks with other group
placements is a different block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardwright import arrays
from shardwright.arrays import IntArray
from shardwright.cost.bounds.compiled_bound_array_records import Patterns
from shardwright.cost.network.pipeline_chains_with_distinct_group_placement import tier_crossed
from shardwright.cost.step.strategy_task_seconds import pieces_of
from shardwright.cost.tables.pipeline_chunk_layout import ChunkLayout
from shardwright.program.training_problem import Problem
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import Columns, distinct
from shardwright.search.grid.members.grid_search_space import Space

Pattern = dict[str, npt.NDArray[Any]]

LOOKED: Final = 5
"""Number of pipeline ranks that B0 evaluates."""


def stacked(patterns: list[Pattern]) -> Patterns:
    """Stack patterns with equal numbers of blocks into one set of arrays."""
    return Patterns(
        **{name: np.stack([pattern[name] for pattern in patterns]) for name in Patterns._fields}
    )


def grid_patterns(
    problem: Problem,
    space: Space,
    layouts: Mapping[tuple[int, int], ChunkLayout],
    pipelines: Columns,
    *,
    units: tuple[int, ...],
) -> tuple[Patterns, IntArray]:
    """Block and send counts of each different pipeline, and each row's index among these patterns.

    Args:
        pipelines: columns pp, vpp, `border` (the innermost tier that any border may cross) and
            `apart` (devices from a rank to the next if all lines cross the same tiers but borders
            cross different ones; else 0).
    """
    distinct_pipelines, row = distinct(
        {name: pipelines[name] for name in ("pp", "vpp", "border", "apart")}
    )
    rows = zip(
        *(distinct_pipelines[name].tolist() for name in ("pp", "vpp", "border", "apart")),
        strict=True,
    )
    recompute_counts, is_pieced = (
        tuple([int(k) for k in space.of("recompute_layers")]),
        problem.runtime.overlap_grad_reduce,
    )
    patterns = [
        _grid_pattern(layouts[pp, vpp], recompute_counts, is_pieced, border, apart, units)
        for pp, vpp, border, apart in rows
    ]
    return stacked(patterns), row


@lru_cache(maxsize=4096)
def _grid_pattern(
    layout: ChunkLayout,
    recompute_counts: tuple[int, ...],
    is_pieced: bool,
    border: int,
    stride: int,
    units: tuple[int, ...],
) -> Pattern:
    """Pattern of a pipeline of groups that lie alike; sends at tier `border`, or by `stride`."""
    first_device = np.arange(layout.pp) * stride
    tier_to_next = (
        tier_crossed(first_device, np.roll(first_device, -1), units)
        if stride
        else np.full(layout.pp, border)
    )
    return _uniform_blocks(layout, recompute_counts, is_pieced) | _send_counts(
        layout, tier_to_next, len(units), _evaluated_ranks(layout)
    )


@lru_cache(maxsize=4096)
def _uniform_blocks(
    layout: ChunkLayout, recompute_counts: tuple[int, ...], is_pieced: bool
) -> Pattern:
    """Block part of the pattern of a pipeline whose process groups all lie alike."""
    return _pattern(
        layout,
        recompute_counts,
        layout.counts,
        np.ones((len(layout.counts), 1), dtype=np.int64),
        _evaluated_ranks(layout),
        pieced=is_pieced,
    )


def line_pattern(
    problem: Problem,
    space: Space,
    layout: ChunkLayout,
    *,
    ways: IntArray,
    behind: IntArray,
    tiers: int,
) -> Pattern:
    """Pattern of a pipeline along a device chain: `ways` group placement, `behind` send tier.

    Args:
        ways: (pp,) number of the placement of each rank's groups, from 0 on.
        behind: (pp,) network tier of the send from each rank to the next.
    """
    chunk = np.arange(len(layout.counts))
    of_way = np.zeros((len(chunk), int(ways.max()) + 1), dtype=np.int64)
    of_way[chunk, ways[chunk % layout.pp]] = 1
    counts = (of_way[:, :, None] * layout.counts[:, None, :]).reshape(len(chunk), -1)
    ranks, recompute_counts = (
        _evaluated_line_ranks(layout, ways),
        tuple(int(k) for k in space.of("recompute_layers")),
    )
    block_arrays = _pattern(
        layout, recompute_counts, counts, of_way, ranks, pieced=problem.runtime.overlap_grad_reduce
    )
    return block_arrays | _send_counts(layout, behind, tiers, ranks)


def _send_counts(layout: ChunkLayout, behind: IntArray, tiers: int, ranks: IntArray) -> Pattern:
    """Numbers of sends between chunks by stream and network tier, for the evaluated ranks.

    `behind` is the (pp,) tier of the send from each rank to the next.
    """
    pp, chunk, columns = layout.pp, np.arange(len(layout.counts)), layout.streams * tiers
    into, out = np.zeros((2, len(chunk), columns))
    out[chunk[:-1], layout.sent[:-1] * tiers + behind[chunk[:-1] % pp]] = 1.0
    into[1:] = out[:-1]
    before = np.cumsum(into, axis=0)
    return {
        "crossed": before[ranks],
        "crossed_around": before[ranks + (layout.vpp - 1) * pp],
        "crossed_total": before[-1],
        "sends": (into + out).reshape(layout.vpp, pp, columns).sum(axis=0)[ranks],
    }


@lru_cache(maxsize=4096)
def _evaluated_ranks(layout: ChunkLayout) -> IntArray:
    """Ranks that B0 evaluates: the first two, the last two, and the inner rank with most layers.

    Layers are of the commonest kind. If the first layers differ (dense layers before experts), the
    second rank still has some of them; of the ranks without them, this inner rank is the first with
    the most activations and states together.
    """
    pp = layout.pp
    ranks = {0, min(1, pp - 1), max(pp - 2, 0), pp - 1}
    if pp > 2:
        commonest = int(np.argmax(layout.counts.sum(axis=0) * layout.layer))
        ranks.add(1 + int(np.argmax(layout.by_rank[1 : pp - 1, commonest])))
    return np.array(sorted(ranks) + [pp - 1] * (LOOKED - len(ranks)), dtype=np.int64)


def _evaluated_line_ranks(layout: ChunkLayout, ways: IntArray) -> IntArray:
    """Ranks of `_evaluated_ranks` plus the inner rank nearest the middle of each placement.

    Missing ranks are filled with the last rank.
    """
    pp, always, num_ways = layout.pp, _evaluated_ranks(layout), int(ways.max()) + 1
    if num_ways == 1:
        return always
    nearest_middle = {
        min(np.flatnonzero(ways == way).tolist(), key=lambda rank: abs(rank - pp // 2))
        for way in range(num_ways)
    }
    ranks = sorted(nearest_middle.union(always.tolist()))
    return np.array(ranks + [pp - 1] * (len(always) + num_ways - len(ranks)), dtype=np.int64)


def _pattern(
    layout: ChunkLayout,
    options: tuple[int, ...],
    counts: IntArray,
    of_way: IntArray,
    ranks: IntArray,
    *,
    pieced: bool,
) -> Pattern:
    """Pattern arrays of a pipeline with the given block `counts` of (chunks, ways x blocks).

    Args:
        options: numbers of recomputed layers, 0 = all.
        pieced: see `strategy_task_seconds.pieces_of`.
        of_way: (chunks, ways) 1 at the placement of a chunk's groups, else 0.
        ranks: ranks to evaluate.
    """
    recompute_counts = np.array(options, dtype=np.int64)
    pp, layers = layout.pp, layout.counts[:, layout.layer].sum(axis=1)
    recomputed = np.minimum(
        np.where(recompute_counts == 0, layers.max(), recompute_counts)[None, :], layers[:, None]
    )[:, :, None].astype(np.float64)
    recomputed = recomputed * of_way[:, None, :]
    chunks, redone_chunks = (
        counts.reshape(layout.vpp, pp, -1),
        recomputed.reshape(layout.vpp, pp, *recomputed.shape[1:]),
    )
    before = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts, axis=0)])
    redone_before = np.concatenate(
        [np.zeros((1, *recomputed.shape[1:])), np.cumsum(recomputed, axis=0)]
    )
    pieces = pieces_of(layout, overlapped=pieced)
    stage, redone_stage, final = (
        chunks.sum(axis=0),
        redone_chunks.sum(axis=0),
        ranks + (layout.vpp - 1) * pp,
    )
    return {
        "ranks": np.array(pp),
        "chunks_per_rank": np.array(layout.vpp),
        "looked": np.array(len(arrays.distinct(ranks))),
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
        "redone_around": redone_before[final] + pp * (recomputed[final] - redone_stage[ranks]),
        "redone_own": recomputed[ranks],
        "redone_least": redone_chunks.min(axis=0)[ranks],
        "redone_total": recomputed.sum(axis=0),
        "has_head": (layout.by_rank[ranks][:, layout.head].sum(axis=1) > 0).astype(np.int64),
    }
