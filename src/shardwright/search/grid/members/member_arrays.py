"""Members of a grid space as arrays: the legal and distinct strategies, and their rows in the price
tables.

The rules are those of `strategy.grid.rules`, each judged as soon as what it reads is a column, and
of the runtime.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from shardwright import arrays
from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.closed_form_arrays import (
    SCHEDULE_1F1B,
    SCHEDULE_GPIPE,
    SCHEDULE_INTERLEAVED,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Options as RuntimeOptions
from shardwright.runtime.runtime_options import ordered
from shardwright.search.grid.members.choice_columns import Columns, extended, select
from shardwright.search.grid.members.declared_space import Space, require_searchable
from shardwright.search.grid.members.device_meshes import MESH, Meshes, full_meshes
from shardwright.search.grid.members.memory_choices import MemoryColumns, memory_choices
from shardwright.strategy.grid.chunk_layers import largest_chunks
from shardwright.strategy.grid.expert_mesh import FOLDED, mesh_folds
from shardwright.strategy.grid.grid import Grid, Recompute
from shardwright.strategy.grid.grid_rules import GridFacts, largest_chunk, legal_rows, unlike_stages

SCHEDULES = {
    "gpipe": SCHEDULE_GPIPE,
    "1f1b": SCHEDULE_1F1B,
    "interleaved-1f1b": SCHEDULE_INTERLEAVED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Legal, distinct choices of some axes as columns; `copies` counts the raw choices with the
    same meaning.
    """

    columns: Columns

    def __len__(self) -> int:
        return len(self.columns["copies"])


class Chosen(NamedTuple):
    """A member: its outer, and the places of its ZeRO, recompute and offload options."""

    outer: int
    zero: int
    redo: int
    offload: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """All members of a space: legal, distinct ones by place, and the counts of the others.

    Args:
        meshes: tp, cp, pp, ep, etp, dp, and `order` as its place among the space's, with the
            strides of the axes.
        outers: mesh, and sp, ulysses, gather, mbs, vpp, schedule.
        inner: memory.
        start: (outers + 1,) place of each outer's first member.
        enumerated, illegal, duplicates: counts.
    """

    space: Space
    meshes: Meshes
    outers: Options
    inner: MemoryColumns
    start: IntArray
    enumerated: int
    illegal: int
    duplicates: int

    @property
    def num_members(self) -> int:
        """Number of legal, distinct members."""
        return int(self.start[-1])

    def least_of(self, values: FloatArray) -> FloatArray:
        """(outers,) the least value of each outer's members, which are contiguous; inf of none."""
        least, some = np.full(len(self.outers), np.inf), np.flatnonzero(np.diff(self.start))
        if len(some):
            least[some] = np.minimum.reduceat(values, self.start[some])
        return least

    def chosen(self, place: int) -> Chosen:
        """The choices of the member at a place."""
        outer, inner = int(self.start.searchsorted(place, side="right")) - 1, self.inner
        redos, offloads = inner.num_redos[inner.redo_key[outer]], len(inner.choices.offload)
        rest, offload = divmod(place - int(self.start[outer]), offloads)
        zero, redo = divmod(rest, int(redos))
        zeros, listed = (
            inner.choices.zero_lists[inner.zero_key[outer]],
            inner.choices.redo_lists[inner.redo_key[outer]],
        )
        return Chosen(outer, int(zeros[zero]), int(listed[redo]), offload)


def enumerate_members(
    problem: Problem, space: Space, facts: GridFacts, *, meshes: Meshes | None = None
) -> Members:
    """Apply the rules to the space on all devices, or on some `meshes` of it.

    Raises:
        RuntimeModelError, UsageError: a value of the space is nothing that the runtime has, or that
        is searched.
    """
    require_searchable(space, problem)
    meshes = full_meshes(space, facts) if meshes is None else meshes
    enumerated, outers = meshes.enumerated, _outers(space, facts, meshes)
    used, outers.columns["mesh"] = np.unique(outers.columns["mesh"], return_inverse=True)
    meshes = meshes.take(used)
    inner, start, legal = memory_choices(problem, space, facts, meshes.columns, outers.columns)
    return Members(
        space=space,
        meshes=meshes,
        outers=outers,
        inner=inner,
        start=start,
        enumerated=enumerated,
        illegal=enumerated - legal,
        duplicates=legal - int(start[-1]),
    )


def _outers(space: Space, facts: GridFacts, meshes: Meshes) -> Options:
    """Cross the meshes with the legal switches, microbatches, chunks and schedules."""
    columns = switched(
        space, facts, {name: meshes.columns[name] for name in (*MESH, "order", "copies")}
    )
    left = {
        name: columns[name] for name in ("mesh", "copies", "dp", "pp", "sp", "ulysses", "gather")
    }
    return chunked(space, facts, extended(left, "microbatch", space.of("mbs"), facts))


def switched(space: Space, facts: GridFacts, meshes: Columns) -> Columns:
    """Cross meshes with the legal switches; `mesh` is the place of each row's mesh."""
    columns = {"mesh": np.arange(len(meshes["copies"]))} | meshes
    for axis in ("sp", "ulysses"):
        columns = extended(columns, axis, space.of(axis), facts)
    columns = select(columns, legal_rows({"folds": _folds(space, columns)}, facts))
    # Without a ring there is nothing to gather: one value stands for all.
    gathers = np.array(space.of("gather"))
    columns = extended(columns, "gather", gathers, facts)
    ringless = columns["ulysses"] == columns["cp"]
    columns["copies"] = columns["copies"] * np.where(ringless, len(gathers), 1)
    columns = select(columns, ~ringless | (columns["gather"] == gathers[0]))
    columns["gather"] = np.where(columns["ulysses"] == columns["cp"], 0, columns["gather"])
    return columns


def _folds(space: Space, columns: Columns) -> BoolArray:
    """(rows,) True where the expert mesh folds over the dense mesh, wherever the pipeline ranks
    lie.
    """
    folded = np.ones(len(columns["ep"]), dtype=np.bool_)
    experts = np.flatnonzero(columns["ep"] * columns["etp"] > 1)
    told = {name: columns[name][experts] for name in (*FOLDED, "order")} if len(experts) else {}
    orders = [tuple(axis for axis in order if axis != "pp") for order in space.orders]
    for order in dict.fromkeys(orders if told else ()):
        numbers = [number for number, other in enumerate(orders) if other == order]
        some = np.flatnonzero(np.isin(told["order"], numbers))
        folded[experts[some]] = mesh_folds({name: told[name][some] for name in FOLDED}, order)
    return folded


@lru_cache(maxsize=2**12)
def _options(
    of: tuple[tuple[str, tuple[str, ...]], ...], modules: RuntimeOptions
) -> RuntimeOptions:
    """The options of a part, with a set of recomputed modules."""
    return ordered((*((name, value) for name, (value,) in of), *modules))


@lru_cache(maxsize=2**12)
def _largest(pp: int, vpp: int, first: int, last: int, layers: int) -> int:
    return largest_chunk(Grid(pp=pp, vpp=vpp, first=first, last=last), layers=layers)


@lru_cache(maxsize=2**12)
def _unlike(pp: int, vpp: int, first: int, last: int, layers: int) -> int:
    return unlike_stages(Grid(pp=pp, vpp=vpp, first=first, last=last), layers=layers)


def chunked(space: Space, facts: GridFacts, columns: Columns) -> Options:
    """Cross with the legal (vpp, schedule) of each pp."""
    lines = extended({"pp": arrays.distinct(columns["pp"])}, "vpp", space.of("vpp"), facts)
    cuts = list(zip(lines["pp"].tolist(), lines["vpp"].tolist(), strict=True))
    if space.first or space.last:
        lines["largest"] = np.array(
            [_largest(pp, vpp, space.first, space.last, facts.layers) for pp, vpp in cuts],
            dtype=np.int64,
        )
    else:
        lines["largest"] = largest_chunks(facts.layers, pp=lines["pp"], vpp=lines["vpp"])
    lines["unlike"] = np.zeros(len(cuts), dtype=np.int64)
    if facts.equal_stages or facts.equal_between:
        lines["unlike"][:] = [
            _unlike(pp, vpp, space.first, space.last, facts.layers) for pp, vpp in cuts
        ]
    lines = extended(
        lines, "schedule", (SCHEDULES[str(name)] for name in space.of("schedule")), facts
    )
    # All members have whole sequences, and every schedule of a space is one that is searched.
    alike: dict[str, Any] = {"slices": 1, "searched": True}
    lines = select(lines, legal_rows(lines | _of_schedule(lines["schedule"]) | alike, facts))
    del lines["unlike"]
    start = np.searchsorted(lines["pp"], columns["pp"])
    count = np.searchsorted(lines["pp"], columns["pp"], side="right") - start
    repeat = np.repeat(np.arange(len(count)), count)
    chosen = np.arange(len(repeat)) + np.repeat(start - np.cumsum(count) + count, count)
    crossed = {name: columns[name][repeat] for name in ("pp", "dp", "microbatch")}
    kept = legal_rows(crossed | _of_schedule(lines["schedule"][chosen]), facts, judged=columns)
    repeat, chosen = repeat[kept], chosen[kept]
    outer = {name: column[repeat] for name, column in columns.items()} | {
        name: column[chosen] for name, column in lines.items()
    }
    outer["mbs"] = outer.pop("microbatch")
    outer["microbatches"] = facts.global_batch // (outer["dp"] * outer["mbs"])
    if {"gpipe", "1f1b"} <= set(space.of("schedule")):
        # One microbatch has one order.
        outer["copies"] = outer["copies"] * np.where(
            (outer["schedule"] == SCHEDULE_1F1B) & (outer["microbatches"] == 1), 2, 1
        )
        outer = select(outer, (outer["schedule"] != SCHEDULE_GPIPE) | (outer["microbatches"] > 1))
    return Options(columns={name: column for name, column in outer.items() if name not in MESH})


def _of_schedule(numbers: IntArray) -> dict[str, BoolArray]:
    """Columns of the schedules' traits that rules read."""
    return {"interleaved": numbers == SCHEDULE_INTERLEAVED, "is_1f1b": numbers == SCHEDULE_1F1B}


def member_grid(members: Members, place: int) -> Grid:
    """The grid of a member."""
    outer, inner, choices, space = (
        members.outers.columns,
        members.inner,
        members.inner.choices,
        members.space,
    )
    i, zero, redo, offload = members.chosen(place)
    mesh: dict[str, Any] = {
        name: int(column[outer["mesh"][i]]) for name, column in members.meshes.columns.items()
    }
    holders = mesh["cp"] * mesh["dp"]
    stage, shard = int(inner.stages[zero]), int(space.of("shard")[int(choices.zero_shard[zero])])
    mode, modules = int(choices.redo_mode[redo]), space.modules[int(choices.redo_modules[redo])]
    k = int(space.of("recompute_layers")[int(choices.redo_layers[redo])]) if mode == 2 else 0
    return Grid(
        **{axis: mesh[axis] for axis in MESH},
        sp=bool(outer["sp"][i]),
        ulysses=int(outer["ulysses"][i]),
        gather=bool(outer["gather"][i]),
        vpp=int(outer["vpp"][i]),
        microbatch=int(outer["mbs"][i]),
        zero=stage,
        shard=0 if not stage or shard == holders else shard,
        recompute=(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)[mode],
        recompute_layers=0 if k >= int(outer["largest"][i]) else k,
        offload=int(choices.offload[offload]),
        schedule=next(
            name for name, number in SCHEDULES.items() if number == int(outer["schedule"][i])
        ),
        first=space.first,
        last=space.last,
        options=_options(space.options, modules),
        order=space.orders[mesh["order"]],
    )
