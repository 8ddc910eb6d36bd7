"""Members of a grid space as arrays: the legal, distinct strategies by place.

The rules are those of `strategy.grid.grid_rules`, each applied as soon as the axes that the rule
reads are columns, and those of the runtime.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from shardwright import arrays
from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.bounds.compiled_bound_array_records import (
    SCHEDULE_1F1B,
    SCHEDULE_GPIPE,
    SCHEDULE_INTERLEAVED,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Options
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import (
    Columns,
    extended,
    ring_gather,
    select,
)
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.members.legal_degrees_and_axis_orders import (
    MESH,
    MeshRows,
    full_meshes,
)
from shardwright.search.grid.members.pinned_and_excluded_values import require_searchable
from shardwright.search.grid.members.zero_and_recompute_choices import MemoryColumns, memory_choices
from shardwright.strategy.grid.expert_mesh import FOLDED, mesh_folds
from shardwright.strategy.grid.grid_rule_violations import legal_rows
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.layers_per_chunk import largest_chunk, largest_chunks, unlike_stages
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

SCHEDULES = {
    "gpipe": SCHEDULE_GPIPE,
    "1f1b": SCHEDULE_1F1B,
    "interleaved-1f1b": SCHEDULE_INTERLEAVED,
}
_SCHEDULE_NAMES = {number: name for name, number in SCHEDULES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRows:
    """Legal, distinct choices of some axes as columns; `copies` counts the raw choices of each."""

    columns: Columns

    def __len__(self) -> int:
        return len(self.columns["copies"])


class MemberChoices(NamedTuple):
    """A member by numbers: its choice of all axes but memory, and its memory options."""

    outer: int
    zero: int
    redo: int
    offload: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """All members of a space: the legal, distinct ones by place, and counts of the others.

    Args:
        meshes: device meshes that have a legal member.
        outers: choices of mesh, sp, ulysses, gather, mbs, vpp and schedule.
        inner: memory choices of each outer.
        start: (outers + 1,) place of the first member of each outer.
        enumerated, illegal, duplicates: numbers of combinations of axis values.
    """

    space: Space
    meshes: MeshRows
    outers: ChoiceRows
    inner: MemoryColumns
    start: IntArray
    enumerated: int
    illegal: int
    duplicates: int

    @property
    def num_members(self) -> int:
        """Number of legal, distinct members."""
        return int(self.start[-1])

    def outer_of_member(self) -> IntArray:
        """(members,) index in `outers` of each member's choices of all axes but memory."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def least_of(self, values: FloatArray) -> FloatArray:
        """(outers,) least value over each outer's members; inf for an outer without members."""
        least, nonempty = np.full(len(self.outers), np.inf), np.flatnonzero(np.diff(self.start))
        if len(nonempty):
            least[nonempty] = np.minimum.reduceat(values, self.start[nonempty])
        return least

    def chosen(self, place: int) -> MemberChoices:
        """Indices of a member's choices: row of `outers`, ZeRO, recompute, offload."""
        outer, inner = int(self.start.searchsorted(place, side="right")) - 1, self.inner
        num_redos, offloads = inner.num_redos[inner.redo_key[outer]], len(inner.choices.offload)
        rest, offload = divmod(place - int(self.start[outer]), offloads)
        zero, redo = divmod(rest, int(num_redos))
        zero_places, redo_places = (
            inner.choices.zero_lists[inner.zero_key[outer]],
            inner.choices.redo_lists[inner.redo_key[outer]],
        )
        return MemberChoices(outer, int(zero_places[zero]), int(redo_places[redo]), offload)


def enumerate_members(
    problem: Problem, space: Space, facts: GridFacts, *, meshes: MeshRows | None = None
) -> Members:
    """List the legal, distinct members of `space` on all devices, or on the given `meshes`.

    Raises:
        RuntimeModelError, UsageError: the runtime does not have a value of the space, or no search
            covers the value.
    """
    require_searchable(space, problem)
    meshes = full_meshes(space, facts) if meshes is None else meshes
    enumerated, outers = meshes.enumerated, _outer_choices(space, facts, meshes)
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


def _outer_choices(space: Space, facts: GridFacts, meshes: MeshRows) -> ChoiceRows:
    """Cross meshes with the legal sp, ulysses, gather, microbatch, vpp and schedule values."""
    columns = switched(
        space, facts, {name: meshes.columns[name] for name in (*MESH, "order", "copies")}
    )
    return pipelined(space, facts, columns)


def pipelined(space: Space, facts: GridFacts, columns: Columns) -> ChoiceRows:
    """Cross rows of meshes and switches with the legal microbatch, vpp and schedule values."""
    names = ("mesh", "copies", "dp", "pp", "sp", "ulysses", "gather")
    rows = extended({name: columns[name] for name in names}, "microbatch", space.of("mbs"), facts)
    return chunked(space, facts, rows)


def switched(space: Space, facts: GridFacts, meshes: Columns) -> Columns:
    """Cross meshes with the legal sp, ulysses and gather values; `mesh` is the row's mesh."""
    columns = {"mesh": np.arange(len(meshes["copies"]))} | meshes
    for axis in ("sp", "ulysses"):
        columns = extended(columns, axis, space.of(axis), facts)
    columns = select(columns, legal_rows({"folds": _expert_mesh_folds(space, columns)}, facts))
    # Without a ring no keys are gathered: one value stands for all.
    gathers = np.array(space.of("gather"))
    columns = extended(columns, "gather", gathers, facts)
    ringless = columns["ulysses"] == columns["cp"]
    columns["copies"] = columns["copies"] * np.where(ringless, len(gathers), 1)
    columns = select(columns, ~ringless | (columns["gather"] == gathers[0]))
    columns["gather"] = ring_gather(columns)
    return columns


def _expert_mesh_folds(space: Space, columns: Columns) -> BoolArray:
    """(rows,) True where the expert mesh folds over the dense mesh, for any place of pp."""
    is_folded = np.ones(len(columns["ep"]), dtype=np.bool_)
    experts = np.flatnonzero(columns["ep"] * columns["etp"] > 1)
    expert_rows = (
        {name: columns[name][experts] for name in (*FOLDED, "order")} if len(experts) else {}
    )
    orders = [tuple(axis for axis in order if axis != "pp") for order in space.orders]
    for order in dict.fromkeys(orders if expert_rows else ()):
        numbers = [number for number, candidate in enumerate(orders) if candidate == order]
        rows = np.flatnonzero(np.isin(expert_rows["order"], numbers))
        is_folded[experts[rows]] = mesh_folds(
            {name: expert_rows[name][rows] for name in FOLDED}, order
        )
    return is_folded


@lru_cache(maxsize=2**12)
def _member_options(fixed: tuple[tuple[str, tuple[str, ...]], ...], modules: Options) -> Options:
    """Ordered runtime options of a part (one value each) and of a set of recomputed modules."""
    return in_vocabulary_order((*((name, value) for name, (value,) in fixed), *modules))


@lru_cache(maxsize=2**12)
def _largest_chunk_layers(pp: int, vpp: int, first: int, last: int, layers: int) -> int:
    """Layers of the largest chunk; `first`, `last` = layers of the end stages (0 = as usual)."""
    return largest_chunk(Grid(pp=pp, vpp=vpp, first=first, last=last), layers=layers)


@lru_cache(maxsize=2**12)
def _unlike_stages(pp: int, vpp: int, first: int, last: int, layers: int) -> int:
    """Code of the stages' layer counts: 0 equal, 1 only the ends differ, 2 otherwise; cached."""
    return unlike_stages(Grid(pp=pp, vpp=vpp, first=first, last=last), layers=layers)


def chunked(space: Space, facts: GridFacts, columns: Columns) -> ChoiceRows:
    """Cross rows with the legal (vpp, schedule) pairs of their pp and microbatch counts."""
    pipelines = extended({"pp": arrays.distinct(columns["pp"])}, "vpp", space.of("vpp"), facts)
    splits = list(zip(pipelines["pp"].tolist(), pipelines["vpp"].tolist(), strict=True))
    if space.first or space.last:
        pipelines["largest"] = np.array(
            [
                _largest_chunk_layers(pp, vpp, space.first, space.last, facts.layers)
                for pp, vpp in splits
            ],
            dtype=np.int64,
        )
    else:
        pipelines["largest"] = largest_chunks(
            facts.layers, pp=pipelines["pp"], vpp=pipelines["vpp"]
        )
    pipelines["unlike"] = np.zeros(len(splits), dtype=np.int64)
    if facts.equal_stages or facts.equal_between:
        pipelines["unlike"][:] = [
            _unlike_stages(pp, vpp, space.first, space.last, facts.layers) for pp, vpp in splits
        ]
    pipelines = extended(
        pipelines, "schedule", (SCHEDULES[str(name)] for name in space.of("schedule")), facts
    )
    # All members have whole sequences, and a space has searched schedules alone.
    constants: dict[str, Any] = {"slices": 1, "searched": True}
    pipelines = select(
        pipelines,
        legal_rows(pipelines | _schedule_traits(pipelines["schedule"]) | constants, facts),
    )
    del pipelines["unlike"]
    start = np.searchsorted(pipelines["pp"], columns["pp"])
    count = np.searchsorted(pipelines["pp"], columns["pp"], side="right") - start
    row = np.repeat(np.arange(len(count)), count)
    pipeline = np.arange(len(row)) + np.repeat(start - np.cumsum(count) + count, count)
    crossed = {name: columns[name][row] for name in ("pp", "dp", "microbatch")}
    is_legal = legal_rows(
        crossed | _schedule_traits(pipelines["schedule"][pipeline]), facts, judged=columns
    )
    row, pipeline = row[is_legal], pipeline[is_legal]
    outer = {name: column[row] for name, column in columns.items()} | {
        name: column[pipeline] for name, column in pipelines.items()
    }
    outer["mbs"] = outer.pop("microbatch")
    outer["microbatches"] = facts.global_batch // (outer["dp"] * outer["mbs"])
    if {"gpipe", "1f1b"} <= set(space.of("schedule")):
        # With one microbatch GPipe and 1F1B are the same order.
        outer["copies"] = outer["copies"] * np.where(
            (outer["schedule"] == SCHEDULE_1F1B) & (outer["microbatches"] == 1), 2, 1
        )
        outer = select(outer, (outer["schedule"] != SCHEDULE_GPIPE) | (outer["microbatches"] > 1))
    return ChoiceRows(columns={name: column for name, column in outer.items() if name not in MESH})


def _schedule_traits(numbers: IntArray) -> dict[str, BoolArray]:
    """Boolean columns `interleaved` and `is_1f1b` of schedule numbers, which rules read."""
    return {"interleaved": numbers == SCHEDULE_INTERLEAVED, "is_1f1b": numbers == SCHEDULE_1F1B}


def member_grid(members: Members, place: int) -> Grid:
    """The grid of the member at `place`."""
    outer, inner, choices, space = (
        members.outers.columns,
        members.inner,
        members.inner.choices,
        members.space,
    )
    i, zero, redo, offload = members.chosen(place)
    number, columns = int(outer["mesh"][i]), members.meshes.columns
    mesh: dict[str, Any] = {axis: int(columns[axis][number]) for axis in MESH}
    order = space.of("order")[int(columns["order"][number])]
    holders = mesh["cp"] * mesh["dp"]
    stage, shard = int(inner.stages[zero]), int(space.of("shard")[int(choices.zero_shard[zero])])
    mode, modules = int(choices.redo_mode[redo]), space.modules[int(choices.redo_modules[redo])]
    k = int(space.of("recompute_layers")[int(choices.redo_layers[redo])]) if mode == 2 else 0
    return Grid(
        **mesh,
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
        schedule=_SCHEDULE_NAMES[int(outer["schedule"][i])],
        first=space.first,
        last=space.last,
        options=_member_options(space.options, modules),
        order=tuple(str(order).split("-")),
    )
