"""Lower bound of all members of a mesh at once: compute and communication inside layers.

The bound holds on the ranks that B0 evaluates. With stages of s_r seconds a microbatch, forward and
backward, p of them and m microbatches::

    T >= min over microbatch sizes and chunks a rank of max over ranks r of (m s_r + the first
      chunks of the ranks before r) >= m (s_0 + ... + s_p-1) / p + f, the mean over ranks

where f is the mean of the chunks before a rank: of l layers over p ranks and v chunks each, every
first chunk has floor(l / p v) of the cheapest block, but the first chunk of all may have one less,
so f >= floor(l / p v) (p - 1) / 2 - (p - 1) / p of these.

Every term is one of B0's. B0 adds gradient reductions, ZeRO's gathers, recompute, borders and
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
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import with_free_parts_of_blocks
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.block_layer_mesh_table_classes import LayerTable
from shardwright.cost.tables.pipeline_chunk_layout import ChunkLayout, layout_of
from shardwright.cost.tables.table_cache import cached_table
from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.bound_kernel_inputs import block_repeats
from shardwright.search.grid.bounds.layer_times_with_nearest_placement import (
    KIND,
    NearLayers,
    near_layers,
)
from shardwright.search.grid.bounds.member_price_tables import Prepared
from shardwright.search.grid.bounds.problem_constants_and_jitter_factors import jitters
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import (
    Columns,
    distinct,
    extended,
    first_of_each,
    ring_gather,
)
from shardwright.search.grid.members.grid_search_space import Space, Value
from shardwright.search.grid.members.legal_degrees_and_axis_orders import MeshRows
from shardwright.strategy.grid.grid_rules import SCHEDULES, GridFacts
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts

_PLACED = ("tp", "cp", "ep", "etp", "s_tp", "s_cp")
_LOOKED: Final = 8
"""Rows of `_evaluated_rank_blocks`."""
MARGIN = 1 - 1e-8
"""B0 adds the same seconds in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Lower bound of block seconds, forward and backward, over all other choices of a member.

    Args:
        seconds: (blocks, kinds, microbatch sizes); a kind is degrees and strides inside a layer.
        kind: (meshes,) kind of each mesh.
        count: (meshes, sizes) microbatches of a replica.
        legal: (meshes, sizes) True where some member has the size.
    """

    seconds: FloatArray
    kind: IntArray
    count: IntArray
    legal: BoolArray


def mesh_bounds(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    meshes: MeshRows,
    *,
    known: Prepared | None = None,
    near: NearLayers | None = None,
    until_s: float = float("inf"),
) -> FloatArray:
    """(meshes,) lower bound in step seconds of each mesh's members by layer work; inf = illegal.

    Args:
        known: members on all devices, whose prices are reused; None = none.
        near: layers of the meshes with groups placed as near as possible; None = they are priced if
            experts need them.
        until_s: meshes whose mean over ranks is at least this many seconds are bounded no further.
    """
    if not len(meshes):
        return np.empty(0)
    # No term depends on where replicas and pipeline ranks lie.
    distinct_places, place = first_of_each(
        {name: meshes.columns[name] for name in (*_PLACED, "pp", "dp")}
    )
    meshes = meshes.take(distinct_places)
    factor = jitters(problem, meshes.devices) * MARGIN
    # The all-to-all of experts depends on where replicas lie: too many placements to price each.
    if near is None and has_experts(problem.model):
        near = near_layers(problem, space, facts, meshes.columns)
    work = _least_work(problem, space, facts, meshes, known, near)
    bounds = _mean_bounds(problem, space, facts, meshes, work) * factor
    below_limit = np.flatnonzero(bounds < until_s)
    bounds[below_limit] = (
        _rank_bounds(problem, space, facts, meshes, work, below_limit) * factor[below_limit]
    )
    return bounds[place]


def _least_work(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    meshes: MeshRows,
    known: Prepared | None,
    near: NearLayers | None,
) -> _Work:
    """Least block seconds and legal microbatch counts of every mesh."""
    sizes = np.array([int(size) for size in space.of("mbs")], dtype=np.int64)
    if near is not None:
        distinct_kinds, kind = distinct({name: meshes.columns[name] for name in KIND})
        seconds = _nearest_seconds(problem, near, distinct_kinds, sizes)
    else:
        distinct_kinds, kind = distinct(
            dict(zip(_PLACED, _placement_columns(meshes.columns).T, strict=True))
        )
        kinds = np.stack([distinct_kinds[name] for name in _PLACED], axis=1)
        seconds = np.full((len(problem.model.blocks), len(kinds), len(sizes)), np.inf)
        if known is not None and len(known.members.outers):
            seconds = _known_seconds(problem, known, kinds, sizes)
        missing = np.flatnonzero(np.isinf(seconds[0]).any(axis=1))
        if len(missing):
            priced = _least_layer_seconds(
                problem, space, facts, dict(zip(_PLACED, kinds[missing].T, strict=True)), sizes
            )
            seconds[:, missing] = np.minimum(seconds[:, missing], priced)
    count, rest = np.divmod(facts.global_batch, meshes.columns["dp"][:, None] * sizes)
    legal = (rest == 0) & np.isfinite(seconds[0])[kind]
    return _Work(
        seconds=np.where(np.isfinite(seconds), seconds, 0.0), kind=kind, count=count, legal=legal
    )


def _placement_columns(columns: Columns) -> IntArray:
    """(rows, _PLACED) columns that fix the group placements; a group of one has stride 1."""
    stride = {
        f"s_{axis}": np.where(columns[axis] > 1, columns[f"s_{axis}"], 1) for axis in ("tp", "cp")
    }
    return np.stack([(columns | stride)[name] for name in _PLACED], axis=1)


def _forward_backward_seconds(table: LayerTable) -> FloatArray:
    """(blocks, rows) seconds of forward plus backward of one microbatch, without recompute."""
    seconds: FloatArray = table.seconds.sum(axis=2)[:, :3].sum(axis=1)
    return seconds


def _nearest_seconds(
    problem: Problem, near: NearLayers, kinds: Columns, sizes: IntArray
) -> FloatArray:
    """(blocks, kinds, sizes) least seconds with groups as near as possible; inf if illegal."""
    count, rows = len(kinds["tp"]), len(near.columns["tp"])
    _, place = first_of_each(
        {name: np.concatenate([kinds[name], near.columns[name]]) for name in KIND}
    )
    kind_of = np.full(int(place.max()) + 1, -1, dtype=np.int64)
    kind_of[place[:count]] = np.arange(count)
    kind = kind_of[place[count:]]
    known_rows = np.flatnonzero(kind >= 0)
    flat_place = kind[known_rows] * len(sizes) + np.searchsorted(
        sizes, near.columns["mbs"][known_rows]
    )
    # The first set of modules recomputes the least.
    table_seconds = _forward_backward_seconds(near.table)[:, :rows]
    return np.stack(
        [_least(seconds[known_rows], flat_place, count * len(sizes)) for seconds in table_seconds]
    ).reshape(len(table_seconds), count, len(sizes))


def _least(values: FloatArray, places: IntArray, count: int) -> FloatArray:
    """(count,) least of the values at each place 0 .. count - 1; inf for one without a value."""
    result = np.full(count, np.inf)
    np.minimum.at(result, places, values)
    return result


def _known_seconds(
    problem: Problem, known: Prepared, kinds: IntArray, sizes: IntArray
) -> FloatArray:
    """(blocks, kinds, sizes) least seconds over the members of `known`; inf without a member.

    Without experts the other choices of a layer depend on the kind alone: if one member has a kind,
    all its choices are present.
    """
    least_seconds = np.full((len(problem.model.blocks), len(kinds), len(sizes)), np.inf)
    outer, members = known.members.outers.columns, known.members
    place = {tuple(row): at for at, row in enumerate(kinds.tolist())}
    of_mesh = np.array(
        [place.get(tuple(row), -1) for row in _placement_columns(members.meshes.columns).tolist()],
        dtype=np.int64,
    )
    rows = arrays.distinct_rows(
        np.stack(
            [of_mesh[outer["mesh"]], np.searchsorted(sizes, outer["mbs"]), known.layer_row], axis=1
        )
    )
    kind, size, row = rows[rows[:, 0] >= 0].T
    for block, seconds in zip(least_seconds, _forward_backward_seconds(known.layers), strict=True):
        np.minimum.at(block, (kind, size), seconds[row])
    return least_seconds


def _least_layer_seconds(
    problem: Problem, space: Space, facts: GridFacts, kinds: Columns, sizes: IntArray
) -> FloatArray:
    """(blocks, kinds, sizes) least seconds of a layer over sp, ulysses, gather; inf = illegal."""
    columns: Columns = kinds | {"kind": np.arange(len(kinds["tp"]))}
    for axis in ("sp", "ulysses", "gather"):
        columns = extended(columns, axis, space.of(axis), facts)
    rows = {name: np.repeat(column, len(sizes)) for name, column in columns.items()} | {
        "mbs": np.tile(sizes, len(columns["kind"]))
    }
    rows["gather"] = ring_gather(rows)
    kind, place = rows.pop("kind"), np.tile(np.arange(len(sizes)), len(columns["kind"]))
    ones = np.ones_like(kind)
    placed = DegreeRows(columns=rows | dict.fromkeys(("dp", "pp", "s_dp", "s_pp"), ones))
    table = cached_table(
        layer_table, with_free_parts_of_blocks(problem), placed, modules=space.modules[:1]
    )
    least_seconds = np.full((len(table.seconds), len(kinds["tp"]), len(sizes)), np.inf)
    for block, seconds in zip(least_seconds, _forward_backward_seconds(table), strict=True):
        np.minimum.at(block, (kind, place), seconds)
    return least_seconds


def _mean_bounds(
    problem: Problem, space: Space, facts: GridFacts, meshes: MeshRows, work: _Work
) -> FloatArray:
    """(meshes,) lower bound in seconds from the mean over ranks, for any number of chunks."""
    model_seconds: FloatArray = np.einsum("b,bks->ks", block_repeats(problem), work.seconds)[
        work.kind
    ]
    pp = meshes.columns["pp"][:, None]
    chunks = np.where(_interleaves(space, pp, work.count), max(int(v) for v in space.of("vpp")), 1)
    blocks_before = np.maximum(
        facts.layers // (pp * chunks) * (pp - 1) / 2 - (pp - 1) / pp, 0.0
    ) * (not (space.first or space.last))
    layers = np.array([b.is_layer for b in problem.model.blocks])
    seconds = (
        work.count * model_seconds / pp
        + blocks_before * work.seconds[layers].min(axis=0)[work.kind]
    )
    bounds: FloatArray = np.where(work.legal, seconds, np.inf).min(axis=1)
    return bounds


def _interleaves(space: Space, pp: IntArray, count: IntArray) -> BoolArray:
    """True where pp > 1 divides the microbatches and a schedule of several chunks is allowed."""
    legal: BoolArray = (
        (pp > 1) & (count % pp == 0) & any(SCHEDULES[str(name)] for name in space.of("schedule"))
    )
    return legal


def _rank_bounds(
    problem: Problem, space: Space, facts: GridFacts, meshes: MeshRows, work: _Work, rows: IntArray
) -> FloatArray:
    """(rows,) lower bound in seconds of some meshes, the maximum over evaluated ranks."""
    pp, bounds = meshes.columns["pp"][rows], np.full(len(rows), np.inf)
    lines = _pipelines(
        Same(problem.model),
        tuple(arrays.distinct(pp).tolist()),
        space.of("vpp"),
        space.first,
        space.last,
        facts.layers,
    )
    has_plain_schedule = any(not SCHEDULES[str(name)] for name in space.of("schedule"))
    start, end = (np.searchsorted(lines.pp, pp, side=side) for side in ("left", "right"))
    has_pipeline = np.flatnonzero(end > start)
    if not len(has_pipeline):
        return bounds
    begin = np.cumsum(end - start) - (end - start)
    row_of = np.repeat(has_pipeline, (end - start)[has_pipeline])
    line = np.arange(len(row_of)) - begin[row_of] + start[row_of]
    count, kind = work.count[rows[row_of]], work.kind[rows[row_of]]
    rank_seconds = np.einsum("lrb,bks->lkrs", lines.looked, work.seconds)[line, kind]
    seconds = (
        count[:, None] * rank_seconds[:, : _LOOKED // 2] + rank_seconds[:, _LOOKED // 2 :]
    ).max(axis=1)
    legal = work.legal[rows[row_of]] & np.where(
        lines.vpp[line, None] > 1,
        _interleaves(space, lines.pp[line, None], count),
        has_plain_schedule,
    )
    pipeline_bounds = np.where(legal, seconds, np.inf).min(axis=1, initial=np.inf)
    bounds[has_pipeline] = np.minimum.reduceat(pipeline_bounds, begin[has_pipeline])
    return bounds


class _Pipelines(NamedTuple):
    """Legal (pp, vpp) pipelines by ascending pp, with the blocks of their evaluated ranks.

    `looked` has shape (pipelines, 2 x ranks, blocks), see `_evaluated_rank_blocks`.
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
    """(pp, vpp) over which layers divide; `first`, `last`: layers of the end ranks (0 = free)."""
    layouts: list[ChunkLayout] = []
    for pp, vpp in product(ranks, map(int, chunks)):
        if pp * vpp <= layers + 2:
            with suppress(StrategyError):
                layouts.append(layout_of(model.value, pp=pp, vpp=vpp, first=first, last=last))
    splits = np.array([(layout.pp, layout.vpp) for layout in layouts], dtype=np.int64).reshape(
        -1, 2
    )
    looked = np.array([_evaluated_rank_blocks(layout) for layout in layouts]).reshape(
        len(layouts), _LOOKED, len(model.value.blocks)
    )
    return _Pipelines(splits[:, 0], splits[:, 1], looked)


@lru_cache(maxsize=8192)
def _evaluated_rank_blocks(layout: ChunkLayout) -> FloatArray:
    """Blocks of the first and last two ranks, then of the first chunks before each of these."""
    pp = layout.pp
    ranks = np.array([0, min(1, pp - 1), max(pp - 2, 0), pp - 1])
    chunks_before = np.concatenate(
        [np.zeros((1, layout.counts.shape[1])), np.cumsum(layout.counts[:pp], axis=0)]
    )[ranks]
    return np.concatenate([layout.by_rank[ranks], chunks_before]).astype(np.float64)
