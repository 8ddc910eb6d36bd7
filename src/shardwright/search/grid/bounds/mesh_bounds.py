"""Lower bound of all members of a mesh at once: compute and the communication inside layers, on the
ranks that B0 looks at.

With stages of s_r seconds a microbatch, forward and backward, p of them and m microbatches::

    T >= min over microbatch sizes and chunks a rank of max over ranks r of (m s_r + the first
      chunks of the ranks before r) >= m (s_0 + ... + s_p-1) / p + f, the mean over ranks

where f is the mean of what stands before a rank: of l layers over p ranks and v chunks each, every
first chunk has floor(l / p v) of the least block, but for the first of all, which may have one
less, so f >= floor(l / p v) (p - 1) / 2 - (p - 1) / p of these.

Every term is one of B0's, which adds sums of gradients, ZeRO's gathers, recompute, borders and
updates: none of them is negative. With 4 ranks of 2 s, one chunk of two layers each, and 8
microbatches the last rank gives 8 x 2 + 3 x 2 = 22 s, the mean 16 + 3 - 0.75 = 18.25 s.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from shardwright import arrays
from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.degree_columns import Rows
from shardwright.cost.tables.layers_by_chunk import ChunkLayout, layout_of
from shardwright.cost.tables.problem_tables import layer_table
from shardwright.cost.tables.row_cache import cached_table
from shardwright.cost.tables.table_columns import LayerTable
from shardwright.errors import StrategyError
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.identity_keys import Same
from shardwright.program.problem import Problem
from shardwright.search.grid.bounds.bound_arrays import Prepared, jitters
from shardwright.search.grid.bounds.nearest_group_prices import KIND, NearLayers, near_layers
from shardwright.search.grid.members.choice_columns import (
    Columns,
    distinct,
    extended,
    first_of_each,
)
from shardwright.search.grid.members.declared_space import Space, Value
from shardwright.search.grid.members.device_meshes import Meshes
from shardwright.strategy.grid.grid_rules import SCHEDULES, GridFacts

_PLACED = ("tp", "cp", "ep", "etp", "s_tp", "s_cp")
_LOOKED: Final = 8
"""Rows of `_looked_at`."""
MARGIN = 1 - 1e-8
"""B0 adds the same seconds in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Lower bound in seconds of blocks, forward and backward, over all other choices of a member.

    Args:
        seconds: (blocks, kinds, sizes of microbatches); a kind is the degrees and strides inside a
            layer.
        kind: (meshes,).
        count: (meshes, sizes) microbatches of a replica.
        legal: (meshes, sizes) some member has them.
    """

    seconds: FloatArray
    kind: IntArray
    count: IntArray
    legal: BoolArray


def mesh_bounds(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    meshes: Meshes,
    *,
    known: Prepared | None = None,
    near: NearLayers | None = None,
    until: float = float("inf"),
) -> FloatArray:
    """(meshes,) lower bound in seconds of all members of each mesh; inf where none has a legal
    microbatch or pipeline.

    Args:
        known: members on all devices, None = none: what is priced there is not priced again.
        near: layers of the meshes that lie as near as they can; None = they are priced where
            experts need them.
        until: a mesh whose mean over ranks is no less is looked at no closer.
    """
    if not len(meshes):
        return np.empty(0)
    # Where replicas and pipeline ranks lie matters to no term.
    first, place = first_of_each({name: meshes.columns[name] for name in (*_PLACED, "pp", "dp")})
    meshes = meshes.take(first)
    noise = jitters(problem, meshes.devices) * MARGIN
    if near is None and has_experts(problem):
        near = near_layers(problem, space, facts, meshes.columns)
    work = _work(problem, space, facts, meshes, known, near)
    found = _means(problem, space, facts, meshes, work) * noise
    close = np.flatnonzero(found < until)
    found[close] = _by_rank(problem, space, facts, meshes, work, close) * noise[close]
    return found[place]


def has_experts(problem: Problem) -> bool:
    """True if the model has experts, whose exchange depends on where replicas lie, in too many
    ways to price each.
    """
    return any(o.experts is not None for b in problem.model.blocks for o in b.operators)


def _work(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    meshes: Meshes,
    known: Prepared | None,
    near: NearLayers | None,
) -> _Work:
    sizes = np.array([int(size) for size in space.of("mbs")], dtype=np.int64)
    if near is not None:
        found, kind = distinct({name: meshes.columns[name] for name in KIND})
        seconds = _nearest(problem, near, found, sizes)
    else:
        found, kind = distinct(dict(zip(_PLACED, _placed(meshes.columns).T, strict=True)))
        kinds = np.stack([found[name] for name in _PLACED], axis=1)
        seconds = np.full((len(problem.model.blocks), len(kinds), len(sizes)), np.inf)
        if known is not None and len(known.members.outers):
            seconds = _priced_already(problem, known, kinds, sizes)
        missing = np.flatnonzero(np.isinf(seconds[0]).any(axis=1))
        if len(missing):
            priced = _priced(
                problem, space, facts, dict(zip(_PLACED, kinds[missing].T, strict=True)), sizes
            )
            seconds[:, missing] = np.minimum(seconds[:, missing], priced)
    count, rest = np.divmod(facts.global_batch, meshes.columns["dp"][:, None] * sizes)
    legal = (rest == 0) & np.isfinite(seconds[0])[kind]
    return _Work(
        seconds=np.where(np.isfinite(seconds), seconds, 0.0), kind=kind, count=count, legal=legal
    )


def _placed(columns: Columns) -> IntArray:
    """(rows, _PLACED) columns of the places of groups; a group of one has none."""
    stride = {
        f"s_{axis}": np.where(columns[axis] > 1, columns[f"s_{axis}"], 1) for axis in ("tp", "cp")
    }
    return np.stack([(columns | stride)[name] for name in _PLACED], axis=1)


def _both_ways(table: LayerTable) -> FloatArray:
    """(blocks, rows) seconds forward and backward."""
    both: FloatArray = table.seconds.sum(axis=2)[:, :3].sum(axis=1)
    return both


def _nearest(problem: Problem, near: NearLayers, kinds: Columns, sizes: IntArray) -> FloatArray:
    """(blocks, kinds, sizes) least seconds with groups as near as they can lie; inf where no
    choice is legal.
    """
    count, rows = len(kinds["tp"]), len(near.columns["tp"])
    _, place = first_of_each(
        {name: np.concatenate([kinds[name], near.columns[name]]) for name in KIND}
    )
    kind_of = np.full(int(place.max()) + 1, -1, dtype=np.int64)
    kind_of[place[:count]] = np.arange(count)
    kind = kind_of[place[count:]]
    some = np.flatnonzero(kind >= 0)
    at = kind[some] * len(sizes) + np.searchsorted(sizes, near.columns["mbs"][some])
    # The first set of modules runs the least again.
    both = _both_ways(near.table)[:, :rows]
    return np.stack([_least(seconds[some], at, count * len(sizes)) for seconds in both]).reshape(
        len(both), count, len(sizes)
    )


def _least(values: FloatArray, at: IntArray, count: int) -> FloatArray:
    """(count,) the least of the values at each place; inf of none."""
    found = np.full(count, np.inf)
    np.minimum.at(found, at, values)
    return found


def _priced_already(
    problem: Problem, known: Prepared, kinds: IntArray, sizes: IntArray
) -> FloatArray:
    """(blocks, kinds, sizes) least seconds of the members of `known`; inf where there are none.

    Which other choices a layer has depends on the kind alone where there are no experts: where one
    is met, all are.
    """
    found = np.full((len(problem.model.blocks), len(kinds), len(sizes)), np.inf)
    outer, members = known.members.outers.columns, known.members
    place = {tuple(row): at for at, row in enumerate(kinds.tolist())}
    of_mesh = np.array(
        [place.get(tuple(row), -1) for row in _placed(members.meshes.columns).tolist()],
        dtype=np.int64,
    )
    rows = arrays.distinct_rows(
        np.stack(
            [of_mesh[outer["mesh"]], np.searchsorted(sizes, outer["mbs"]), known.layer_row], axis=1
        )
    )
    kind, size, row = rows[rows[:, 0] >= 0].T
    for block, seconds in zip(found, _both_ways(known.layers), strict=True):
        np.minimum.at(block, (kind, size), seconds[row])
    return found


def _priced(
    problem: Problem, space: Space, facts: GridFacts, kinds: Columns, sizes: IntArray
) -> FloatArray:
    """(blocks, kinds, sizes) least seconds over all choices; inf where none is legal."""
    columns: Columns = kinds | {"kind": np.arange(len(kinds["tp"]))}
    for axis in ("sp", "ulysses", "gather"):
        columns = extended(columns, axis, space.of(axis), facts)
    rows = {name: np.repeat(column, len(sizes)) for name, column in columns.items()} | {
        "mbs": np.tile(sizes, len(columns["kind"]))
    }
    rows["gather"] = np.where(rows["ulysses"] == rows["cp"], 0, rows["gather"])
    kind, place = rows.pop("kind"), np.tile(np.arange(len(sizes)), len(columns["kind"]))
    ones = np.ones_like(kind)
    placed = Rows(columns=rows | dict.fromkeys(("dp", "pp", "s_dp", "s_pp"), ones))
    table = cached_table(layer_table, problem, placed, modules=space.modules[:1])
    found = np.full((len(table.seconds), len(kinds["tp"]), len(sizes)), np.inf)
    for block, seconds in zip(found, _both_ways(table), strict=True):
        np.minimum.at(block, (kind, place), seconds)
    return found


def _means(
    problem: Problem, space: Space, facts: GridFacts, meshes: Meshes, work: _Work
) -> FloatArray:
    """(meshes,) lower bound in seconds from the mean over ranks, for any chunks."""
    blocks = np.zeros(len(problem.model.blocks))
    for run in problem.model.runs:
        blocks[run.block] += run.count
    whole: FloatArray = np.einsum("b,bks->ks", blocks, work.seconds)[work.kind]
    pp = meshes.columns["pp"][:, None]
    chunks = np.where(_interleaves(space, pp, work.count), max(int(v) for v in space.of("vpp")), 1)
    ahead = np.maximum(facts.layers // (pp * chunks) * (pp - 1) / 2 - (pp - 1) / pp, 0.0) * (
        not (space.first or space.last)
    )
    layers = np.array([b.is_layer for b in problem.model.blocks])
    spent = work.count * whole / pp + ahead * work.seconds[layers].min(axis=0)[work.kind]
    least: FloatArray = np.where(work.legal, spent, np.inf).min(axis=1)
    return least


def _interleaves(space: Space, pp: IntArray, count: IntArray) -> BoolArray:
    """True where several chunks a rank are legal for so many ranks and microbatches."""
    legal: BoolArray = (
        (pp > 1) & (count % pp == 0) & any(SCHEDULES[str(name)] for name in space.of("schedule"))
    )
    return legal


def _by_rank(
    problem: Problem, space: Space, facts: GridFacts, meshes: Meshes, work: _Work, rows: IntArray
) -> FloatArray:
    """Lower bound in seconds of some `rows`, rank by rank."""
    pp, found = meshes.columns["pp"][rows], np.full(len(rows), np.inf)
    lines = _pipelines(
        Same(problem.model),
        tuple(arrays.distinct(pp).tolist()),
        space.of("vpp"),
        space.first,
        space.last,
        facts.layers,
    )
    plain = any(not SCHEDULES[str(name)] for name in space.of("schedule"))
    start, end = (np.searchsorted(lines.pp, pp, side=side) for side in ("left", "right"))
    some = np.flatnonzero(end > start)
    if not len(some):
        return found
    begin = np.cumsum(end - start) - (end - start)
    at = np.repeat(some, (end - start)[some])
    line = np.arange(len(at)) - begin[at] + start[at]
    count, kind = work.count[rows[at]], work.kind[rows[at]]
    each = np.einsum("lrb,bks->lkrs", lines.looked, work.seconds)[line, kind]
    spent = (count[:, None] * each[:, : _LOOKED // 2] + each[:, _LOOKED // 2 :]).max(axis=1)
    legal = work.legal[rows[at]] & np.where(
        lines.vpp[line, None] > 1, _interleaves(space, lines.pp[line, None], count), plain
    )
    least = np.where(legal, spent, np.inf).min(axis=1, initial=np.inf)
    found[some] = np.minimum.reduceat(least, begin[some])
    return found


class _Pipelines(NamedTuple):
    """Ranks and chunks a rank that layers can be dealt to, by rising `pp`; looked: (pipelines, 2
    ranks, blocks), see `_looked_at`.
    """

    pp: IntArray
    vpp: IntArray
    looked: FloatArray


@lru_cache(maxsize=64)
def _pipelines(
    model: Same[Model],
    ranks: tuple[int, ...],
    chunks: tuple[Value, ...],
    first: int,
    last: int,
    layers: int,
) -> _Pipelines:
    layouts: list[ChunkLayout] = []
    for pp, vpp in product(ranks, map(int, chunks)):
        if pp * vpp <= layers + 2:
            with suppress(StrategyError):
                layouts.append(layout_of(model.value, pp=pp, vpp=vpp, first=first, last=last))
    cuts = np.array([(layout.pp, layout.vpp) for layout in layouts], dtype=np.int64).reshape(-1, 2)
    looked = np.array([_looked_at(layout) for layout in layouts]).reshape(
        len(layouts), _LOOKED, len(model.value.blocks)
    )
    return _Pipelines(cuts[:, 0], cuts[:, 1], looked)


@lru_cache(maxsize=8192)
def _looked_at(layout: ChunkLayout) -> FloatArray:
    """(2 ranks, blocks) blocks of some pipeline ranks, then of the first chunks of the ranks
    before each.
    """
    pp = layout.pp
    ranks = np.array([0, min(1, pp - 1), max(pp - 2, 0), pp - 1])
    first = np.concatenate(
        [np.zeros((1, layout.counts.shape[1])), np.cumsum(layout.counts[:pp], axis=0)]
    )[ranks]
    return np.concatenate([layout.by_rank[ranks], first]).astype(np.float64)
