"""Memory choices of members: ZeRO stage and sharding group, recompute, offload.

Options are lists by key, shared by many members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.cost.bounds.compiled_bound_array_records import ChoiceArrays
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import (
    distinct as distinct_rows,
)
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.strategy.grid.grid_rule_violations import legal_rows
from shardwright.strategy.grid.grid_rules import MAX_STAGE, GridFacts, LoneStages
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import lone_stages

RECOMPUTES = {"none": 0, "selective": 1, "full": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryColumns:
    """The legal, distinct memory choices of every outer, as lists shared by key.

    Places refer to the space's values of shard and of recompute_layers.

    Args:
        zero_key, redo_key: (outers,) number of the list that applies.
        stages: stage of each ZeRO option in the space; `choices.zero_stage` is its effect if
            nothing can be sharded.
        num_redos: number of options in each recompute list.
    """

    choices: ChoiceArrays
    stages: IntArray
    num_redos: IntArray
    zero_key: IntArray
    redo_key: IntArray


def memory_choices(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    mesh: Mapping[str, IntArray],
    outer: Mapping[str, IntArray],
) -> tuple[MemoryColumns, IntArray, int]:
    """Memory choices of each outer, (outers + 1,) start of each one's members, raw legal count.

    Args:
        mesh, outer: columns of the meshes, and of the choices without memory.
    """
    zero_options, zero_sets, mesh_key = _zero_sets(problem, space, facts, mesh)
    redo_options, redo_sets, redo_key = _redo_sets(space, facts, outer["largest"])
    zero_key = mesh_key[outer["mesh"]]
    offloads, lone_meaning = len(space.of("offload")), dict(lone_stages(problem.runtime))
    num_redos = _integers([len(chosen) for chosen, _ in redo_sets])
    distinct = (
        _integers([len(chosen) for chosen, _ in zero_sets])[zero_key]
        * num_redos[redo_key]
        * offloads
    )
    legal = (
        _integers([count for _, count in zero_sets])[zero_key]
        * _integers([count for _, count in redo_sets])[redo_key]
        * offloads
        * outer["copies"]
    )
    choices = ChoiceArrays(
        zero_stage=np.array(
            [
                *(s for s, _ in zero_options),
                *(0 for _ in zero_options),
                *(lone_meaning.get(s, 0) for s, _ in zero_options),
            ],
            dtype=np.int64,
        ),
        zero_shard=np.array([g for _, g in 3 * zero_options], dtype=np.int64),
        redo_mode=np.array([m for m, _, _ in redo_options], dtype=np.int64),
        redo_layers=np.array([k for _, k, _ in redo_options], dtype=np.int64),
        redo_modules=np.array([number for _, _, number in redo_options], dtype=np.int64),
        offload=np.array(space.of("offload"), dtype=np.int64),
        zero_lists=_lists([chosen for chosen, _ in zero_sets]),
        redo_lists=_lists([chosen for chosen, _ in redo_sets]),
    )
    stages = np.array([s for s, _ in 3 * zero_options], dtype=np.int64)
    inner = MemoryColumns(
        choices=choices,
        stages=stages,
        num_redos=num_redos,
        zero_key=zero_key.astype(np.int64),
        redo_key=redo_key.astype(np.int64),
    )
    return inner, np.concatenate([[0], np.cumsum(distinct)]).astype(np.int64), int(legal.sum())


def zero_counts(
    space: Space,
    mesh: Mapping[str, IntArray],
    *,
    experts: bool,
    zero_stages: tuple[int, ...],
    zero_with_pipeline: int,
    lone: LoneStages,
) -> tuple[IntArray, IntArray]:
    """(meshes,) numbers of distinct and of legal choices of ZeRO stage and sharding group.

    The numbers are those of the lists of `memory_choices`.

    Args:
        zero_stages: stages that the runtime has.
        lone: stages that have an effect with one holder too (`GridFacts.lone_stages`).
    """
    holders, inner, sharded = (column[:, None] for column in _holder_counts(mesh, experts=experts))
    deepest = np.where(mesh["pp"] > 1, zero_with_pipeline, MAX_STAGE)
    sizes = np.array([int(size) for size in space.of("shard")], dtype=np.int64)
    group = np.maximum(sizes, 1)
    is_run = (inner % group == 0) | (
        (group % inner == 0) & (holders // inner % np.maximum(group // inner, 1) == 0)
    )
    legal = (sizes == 0) | (is_run & (holders % group == 0))
    shards = legal & (sizes != 1) & ((holders > 1) | sharded)
    stages = [int(stage) for stage in space.of("zero")]
    distinct, has_meaning, lone_meaning = np.zeros_like(deepest), dict[int, BoolArray](), dict(lone)
    has_stage_0 = np.full(len(deepest), 0 in stages and 0 in zero_stages)
    has_stage = {stage: (deepest >= stage) & (stage in zero_stages) for stage in stages}
    for stage in filter(None, stages):
        full_group, available = shards & ((sizes == 0) | (sizes == holders)), has_stage[stage]
        one_holder = legal & ~shards & (holders == 1) & (stage in lone_meaning)
        distinct += available * (shards & ~full_group).sum(axis=1)
        for effective_stage, group in (
            (stage, full_group),
            (lone_meaning.get(stage, 0), one_holder),
        ):
            has_meaning[effective_stage] = has_meaning.get(
                effective_stage, np.zeros(len(deepest), dtype=np.bool_)
            ) | (available & group.any(axis=1))
        has_stage_0 |= available & (legal & ~shards & ~one_holder).any(axis=1)
    for effective_stage, is_present in has_meaning.items():
        distinct += is_present if effective_stage else 0
    num_stages = np.sum(
        [has_stage[stage] for stage in stages if stage], axis=0, dtype=np.int64
    ) + np.zeros_like(deepest)
    return distinct + has_stage_0, num_stages * legal.sum(axis=1) + (
        0 in stages and 0 in zero_stages
    ) * len(sizes)


def redo_counts(space: Space, facts: GridFacts, largest: IntArray) -> tuple[IntArray, IntArray]:
    """(rows,) numbers of distinct and of legal recompute choices, by the largest chunk's layers."""
    _, sets, key = _redo_sets(space, facts, largest)
    return _integers([len(chosen) for chosen, _ in sets])[key], _integers(
        [count for _, count in sets]
    )[key]


def _holder_counts(
    mesh: Mapping[str, IntArray], *, experts: bool
) -> tuple[IntArray, IntArray, BoolArray]:
    """(meshes,) holders of a state, holders on the inner axis, True if expert states have several.

    The inner axis is the one of cp and dp with the smaller stride.
    """
    edp = mesh["tp"] * mesh["cp"] * mesh["dp"] // (mesh["ep"] * mesh["etp"])
    return (
        mesh["cp"] * mesh["dp"],
        np.where(mesh["s_cp"] < mesh["s_dp"], mesh["cp"], mesh["dp"]),
        (edp > 1) & experts,
    )


_Sets = list[tuple[list[int], int]]


def _zero_sets(
    problem: Problem, space: Space, facts: GridFacts, mesh: Mapping[str, IntArray]
) -> tuple[list[tuple[int, int]], _Sets, IntArray]:
    """ZeRO options (stage, place of group size), the legal ones by mesh kind, each mesh's kind."""
    options = [(int(z), g) for z in space.of("zero") for g in range(len(space.of("shard")))]
    columns = (*_holder_counts(mesh, experts=facts.experts > 0), mesh["pp"] > 1)
    kinds, key = distinct_rows(
        {str(number): column.astype(np.int64) for number, column in enumerate(columns)}
    )
    sizes, runtime = tuple(int(size) for size in space.of("shard")), problem.runtime
    deepest_with_pipeline = runtime.zero_with_pipeline
    facts = replace(facts, lone_stages=lone_stages(problem.runtime))
    rows = zip(*(column.tolist() for column in kinds.values()), strict=True)
    stages_by_pipeline = [
        tuple(s for s in runtime.zero_stages if s <= deepest)
        for deepest in (MAX_STAGE, deepest_with_pipeline)
    ]
    sets = [
        _zero_options(sizes, facts, tuple(options), stages_by_pipeline[int(pipelined)], *rest)
        for *rest, pipelined in rows
    ]
    return options, sets, key


def _redo_sets(
    space: Space, facts: GridFacts, largest: IntArray
) -> tuple[list[tuple[int, int, int]], _Sets, IntArray]:
    """Recompute options; places of legal ones by size of largest chunk; each row's size index.

    An option is (mode, place of a layer count, module set).
    """
    modes = [
        (RECOMPUTES[str(r)], k)
        for r in space.of("recompute")
        for k in range(len(space.of("recompute_layers")))
    ]
    options = [(*mode, number) for number in range(len(space.modules)) for mode in modes]
    with_recompute = space.beside_recompute
    is_allowed = np.array(
        [with_recompute[number] or mode == RECOMPUTES["none"] for mode, _, number in options]
    )
    sizes, key = np.unique(largest, return_inverse=True)
    return (
        options,
        [_redo_options(space, facts, options, is_allowed, int(x)) for x in sizes],
        key.reshape(-1),
    )


def _integers(numbers: list[int]) -> IntArray:
    """Integer array of the numbers."""
    return np.array(numbers, dtype=np.int64)


def _lists(options: list[list[int]]) -> IntArray:
    """Stack lists as rows of one array, padded with at least one -1."""
    width = max((len(o) for o in options), default=0) + 1
    return np.array([o + [-1] * (width - len(o)) for o in options], dtype=np.int64).reshape(
        -1, width
    )


@lru_cache(maxsize=4096)
def _zero_options(
    sizes: tuple[int, ...],
    facts: GridFacts,
    zeros: tuple[tuple[int, int], ...],
    available_stages: tuple[int, ...],
    holders: int,
    inner_axis: int,
    experts_sharded: int,
) -> tuple[list[int], int]:
    """Places, offset by `_price_list`, of distinct legal ZeRO options of a mesh kind; legal count.

    Places are offset by `_price_list`.

    Args:
        sizes: sizes of sharding groups.
        zeros: (stage, place of a size) of each option.
        available_stages: stages that the runtime has for this kind of mesh.
        holders, inner_axis: numbers of holders of a state, and of those on the inner axis.
        experts_sharded: 1 if states of experts have several holders.
    """
    stages, shards = np.array([(stage, sizes[place]) for stage, place in zeros], dtype=np.int64).T
    is_legal = legal_rows(
        {"zero": stages, "shard": shards, "cp": inner_axis, "dp": holders // inner_axis}, facts
    )
    is_legal &= np.isin(stages, available_stages)
    lone_meaning = dict(facts.lone_stages)

    def meaning(stage: int, shard: int) -> tuple[int, int] | None:
        """Effective (stage, group size; 0 = all holders) of a ZeRO choice; None if illegal."""
        if stage and not shard_is_legal(shard, holders=holders, inner=inner_axis):
            return None
        group = 0 if shard in (0, holders) else shard
        if not stage or (shard != 1 and (holders > 1 or experts_sharded)):
            return (stage, group) if stage else (0, 0)
        return lone_meaning.get(stage, 0) if holders == 1 else 0, 0

    meanings = [
        meaning(stage, shard) for stage, shard in zip(stages.tolist(), shards.tolist(), strict=True)
    ]
    distinct_places, num_legal = _distinct(is_legal, meanings)
    return [
        place + len(zeros) * _price_list(zeros[place][0], meanings[place])
        for place in distinct_places
    ], num_legal


def _price_list(stage: int, meaning: tuple[int, int] | None) -> int:
    """Option list that prices a ZeRO stage: 0 = as the stage, 1 = no ZeRO, 2 = its effect."""
    effective_stage = 0 if meaning is None else meaning[0]
    return 0 if effective_stage == stage else 2 if effective_stage else 1


def _distinct(kept: BoolArray, meanings: Sequence[tuple[int, ...] | None]) -> tuple[list[int], int]:
    """Places of the first kept option of each meaning, and the number of kept options.

    An option without meaning is not kept.
    """
    legal = [
        (meanings[place], place)
        for place in np.flatnonzero(kept).tolist()
        if meanings[place] is not None
    ]
    return sorted(dict(reversed(legal)).values()), len(legal)


@lru_cache(maxsize=4096)
def shard_is_legal(shard: int, *, holders: int, inner: int) -> bool:
    """True if a sharding group of `shard` holders (0 = all) is a run of consecutive holders.

    The size divides the inner of dp and cp, or is a multiple of it and divides the outer.
    """
    return (
        shard == 0
        or inner % shard == 0
        or (shard % inner == 0 and (holders // inner) % (shard // inner) == 0)
    )


def legal_shards(rows: DegreeRows, wanted: IntArray) -> IntArray:
    """(n,) sharding group size on each mesh: `wanted` if legal, else all holders."""
    holders = rows["cp"] * rows["dp"]
    inner = np.where(rows["s_cp"] < rows["s_dp"], rows["cp"], rows["dp"])
    cases = zip(wanted.tolist(), holders.tolist(), inner.tolist(), strict=True)
    legal = np.array([shard_is_legal(s, holders=h, inner=i) for s, h, i in cases], dtype=bool)
    return np.where(legal & (wanted > 0), wanted, holders)


def _redo_options(
    space: Space,
    facts: GridFacts,
    options: list[tuple[int, int, int]],
    is_allowed: BoolArray,
    largest: int,
) -> tuple[list[int], int]:
    """Places of the legal, distinct recompute options for a chunk size, and the legal number.

    Args:
        options: (mode, place of a layer count, module set) of each option.
        is_allowed: (options,) True if its module set may be combined with its recompute mode
            (`Space.beside_recompute`).
        largest: layers of the largest chunk.
    """
    counts = space.of("recompute_layers")
    modes, layers, modules = np.array(
        [(mode, counts[place], number) for mode, place, number in options], dtype=np.int64
    ).T
    is_legal = legal_rows(
        {
            "recompute": np.array(list(RECOMPUTES))[modes],
            "recompute_layers": layers,
            "largest": largest,
        },
        facts,
    )
    is_legal &= is_allowed
    return _distinct(
        is_legal,
        list(
            zip(
                modes.tolist(),
                np.where(layers == largest, 0, layers).tolist(),
                modules.tolist(),
                strict=True,
            )
        ),
    )
