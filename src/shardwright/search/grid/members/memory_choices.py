"""Memory choices of a member: ZeRO stage and group, recompute, offload. Options are lists by key,
shared by many members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.cost.bounds.closed_form_arrays import ChoiceArrays
from shardwright.cost.degree_columns import Rows
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.grid.members.choice_columns import distinct as distinct_rows
from shardwright.search.grid.members.declared_space import Space
from shardwright.strategy.grid.grid_rules import MAX_STAGE, GridFacts, LoneStages, legal_rows
from shardwright.strategy.grid.model_counts import lone_stages

RECOMPUTES = {"none": 0, "selective": 1, "full": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryColumns:
    """Memory choices, with places in the space's values of shard and of recompute_layers; lists
    hold the legal, distinct options by key.

    Args:
        zero_key, redo_key: (outers,) which list applies.
        stages: of each zero option, as the space has it: `choices.zero_stage` is what it means
            where there is nothing to shard.
        num_redos: of each list.
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
    """The options, the place of each outer's first member, and how many raw members are legal.

    Args:
        mesh, outer: columns of the meshes, and of the choices but for memory.
    """
    zeros, zero_sets, mesh_key = _zero_sets(problem, space, facts, mesh)
    redos, redo_sets, r = _redo_sets(space, facts, outer["largest"])
    z = mesh_key[outer["mesh"]]
    offloads, means = len(space.of("offload")), dict(lone_stages(problem.runtime))
    num_redos = _counts([len(chosen) for chosen, _ in redo_sets])
    distinct = _counts([len(chosen) for chosen, _ in zero_sets])[z] * num_redos[r] * offloads
    legal = (
        _counts([count for _, count in zero_sets])[z]
        * _counts([count for _, count in redo_sets])[r]
        * offloads
        * outer["copies"]
    )
    choices = ChoiceArrays(
        zero_stage=np.array(
            [*(s for s, _ in zeros), *(0 for _ in zeros), *(means.get(s, 0) for s, _ in zeros)],
            dtype=np.int64,
        ),
        zero_shard=np.array([g for _, g in 3 * zeros], dtype=np.int64),
        redo_mode=np.array([m for m, _, _ in redos], dtype=np.int64),
        redo_layers=np.array([k for _, k, _ in redos], dtype=np.int64),
        redo_modules=np.array([number for _, _, number in redos], dtype=np.int64),
        offload=np.array(space.of("offload"), dtype=np.int64),
        zero_lists=_lists([chosen for chosen, _ in zero_sets]),
        redo_lists=_lists([chosen for chosen, _ in redo_sets]),
    )
    stages = np.array([s for s, _ in 3 * zeros], dtype=np.int64)
    inner = MemoryColumns(
        choices=choices,
        stages=stages,
        num_redos=num_redos,
        zero_key=z.astype(np.int64),
        redo_key=r.astype(np.int64),
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
    """(meshes,) numbers of distinct, and of legal, choices of ZeRO and its groups, as
    `memory_choices` has them.

    Args:
        zero_stages: those that the runtime has.
        lone: stages that mean something with one holder too (`GridFacts.lone_stages`).
    """
    holders, inner, sharded = (column[:, None] for column in _held(mesh, experts=experts))
    deepest = np.where(mesh["pp"] > 1, zero_with_pipeline, MAX_STAGE)
    sizes = np.array([int(size) for size in space.of("shard")], dtype=np.int64)
    some = np.maximum(sizes, 1)
    inside = (inner % some == 0) | (
        (some % inner == 0) & (holders // inner % np.maximum(some // inner, 1) == 0)
    )
    legal = (sizes == 0) | (inside & (holders % some == 0))
    shards = legal & (sizes != 1) & ((holders > 1) | sharded)
    stages = [int(stage) for stage in space.of("zero")]
    distinct, meant, means = np.zeros_like(deepest), dict[int, BoolArray](), dict(lone)
    nothing = np.full(len(deepest), 0 in stages and 0 in zero_stages)
    had = {stage: (deepest >= stage) & (stage in zero_stages) for stage in stages}
    for stage in filter(None, stages):
        whole, there = shards & ((sizes == 0) | (sizes == holders)), had[stage]
        alone = legal & ~shards & (holders == 1) & (stage in means)
        distinct += there * (shards & ~whole).sum(axis=1)
        for one, some in ((stage, whole), (means.get(stage, 0), alone)):
            meant[one] = meant.get(one, np.zeros(len(deepest), dtype=np.bool_)) | (
                there & some.any(axis=1)
            )
        nothing |= there & (legal & ~shards & ~alone).any(axis=1)
    for one, found in meant.items():
        distinct += found if one else 0
    deep = np.sum(
        [had[stage] for stage in stages if stage], axis=0, dtype=np.int64
    ) + np.zeros_like(deepest)
    return distinct + nothing, deep * legal.sum(axis=1) + (0 in stages and 0 in zero_stages) * len(
        sizes
    )


def redo_counts(space: Space, facts: GridFacts, largest: IntArray) -> tuple[IntArray, IntArray]:
    """(rows,) numbers of distinct, and of legal, choices of recompute for chunks of at most
    `largest` layers.
    """
    _, sets, key = _redo_sets(space, facts, largest)
    return _counts([len(chosen) for chosen, _ in sets])[key], _counts([count for _, count in sets])[
        key
    ]


def _held(mesh: Mapping[str, IntArray], *, experts: bool) -> tuple[IntArray, IntArray, BoolArray]:
    """(meshes,) holders of a state, those on the inner axis of cp and dp, and True where states
    of experts have several.
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
    """(stage, place of a size) of ZeRO; the legal ones by kind of mesh; and each mesh's kind."""
    zeros = [(int(z), g) for z in space.of("zero") for g in range(len(space.of("shard")))]
    edp = mesh["tp"] * mesh["cp"] * mesh["dp"] // (mesh["ep"] * mesh["etp"])
    inner_axis = np.where(mesh["s_cp"] < mesh["s_dp"], mesh["cp"], mesh["dp"])
    keys = {
        "holders": mesh["cp"] * mesh["dp"],
        "inner": inner_axis,
        "sharded": (edp > 1) & (facts.experts > 0),
        "pipelined": mesh["pp"] > 1,
    }
    kinds, key = distinct_rows({name: column.astype(np.int64) for name, column in keys.items()})
    sizes, runtime = tuple(int(size) for size in space.of("shard")), problem.runtime
    deep = runtime.zero_with_pipeline
    facts = replace(facts, lone_stages=lone_stages(problem.runtime))
    rows = zip(*(column.tolist() for column in kinds.values()), strict=True)
    had = [tuple(s for s in runtime.zero_stages if s <= deepest) for deepest in (MAX_STAGE, deep)]
    sets = [
        _zero_options(sizes, facts, tuple(zeros), had[int(pipelined)], rest)
        for *rest, pipelined in rows
    ]
    return zeros, sets, key


def _redo_sets(
    space: Space, facts: GridFacts, largest: IntArray
) -> tuple[list[tuple[int, int, int]], _Sets, IntArray]:
    """(mode, place of a number of layers, set of modules) of recompute; the legal ones by the
    largest chunk; and each row's place among these.
    """
    modes = [
        (RECOMPUTES[str(r)], k)
        for r in space.of("recompute")
        for k in range(len(space.of("recompute_layers")))
    ]
    redos = [(*mode, number) for number in range(len(space.modules)) for mode in modes]
    beside = space.beside_recompute
    whole = np.array([beside[number] or mode == RECOMPUTES["none"] for mode, _, number in redos])
    sizes, key = np.unique(largest, return_inverse=True)
    return (
        redos,
        [_redo_options(space, facts, redos, whole, int(x)) for x in sizes],
        key.reshape(-1),
    )


def _counts(numbers: list[int]) -> IntArray:
    return np.array(numbers, dtype=np.int64)


def _lists(options: list[list[int]]) -> IntArray:
    width = max((len(o) for o in options), default=0) + 1
    return np.array([o + [-1] * (width - len(o)) for o in options], dtype=np.int64).reshape(
        -1, width
    )


def _zero_options(
    sizes: tuple[int, ...],
    facts: GridFacts,
    zeros: tuple[tuple[int, int], ...],
    had: tuple[int, ...],
    key: Iterable[int],
) -> tuple[list[int], int]:
    """Legal, distinct zero options of meshes with this key, and how many are legal; see `_form`.

    Args:
        sizes: of sharding groups.
        zeros: (stage, place of a size).
        had: stages that the runtime has there.
    """
    return _known_zero_options(sizes, facts, zeros, had, *key)


@lru_cache(maxsize=4096)
def _known_zero_options(
    sizes: tuple[int, ...],
    facts: GridFacts,
    zeros: tuple[tuple[int, int], ...],
    had: tuple[int, ...],
    holders: int,
    inner_axis: int,
    experts_sharded: int,
) -> tuple[list[int], int]:
    stages, shards = np.array([(stage, sizes[place]) for stage, place in zeros], dtype=np.int64).T
    kept = legal_rows(
        {"zero": stages, "shard": shards, "cp": inner_axis, "dp": holders // inner_axis}, facts
    )
    kept &= np.isin(stages, had)
    means = dict(facts.lone_stages)

    def meaning(stage: int, shard: int) -> tuple[int, int] | None:
        if stage and not shard_is_legal(shard, holders=holders, inner=inner_axis):
            return None
        whole = 0 if shard in (0, holders) else shard
        if not stage or (shard != 1 and (holders > 1 or experts_sharded)):
            return (stage, whole) if stage else (0, 0)
        return means.get(stage, 0) if holders == 1 else 0, 0

    meanings = [
        meaning(stage, shard) for stage, shard in zip(stages.tolist(), shards.tolist(), strict=True)
    ]
    chosen, legal = _distinct(kept, meanings)
    return [place + len(zeros) * _form(zeros[place][0], meanings[place]) for place in chosen], legal


def _form(stage: int, meaning: tuple[int, int] | None) -> int:
    """Place of the list of options that prices a stage with this meaning: its own, no ZeRO, or
    the meaning alone.
    """
    meant = 0 if meaning is None else meaning[0]
    return 0 if meant == stage else 2 if meant else 1


def _distinct(kept: BoolArray, meanings: Sequence[tuple[int, ...] | None]) -> tuple[list[int], int]:
    """The first of the kept options with each meaning, and the number of kept options; an option
    without meaning is not kept.
    """
    legal = [
        (meanings[place], place)
        for place in np.flatnonzero(kept).tolist()
        if meanings[place] is not None
    ]
    return sorted(dict(reversed(legal)).values()), len(legal)


@lru_cache(maxsize=4096)
def shard_is_legal(shard: int, *, holders: int, inner: int) -> bool:
    """True where a sharding group of `shard` holders is a run of consecutive holders: it divides
    the inner of dp and cp, or covers it and divides the outer.
    """
    return (
        shard == 0
        or inner % shard == 0
        or (shard % inner == 0 and (holders // inner) % (shard // inner) == 0)
    )


def legal_shards(rows: Rows, wanted: IntArray) -> IntArray:
    """(n,) members of a sharding group on each mesh: `wanted`, or all holders where that is 0 or
    not legal.
    """
    holders = rows["cp"] * rows["dp"]
    inner = np.where(rows["s_cp"] < rows["s_dp"], rows["cp"], rows["dp"])
    cases = zip(wanted.tolist(), holders.tolist(), inner.tolist(), strict=True)
    legal = np.array([shard_is_legal(s, holders=h, inner=i) for s, h, i in cases], dtype=bool)
    return np.where(legal & (wanted > 0), wanted, holders)


def _redo_options(
    space: Space,
    facts: GridFacts,
    redos: list[tuple[int, int, int]],
    beside: BoolArray,
    largest: int,
) -> tuple[list[int], int]:
    """Legal, distinct recompute options of chunks with at most `largest` layers, and how many are
    legal.

    Args:
        beside: (redos,) whether its set of modules goes with its recompute
            (`Space.beside_recompute`).
    """
    counts = space.of("recompute_layers")
    modes, layers, modules = np.array(
        [(mode, counts[place], number) for mode, place, number in redos], dtype=np.int64
    ).T
    kept = legal_rows(
        {
            "recompute": np.array(list(RECOMPUTES))[modes],
            "recompute_layers": layers,
            "largest": largest,
        },
        facts,
    )
    kept &= beside
    return _distinct(
        kept,
        list(
            zip(
                modes.tolist(),
                np.where(layers == largest, 0, layers).tolist(),
                modules.tolist(),
                strict=True,
            )
        ),
    )
