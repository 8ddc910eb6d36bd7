"""Pipelines as arrays for the B0 kernel: the blocks of every chunk, and the sends between chunks.

A block takes what its groups take, so a block on ranks whose groups lie otherwise is another block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardwright import arrays
from shardwright.arrays import IntArray
from shardwright.cost.bounds.closed_form_arrays import Patterns
from shardwright.cost.network.pipeline_lines import tier_crossed
from shardwright.cost.step.grid_seconds import pieces_of
from shardwright.cost.tables.layers_by_chunk import ChunkLayout
from shardwright.program.problem import Problem
from shardwright.search.grid.members.choice_columns import Columns, distinct
from shardwright.search.grid.members.declared_space import Space

Pattern = dict[str, npt.NDArray[Any]]

LOOKED: Final = 5
"""Ranks of a pipeline that B0 looks at."""


def stacked(patterns: list[Pattern]) -> Patterns:
    """Patterns with equal numbers of blocks as one set of arrays."""
    return Patterns(
        **{name: np.stack([one[name] for one in patterns]) for name in Patterns._fields}
    )


def grid_patterns(
    problem: Problem,
    space: Space,
    layouts: Mapping[tuple[int, int], ChunkLayout],
    pipelines: Columns,
    *,
    units: tuple[int, ...],
) -> tuple[Patterns, IntArray]:
    """Patterns of pipelines whose process groups all lie alike, and the place of each row's
    pattern.

    Args:
        pipelines: rows of pp, vpp, `border`, the innermost tier that a border may cross, which
            stands for all, and `apart`: devices from a rank to the next where all lines cross the
            same tiers, which are not one; else 0.
    """
    few, row = distinct({name: pipelines[name] for name in ("pp", "vpp", "border", "apart")})
    cuts = zip(*(few[name].tolist() for name in ("pp", "vpp", "border", "apart")), strict=True)
    ks, pieced = (
        tuple([int(k) for k in space.of("recompute_layers")]),
        problem.runtime.overlap_grad_reduce,
    )
    found = [
        _grid_pattern(layouts[pp, vpp], ks, pieced, border, apart, units)
        for pp, vpp, border, apart in cuts
    ]
    return stacked(found), row


@lru_cache(maxsize=4096)
def _grid_pattern(
    layout: ChunkLayout,
    ks: tuple[int, ...],
    pieced: bool,
    border: int,
    apart: int,
    units: tuple[int, ...],
) -> Pattern:
    """One such pattern, the same for every row of options."""
    first = np.arange(layout.pp) * apart
    behind = tier_crossed(first, np.roll(first, -1), units) if apart else np.full(layout.pp, border)
    return _in_one_way(layout, ks, pieced) | _borders(layout, behind, len(units), _told(layout))


@lru_cache(maxsize=4096)
def _in_one_way(layout: ChunkLayout, ks: tuple[int, ...], pieced: bool) -> Pattern:
    """Blocks of a pipeline whose process groups all lie alike."""
    return _pattern(
        layout,
        ks,
        layout.counts,
        np.ones((len(layout.counts), 1), dtype=np.int64),
        _told(layout),
        pieced=pieced,
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
    """Pattern of one (pp, vpp) along a line.

    Args:
        ways: (pp,) the way in which each rank's groups lie, from 0 on.
        behind: (pp,) tier that it sends across to the next rank.
    """
    chunk = np.arange(len(layout.counts))
    of_way = np.zeros((len(chunk), int(ways.max()) + 1), dtype=np.int64)
    of_way[chunk, ways[chunk % layout.pp]] = 1
    counts = (of_way[:, :, None] * layout.counts[:, None, :]).reshape(len(chunk), -1)
    ranks, ks = _looked(layout, ways), tuple(int(k) for k in space.of("recompute_layers"))
    blocks = _pattern(layout, ks, counts, of_way, ranks, pieced=problem.runtime.overlap_grad_reduce)
    return blocks | _borders(layout, behind, tiers, ranks)


def _borders(layout: ChunkLayout, behind: IntArray, tiers: int, ranks: IntArray) -> Pattern:
    """Sends between chunks by their stream and the tier that they cross: (pp,) from each rank to
    the next.
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
def _told(layout: ChunkLayout) -> IntArray:
    """Ranks that B0 looks at in every pipeline: first, second, second to last, last, and the inner
    one with the most layers of the commonest kind.

    Where the first layers are unlike the others (dense ones before experts) the second rank still
    has some of them: of those that hold none it is the first whose activations and states together
    are the most.
    """
    pp = layout.pp
    looked = {0, min(1, pp - 1), max(pp - 2, 0), pp - 1}
    if pp > 2:
        commonest = int(np.argmax(layout.counts.sum(axis=0) * layout.layer))
        looked.add(1 + int(np.argmax(layout.by_rank[1 : pp - 1, commonest])))
    return np.array(sorted(looked) + [pp - 1] * (LOOKED - len(looked)), dtype=np.int64)


def _looked(layout: ChunkLayout, ways: IntArray) -> IntArray:
    """The ranks of `_told`, and one inner rank for each way in which groups lie, the one nearest to
    the middle.

    A rank that is there already stands again as the last one.
    """
    pp, told, several = layout.pp, _told(layout), int(ways.max()) + 1
    if several == 1:
        return told
    inside = {
        min(np.flatnonzero(ways == way).tolist(), key=lambda rank: abs(rank - pp // 2))
        for way in range(several)
    }
    looked = sorted(inside.union(told.tolist()))
    return np.array(looked + [pp - 1] * (len(told) + several - len(looked)), dtype=np.int64)


def _pattern(
    layout: ChunkLayout,
    options: tuple[int, ...],
    counts: IntArray,
    of_way: IntArray,
    ranks: IntArray,
    *,
    pieced: bool,
) -> Pattern:
    """Pattern of blocks `counts` (chunks, ways x blocks) in the pipeline of `layout`.

    Args:
        options: numbers of recomputed layers, 0 = all.
        pieced: see `step_costs.pieces_of`.
        of_way: (chunks, ways) 1 of the way in which a chunk's groups lie, 0 of the others.
        ranks: to look at.
    """
    ks = np.array(options, dtype=np.int64)
    pp, layers = layout.pp, layout.counts[:, layout.layer].sum(axis=1)
    redone = np.minimum(np.where(ks == 0, layers.max(), ks)[None, :], layers[:, None])[
        :, :, None
    ].astype(np.float64)
    redone = redone * of_way[:, None, :]
    chunks, redone_chunks = (
        counts.reshape(layout.vpp, pp, -1),
        redone.reshape(layout.vpp, pp, *redone.shape[1:]),
    )
    before = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts, axis=0)])
    redone_before = np.concatenate([np.zeros((1, *redone.shape[1:])), np.cumsum(redone, axis=0)])
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
        "redone_around": redone_before[final] + pp * (redone[final] - redone_stage[ranks]),
        "redone_own": redone[ranks],
        "redone_least": redone_chunks.min(axis=0)[ranks],
        "redone_total": redone.sum(axis=0),
        "has_head": (layout.by_rank[ranks][:, layout.head].sum(axis=1) > 0).astype(np.int64),
    }
