"""Members of a grid space as arrays: which are legal and distinct, and where their numbers stand in the tables.

The rules are those of `strategy.grid_rules` (and of the runtime), applied to columns; tests hold both to be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from shardwright.cost.bound_arrays import SCHEDULE_1F1B, SCHEDULE_GPIPE, SCHEDULE_INTERLEAVED
from shardwright.errors import StrategyError
from shardwright.program.problem import Problem
from shardwright.search.memory_choices import Inner, memory_choices
from shardwright.search.space import AXES, Space, require_searchable
from shardwright.strategy.chunks import chunk_layers
from shardwright.strategy.grid import Grid, Recompute
from shardwright.strategy.grid_fold import fold
from shardwright.strategy.grid_rules import GridFacts

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

SCHEDULES = {"gpipe": SCHEDULE_GPIPE, "1f1b": SCHEDULE_1F1B, "interleaved-1f1b": SCHEDULE_INTERLEAVED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """Legal, distinct meshes as columns, with the strides of their axes.

    `order` indexes the space's orders, `copies` counts those with the same groups.
    """

    columns: dict[str, IntArray]

    def __len__(self) -> int:
        return int(self.columns["tp"].shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outers:
    """Legal, distinct choices but for memory: mesh, and sp, ulysses, gather, mbs, vpp, schedule as columns.

    `copies` counts the raw choices that mean the same.
    """

    columns: dict[str, IntArray]

    def __len__(self) -> int:
        return int(self.columns["mesh"].shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """All members: legal and distinct ones by place, the others counted.

    Args:
        start: (outers + 1,) place of each outer's first member. enumerated, illegal, duplicates: counts.
    """

    space: Space
    meshes: Meshes
    outers: Outers
    inner: Inner
    start: IntArray
    enumerated: int
    illegal: int
    duplicates: int

    @property
    def num_members(self) -> int:
        """Legal, distinct members."""
        return int(self.start[-1])


def enumerate_members(problem: Problem, space: Space, facts: GridFacts) -> Members:
    """Apply the rules to the whole space.

    Raises:
        RuntimeModelError, UsageError: a value of the space is nothing that the runtime has, or that is searched.
    """
    require_searchable(space, problem)
    meshes, enumerated = _meshes(space, facts)
    outers = _outers(space, facts, meshes)
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


def _crossed(space: Space, axes: tuple[str, ...]) -> IntArray:
    """(rows, axes) every combination of the values of `axes`."""
    return np.stack(np.meshgrid(*(np.array(space.of(a), dtype=np.int64) for a in axes), indexing="ij"), axis=-1).reshape(-1, len(axes))


def _meshes(space: Space, facts: GridFacts) -> tuple[Meshes, int]:
    """The legal (order, tp, cp, pp, ep, etp) whose dp is whole, one for all orders with the same groups; and the number of raw members."""
    axes = ("tp", "cp", "pp", "ep", "etp")
    table = _crossed(space, axes)
    cut = table[:, 0] * table[:, 1] * table[:, 2]
    table = table[space.devices % cut == 0]
    if space.dp:
        table = table[np.isin(space.devices // (table[:, 0] * table[:, 1] * table[:, 2]), space.dp)]
    orders = [tuple(str(o).split("-")) for o in space.of("order")]
    rows: list[tuple[int, ...]] = []
    copies: list[int] = []
    for tp, cp, pp, ep, etp in table.tolist():
        dp = space.devices // (tp * cp * pp)
        if not _mesh_is_legal(facts, tp, cp, ep, etp, dp):
            continue
        seen: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
        for index, order in enumerate(orders):
            grid = Grid(tp=tp, cp=cp, ep=ep, etp=etp, dp=dp, pp=pp, order=order)
            if ep * etp > 1 and fold(grid) is None:
                continue
            key = _groups(grid)
            if key in seen:
                copies[seen[key]] += 1
                continue
            seen[key] = len(rows)
            s = grid.strides()
            rows.append((tp, cp, pp, ep, etp, dp, index, s["tp"], s["cp"], s["dp"], s["pp"]))
            copies.append(1)
    names = ("tp", "cp", "pp", "ep", "etp", "dp", "order", "s_tp", "s_cp", "s_dp", "s_pp")
    array = np.array([(*row, number) for row, number in zip(rows, copies, strict=True)], dtype=np.int64).reshape(-1, len(names) + 1)
    columns = {name: np.ascontiguousarray(array[:, i]) for i, name in enumerate((*names, "copies"))}
    rest = prod(len(space.of(axis)) for axis in AXES if axis not in axes)
    return Meshes(columns=columns), len(table) * rest


def _mesh_is_legal(facts: GridFacts, tp: int, cp: int, ep: int, etp: int, dp: int) -> bool:
    if facts.global_batch % dp or facts.ffn % tp or facts.heads % tp or facts.scan_heads % tp or facts.seq_len % cp:
        return False
    if ep == etp == 1:
        return True
    stage = tp * cp * dp
    return bool(facts.experts) and facts.experts % ep == 0 and facts.expert_ffn % etp == 0 and stage % (ep * etp) == 0


def _groups(grid: Grid) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes that exceed one, in their order, for the dense and the expert mesh: what the groups depend on."""
    sizes = {"tp": grid.tp, "cp": grid.cp, "dp": grid.dp, "pp": grid.pp}
    expert = {"tp": grid.etp, "ep": grid.ep, "dp": grid.edp} if grid.ep * grid.etp > 1 else {}
    return tuple(a for a in grid.order if sizes.get(a, 1) > 1), tuple(a for a in grid.order if expert.get(a, 1) > 1)


def _outers(space: Space, facts: GridFacts, meshes: Meshes) -> Outers:
    """Cross the meshes with the legal switches, microbatches, chunks and schedules."""
    names = ("sp", "ulysses", "gather", "mbs")
    options = _crossed(space, names)
    mesh = np.repeat(np.arange(len(meshes)), len(options))
    columns = {name: np.tile(options[:, i], len(meshes)) for i, name in enumerate(names)}
    get = {name: meshes.columns[name][mesh] for name in ("tp", "cp", "ep", "etp", "dp", "pp")}
    kept = _options_are_legal(facts, get, columns)
    # Without a ring there is nothing to gather: one value stands for all.
    ringless = columns["ulysses"] == get["cp"]
    gathers = space.of("gather")
    kept &= ~ringless | (columns["gather"] == gathers[0])
    kept[kept] = _folds(space, meshes, mesh[kept], columns["ulysses"][kept], columns["sp"][kept])
    columns["gather"] = np.where(ringless, 0, columns["gather"])
    columns["copies"] = meshes.columns["copies"][mesh] * np.where(ringless, len(gathers), 1)
    return _chunked(space, facts, meshes, mesh[kept], {name: column[kept] for name, column in columns.items()})


def _options_are_legal(facts: GridFacts, mesh: dict[str, IntArray], option: dict[str, IntArray]) -> BoolArray:
    """Which rows break no rule of widths, sequence, experts and batch."""
    tp, cp, sp, ulysses, mbs = mesh["tp"], mesh["cp"], option["sp"], option["ulysses"], option["mbs"]
    ring = np.maximum(cp // ulysses, 1)
    parts = tp * ulysses
    legal: BoolArray = (cp % ulysses == 0) & (facts.heads % parts == 0)
    if facts.kv_heads:
        legal &= (facts.kv_heads % parts == 0) | (parts % facts.kv_heads == 0)
    legal &= facts.seq_len % (cp * np.where(sp == 1, tp, 1)) == 0
    legal &= (ring == 1) | (facts.seq_len % (2 * ring) == 0)
    legal &= (sp == 0) | (tp > 1)
    legal &= (facts.global_batch // mesh["dp"]) % mbs == 0
    legal &= ~((mesh["ep"] * mesh["etp"] > 1) & (tp > 1) & (sp == 0))
    return legal


def _folds(space: Space, meshes: Meshes, mesh: IntArray, ulysses: IntArray, sp: IntArray) -> BoolArray:
    """Which rows' expert meshes fold over their dense ones when context and stream are cut as the switches say."""
    columns = meshes.columns
    folds = np.ones(len(mesh), dtype=np.bool_)
    cuts = np.flatnonzero((columns["ep"][mesh] * columns["etp"][mesh] > 1) & ((ulysses > 1) | (sp == 1)))
    if not len(cuts):
        return folds
    cases, inverse = np.unique(np.stack([mesh[cuts], ulysses[cuts], sp[cuts]], axis=1), axis=0, return_inverse=True)
    orders = [tuple(str(o).split("-")) for o in space.of("order")]
    found = []
    for row, u, s in cases.tolist():
        tp, cp, ep, etp, dp, pp, order = (int(columns[name][row]) for name in ("tp", "cp", "ep", "etp", "dp", "pp", "order"))
        grid = Grid(tp=tp, sp=bool(s), cp=cp, ulysses=u, ep=ep, etp=etp, dp=dp, pp=pp, order=orders[order])
        found.append(fold(grid) is not None)
    folds[cuts] = np.array(found)[inverse.reshape(-1)]
    return folds


def _chunked(space: Space, facts: GridFacts, meshes: Meshes, mesh: IntArray, columns: dict[str, IntArray]) -> Outers:
    """Cross with the legal (vpp, schedule) of each pp."""
    by_pp = {pp: _pipelines(space, facts, pp) for pp in np.unique(meshes.columns["pp"]).tolist()}
    count = np.array([len(by_pp.get(pp, [])) for pp in range(int(max(by_pp, default=0)) + 1)], dtype=np.int64)
    pp = meshes.columns["pp"][mesh]
    repeat = np.repeat(np.arange(len(mesh)), count[pp])
    place = np.arange(len(repeat)) - np.repeat(np.cumsum(count[pp]) - count[pp], count[pp])
    flat = np.array([entry for value in range(len(count)) for entry in by_pp.get(value, [])], dtype=np.int64).reshape(-1, 3)
    offset = np.concatenate([[0], np.cumsum(count)])
    chosen = flat[offset[pp[repeat]] + place]
    outer = {name: column[repeat] for name, column in columns.items()}
    outer |= {"mesh": mesh[repeat], "vpp": chosen[:, 0], "schedule": chosen[:, 1], "largest": chosen[:, 2]}
    microbatches = facts.global_batch // (meshes.columns["dp"][outer["mesh"]] * outer["mbs"])
    outer["microbatches"] = microbatches
    kept = (outer["schedule"] != SCHEDULE_INTERLEAVED) | (microbatches % pp[repeat] == 0)
    if {"gpipe", "1f1b"} <= set(space.of("schedule")):
        # One microbatch has one order.
        kept &= (outer["schedule"] != SCHEDULE_GPIPE) | (microbatches > 1)
        outer["copies"] = outer["copies"] * np.where((outer["schedule"] == SCHEDULE_1F1B) & (microbatches == 1), 2, 1)
    return Outers(columns={name: column[kept] for name, column in outer.items()})


def _pipelines(space: Space, facts: GridFacts, pp: int) -> list[tuple[int, int, int]]:
    """Legal (vpp, schedule, layers of the largest chunk) of `pp` ranks."""
    found = []
    for vpp in (int(v) for v in space.of("vpp")):
        largest = _largest_chunk(space, facts.layers, pp, vpp)
        for name in space.of("schedule"):
            interleaved = name == "interleaved-1f1b"
            if largest and (vpp > 1) == interleaved and not (vpp > 1 and pp == 1):
                found.append((vpp, SCHEDULES[str(name)], largest))
    return found


def _largest_chunk(space: Space, layers: int, pp: int, vpp: int) -> int:
    try:
        return max(chunk_layers(layers, pp=pp, vpp=vpp, first=space.first, last=space.last))
    except StrategyError:
        return 0


def member_grid(members: Members, place: int) -> Grid:
    """The grid of a member."""
    outer, inner = members.outers.columns, members.inner
    i = int(np.searchsorted(members.start, place, side="right")) - 1
    rest = place - int(members.start[i])
    zero_list = [z for z in inner.zero_lists[inner.zero_key[i]].tolist() if z >= 0]
    redo_list = [r for r in inner.redo_lists[inner.redo_key[i]].tolist() if r >= 0]
    offloads = len(inner.offload)
    zero = zero_list[rest // (len(redo_list) * offloads)]
    redo = redo_list[rest // offloads % len(redo_list)]
    mesh = {name: int(column[outer["mesh"][i]]) for name, column in members.meshes.columns.items()}
    space = members.space
    holders = mesh["cp"] * mesh["dp"]
    stage, shard = int(inner.zero_stage[zero]), int(space.of("shard")[int(inner.zero_shard[zero])])
    mode = int(inner.redo_mode[redo])
    k = int(space.of("recompute_layers")[int(inner.redo_layers[redo])]) if mode == 2 else 0
    return Grid(
        tp=mesh["tp"],
        sp=bool(outer["sp"][i]),
        cp=mesh["cp"],
        ulysses=int(outer["ulysses"][i]),
        gather=bool(outer["gather"][i]),
        ep=mesh["ep"],
        etp=mesh["etp"],
        dp=mesh["dp"],
        pp=mesh["pp"],
        vpp=int(outer["vpp"][i]),
        microbatch=int(outer["mbs"][i]),
        zero=stage,
        shard=0 if not stage or shard == holders else shard,
        recompute=(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)[mode],
        recompute_layers=0 if k >= int(outer["largest"][i]) else k,
        offload=int(inner.offload[rest % offloads]),
        schedule=next(name for name, number in SCHEDULES.items() if number == int(outer["schedule"][i])),
        first=space.first,
        last=space.last,
        order=tuple(str(space.of("order")[mesh["order"]]).split("-")),
    )
