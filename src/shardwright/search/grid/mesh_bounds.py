"""A lower bound of all members of a mesh at once: compute and the communication inside layers, on the ranks that B0 looks at.

With stages of s_r seconds a microbatch, forward and backward, and m microbatches::

    T >= min over microbatch sizes and chunks a rank of max over ranks r of (m s_r + the first chunks of the ranks before r)

Every term is one of B0's, which adds sums of gradients, ZeRO's gathers, recompute, borders and updates: none of them is negative. With 4
ranks of 2 s and 8 microbatches the last rank gives 8 x 2 + 3 x 2 = 22 s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.block_table import EP
from shardwright.cost.chunk_layout import layout_of
from shardwright.cost.columns import layer_table
from shardwright.cost.degree_rows import Rows
from shardwright.errors import StrategyError
from shardwright.program.problem import Problem
from shardwright.search.grid.columns import Columns, extended
from shardwright.search.grid.meshes import Meshes
from shardwright.search.grid.prepare import jitters
from shardwright.search.grid.space import Space
from shardwright.strategy.grid.rules import SCHEDULES, GridFacts

_PLACED = ("tp", "cp", "ep", "etp", "s_tp", "s_cp")
_MARGIN = 1 - 1e-8
"""B0 adds the same seconds in another order."""


def mesh_bounds(problem: Problem, space: Space, facts: GridFacts, meshes: Meshes) -> FloatArray:
    """(meshes,) seconds that no member of each is under; inf where no microbatch or no pipeline is legal."""
    if not len(meshes):
        return np.empty(0)
    columns = meshes.columns
    kinds, kind = np.unique(np.stack([columns[name] for name in _PLACED], axis=1), axis=0, return_inverse=True)
    layers, possible = _layer_seconds(problem, space, facts, dict(zip(_PLACED, kinds.T, strict=True)))
    pipelines = _pipelines(problem, space, facts.layers, np.unique(columns["pp"]))
    # (pipelines, ranks, kinds, sizes): seconds of one microbatch on a rank, and of the first chunks before it.
    work = np.einsum("prb,bks->prks", pipelines.stage, layers)
    before = np.einsum("prb,bks->prks", pipelines.before, layers)
    found, kind = np.full(len(meshes), np.inf), kind.reshape(-1)
    samples = facts.global_batch // np.maximum(columns["dp"], 1)
    sizes = np.array([int(size) for size in space.of("mbs")], dtype=np.int64)
    for at, (ranks, chunks) in enumerate(zip(pipelines.ranks.tolist(), pipelines.chunks.tolist(), strict=True)):
        rows = np.flatnonzero(columns["pp"] == ranks)
        count, rest = np.divmod(samples[rows, None], sizes)
        legal = possible[kind[rows], None] & (rest == 0) & ((chunks == 1) | (count % ranks == 0))
        spent = (count * work[at][:, kind[rows]] + before[at][:, kind[rows]]).max(axis=0)
        found[rows] = np.minimum(found[rows], np.where(legal, spent, np.inf).min(axis=1, initial=np.inf))
    return found * jitters(problem, meshes.devices) * _MARGIN


def _layer_seconds(problem: Problem, space: Space, facts: GridFacts, kinds: Columns) -> tuple[FloatArray, BoolArray]:
    """(blocks, kinds, sizes of microbatches) least seconds of a block, forward and backward; and the (kinds,) of which a choice is legal.

    What experts exchange depends on where the replicas lie, and is left out.
    """
    columns: Columns = kinds | {"kind": np.arange(len(kinds["tp"]))}
    for axis in ("sp", "ulysses", "gather"):
        columns = extended(columns, axis, space.of(axis), facts)
    sizes = np.array([int(size) for size in space.of("mbs")], dtype=np.int64)
    rows = {name: np.repeat(column, len(sizes)) for name, column in columns.items()} | {"mbs": np.tile(sizes, len(columns["kind"]))}
    rows["gather"] = np.where(rows["ulysses"] == rows["cp"], 0, rows["gather"])
    kind, place = rows.pop("kind"), np.tile(np.arange(len(sizes)), len(columns["kind"]))
    ones = np.ones_like(kind)
    table = layer_table(problem, Rows(columns=rows | {name: ones for name in ("dp", "pp", "s_dp", "s_pp")}))
    spent = (table.seconds.sum(axis=2) - table.seconds[:, :, EP])[:, :3].sum(axis=1)
    least = np.full((len(table.seconds), len(kinds["tp"]), len(sizes)), np.inf)
    for block, seconds in zip(least, spent, strict=True):
        np.minimum.at(block, (kind, place), np.maximum(seconds, 0.0))
    possible = np.isfinite(least[0, :, 0])
    return np.where(possible[:, None], least, 0.0), possible


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipelines:
    """p = legal (pp, chunks a rank), r = one of the ranks looked at, b = block.

    Args:
        ranks, chunks: (p,). stage, before: (p, r, b) blocks on the rank, and in the first chunks of those before it.
    """

    ranks: IntArray
    chunks: IntArray
    stage: FloatArray
    before: FloatArray


def _pipelines(problem: Problem, space: Space, layers: int, degrees: IntArray) -> _Pipelines:
    """The pipelines of these degrees that spread `layers`."""
    names = [str(name) for name in space.of("schedule")]
    plain, several = (any(SCHEDULES[name] == interleaved for name in names) for interleaved in (False, True))
    found: list[tuple[int, int, FloatArray, FloatArray]] = []
    for pp in degrees.tolist():
        for vpp in map(int, space.of("vpp")):
            if pp * vpp > layers + 2 or not (plain if vpp == 1 else several and pp > 1):
                continue
            try:
                layout = layout_of(problem.model, pp=pp, vpp=vpp, first=space.first, last=space.last)
            except StrategyError:
                continue
            ranks = np.array([0, min(1, pp - 1), max(pp - 2, 0), pp - 1])
            first = np.concatenate([np.zeros((1, layout.counts.shape[1])), np.cumsum(layout.counts[:pp], axis=0)])
            found.append((pp, vpp, layout.by_rank[ranks].astype(np.float64), first[ranks]))
    pp_of, vpp_of, stage, before = zip(*found, strict=True) if found else ((), (), (), ())
    shape = (len(found), 4, len(problem.model.blocks))
    return _Pipelines(
        ranks=np.array(pp_of, dtype=np.int64),
        chunks=np.array(vpp_of, dtype=np.int64),
        stage=np.array(stage).reshape(shape),
        before=np.array(before).reshape(shape),
    )
