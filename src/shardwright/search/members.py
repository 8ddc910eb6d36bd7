"""Members of a grid space as arrays: which are legal and distinct, and where their numbers stand in the tables.

The rules are those of `strategy.grid_rules` (and of the runtime), applied to columns; tests hold both to be the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.cost.bounds import SCHEDULE_1F1B, SCHEDULE_GPIPE, SCHEDULE_INTERLEAVED
from shardwright.errors import StrategyError
from shardwright.program.problem import Problem
from shardwright.search.space import Space
from shardwright.strategy.chunks import chunk_layers
from shardwright.strategy.grid import Grid, Recompute
from shardwright.strategy.grid_fold import fold
from shardwright.strategy.grid_rules import GridFacts

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

SCHEDULES = {"gpipe": SCHEDULE_GPIPE, "1f1b": SCHEDULE_1F1B, "interleaved-1f1b": SCHEDULE_INTERLEAVED}
RECOMPUTES = {"none": 0, "selective": 1, "full": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """Legal, distinct meshes as columns, with the strides of their axes; `order` indexes the space's orders."""

    columns: dict[str, IntArray]

    def __len__(self) -> int:
        return int(self.columns["tp"].shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outers:
    """Legal, distinct choices but for memory: mesh, and sp, ulysses, gather, mbs, vpp, schedule as columns."""

    columns: dict[str, IntArray]

    def __len__(self) -> int:
        return int(self.columns["mesh"].shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """Memory choices: the legal, distinct options of each kind, as lists of option numbers by key (-1 ends a list).

    Args:
        zero_stage, zero_shard: option -> stage, place in the space's shard values. redo_mode, redo_layers: option -> mode, place in
            the space's recompute_layers. offload: values. zero_lists, redo_lists: (keys, options).
        zero_key, redo_key: (outers,) which list applies.
    """

    zero_stage: IntArray
    zero_shard: IntArray
    redo_mode: IntArray
    redo_layers: IntArray
    offload: IntArray
    zero_lists: IntArray
    redo_lists: IntArray
    zero_key: IntArray
    redo_key: IntArray


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


@dataclass(slots=True)
class _Tally:
    """Counts while enumerating."""

    enumerated: int = 0
    illegal: int = 0
    duplicates: int = 0


def enumerate_members(problem: Problem, space: Space, facts: GridFacts) -> Members:
    """Apply the rules to the whole space."""
    tally = _Tally()
    inner_size = len(space.of("zero")) * len(space.of("shard")) * len(space.of("recompute")) * len(space.of("recompute_layers")) * len(space.of("offload"))
    option_size = len(space.of("sp")) * len(space.of("ulysses")) * len(space.of("gather")) * len(space.of("mbs"))
    chunk_size = len(space.of("vpp")) * len(space.of("schedule"))
    meshes = _meshes(space, facts, tally, option_size * chunk_size * inner_size)
    outers = _outers(space, facts, meshes, tally, chunk_size * inner_size, inner_size)
    inner, start = _inner(problem, space, facts, meshes, outers, tally)
    return Members(
        space=space,
        meshes=meshes,
        outers=outers,
        inner=inner,
        start=start,
        enumerated=tally.enumerated,
        illegal=tally.illegal,
        duplicates=tally.duplicates,
    )


def _meshes(space: Space, facts: GridFacts, tally: _Tally, weight: int) -> Meshes:
    """All (order, tp, cp, pp, ep, etp) whose dp is whole; those with the groups of an earlier order are duplicates."""
    axes = ("tp", "cp", "pp", "ep", "etp")
    table = np.stack(np.meshgrid(*(np.array(space.of(a), dtype=np.int64) for a in axes), indexing="ij"), axis=-1).reshape(-1, len(axes))
    table = table[space.devices % (table[:, 0] * table[:, 1] * table[:, 2]) == 0]
    orders = [tuple(str(o).split("-")) for o in space.of("order")]
    rows: list[tuple[int, ...]] = []
    for tp, cp, pp, ep, etp in table.tolist():
        dp = space.devices // (tp * cp * pp)
        seen: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
        tally.enumerated += weight * len(orders)
        legal = _mesh_is_legal(facts, tp, cp, ep, etp, dp)
        for index, order in enumerate(orders):
            grid = Grid(tp=tp, cp=cp, ep=ep, etp=etp, dp=dp, pp=pp, order=order)
            if not legal or (ep * etp > 1 and fold(grid) is None):
                tally.illegal += weight
                continue
            key = _groups(grid)
            if key in seen:
                tally.duplicates += weight
                continue
            seen.add(key)
            s = grid.strides()
            rows.append((tp, cp, pp, ep, etp, dp, index, s["tp"], s["cp"], s["dp"], s["pp"]))
    names = ("tp", "cp", "pp", "ep", "etp", "dp", "order", "s_tp", "s_cp", "s_dp", "s_pp")
    array = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return Meshes(columns={name: np.ascontiguousarray(array[:, i]) for i, name in enumerate(names)})


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


def _outers(space: Space, facts: GridFacts, meshes: Meshes, tally: _Tally, option_weight: int, chunk_weight: int) -> Outers:
    names = ("sp", "ulysses", "gather", "mbs")
    options = np.stack(np.meshgrid(*(np.array(space.of(a), dtype=np.int64) for a in names), indexing="ij"), axis=-1).reshape(-1, len(names))
    mesh = np.repeat(np.arange(len(meshes)), len(options))
    columns = {name: np.tile(options[:, i], len(meshes)) for i, name in enumerate(names)}
    get = {name: meshes.columns[name][mesh] for name in ("tp", "cp", "ep", "etp", "dp", "pp")}
    legal, distinct = _options_are_legal(facts, get, columns)
    tally.illegal += int((~legal).sum()) * option_weight
    tally.duplicates += int((legal & ~distinct).sum()) * option_weight
    kept = legal & distinct
    mesh, columns = mesh[kept], {name: column[kept] for name, column in columns.items()}
    return _chunked(space, facts, meshes, mesh, columns, tally, chunk_weight)


def _options_are_legal(facts: GridFacts, mesh: dict[str, IntArray], option: dict[str, IntArray]) -> tuple[BoolArray, BoolArray]:
    """Which rows break no rule of widths, sequence, experts and batch; and which of them are no switch without effect."""
    tp, cp, sp, ulysses, mbs = mesh["tp"], mesh["cp"], option["sp"], option["ulysses"], option["mbs"]
    whole = cp % ulysses == 0
    ring = np.maximum(cp // np.maximum(ulysses, 1), 1)
    parts = tp * ulysses
    legal = whole & (facts.heads % parts == 0)
    if facts.kv_heads:
        legal &= (facts.kv_heads % parts == 0) | (parts % facts.kv_heads == 0)
    legal &= facts.seq_len % (cp * np.where(sp == 1, tp, 1)) == 0
    legal &= (ring == 1) | (facts.seq_len % (2 * ring) == 0)
    legal &= (sp == 0) | (tp > 1)
    legal &= (facts.global_batch // mesh["dp"]) % mbs == 0
    legal &= ~((mesh["ep"] > 1) & (tp > 1) & (sp == 0))
    distinct = (option["gather"] == 0) | (ring > 1)
    return legal, distinct


def _chunked(
    space: Space, facts: GridFacts, meshes: Meshes, mesh: IntArray, columns: dict[str, IntArray], tally: _Tally, weight: int
) -> Outers:
    """Cross with the legal (vpp, schedule) of each pp."""
    by_pp: dict[int, list[tuple[int, int, int]]] = {}
    for pp in np.unique(meshes.columns["pp"]).tolist():
        by_pp[pp] = []
        for vpp in space.of("vpp"):
            largest = _largest_chunk(facts.layers, pp, int(vpp))
            for name in space.of("schedule"):
                interleaved = name == "interleaved-1f1b"
                if largest and (int(vpp) > 1) == interleaved and not (int(vpp) > 1 and pp == 1):
                    by_pp[pp].append((int(vpp), SCHEDULES[str(name)], largest))
    count = np.array([len(by_pp.get(pp, [])) for pp in range(int(max(by_pp, default=0)) + 1)])
    pp = meshes.columns["pp"][mesh]
    tally.illegal += int((len(space.of("vpp")) * len(space.of("schedule")) - count[pp]).sum()) * weight
    repeat = np.repeat(np.arange(len(mesh)), count[pp])
    place = np.arange(len(repeat)) - np.repeat(np.cumsum(count[pp]) - count[pp], count[pp])
    flat = np.array([entry for value in range(len(count)) for entry in by_pp.get(value, [])], dtype=np.int64).reshape(-1, 3)
    offset = np.concatenate([[0], np.cumsum(count)])
    chosen = flat[offset[pp[repeat]] + place]
    outer = {name: column[repeat] for name, column in columns.items()}
    outer |= {"mesh": mesh[repeat], "vpp": chosen[:, 0], "schedule": chosen[:, 1], "largest": chosen[:, 2]}
    microbatches = facts.global_batch // (meshes.columns["dp"][outer["mesh"]] * outer["mbs"])
    outer["microbatches"] = microbatches
    rounds = (outer["schedule"] != SCHEDULE_INTERLEAVED) | (microbatches % pp[repeat] == 0)
    same = (outer["schedule"] == SCHEDULE_GPIPE) & (microbatches == 1) & ("1f1b" in space.of("schedule"))
    tally.illegal += int((~rounds).sum()) * weight
    tally.duplicates += int((rounds & same).sum()) * weight
    kept = rounds & ~same
    return Outers(columns={name: column[kept] for name, column in outer.items()})


def _largest_chunk(layers: int, pp: int, vpp: int) -> int:
    try:
        return max(chunk_layers(layers, pp=pp, vpp=vpp))
    except StrategyError:
        return 0


def _inner(
    problem: Problem, space: Space, facts: GridFacts, meshes: Meshes, outers: Outers, tally: _Tally
) -> tuple[Inner, IntArray]:
    zeros = [(int(z), g) for z in space.of("zero") for g in range(len(space.of("shard")))]
    redos = [(RECOMPUTES[str(r)], k) for r in space.of("recompute") for k in range(len(space.of("recompute_layers")))]
    columns = meshes.columns
    stage = columns["tp"] * columns["cp"] * columns["dp"]
    edp = stage // (columns["ep"] * columns["etp"])
    inner_axis = np.where(columns["s_cp"] < columns["s_dp"], columns["cp"], columns["dp"])
    keys = np.stack([columns["cp"] * columns["dp"], inner_axis, (edp > 1) & (facts.experts > 0), columns["pp"] > 1], axis=1)
    unique, mesh_key = np.unique(keys, axis=0, return_inverse=True)
    zero_sets = [_zero_options(problem, space, zeros, tuple(int(x) for x in key)) for key in unique]
    largest, redo_key = np.unique(outers.columns["largest"], return_inverse=True)
    redo_sets = [_redo_options(space, redos, int(x)) for x in largest]
    zero_key = mesh_key.reshape(-1)[outers.columns["mesh"]]
    offloads = len(space.of("offload"))
    nz, iz = (np.array([len(s[i]) if i == 0 else s[1] for s in zero_sets]) for i in (0, 1))
    nr, ir = (np.array([len(s[i]) if i == 0 else s[1] for s in redo_sets]) for i in (0, 1))
    z, r = zero_key, redo_key.reshape(-1)
    legal = nz[z] * nr[r] * offloads
    illegal = (iz[z] * len(redos) + (len(zeros) - iz[z]) * ir[r]) * offloads
    tally.illegal += int(illegal.sum())
    tally.duplicates += int((len(zeros) * len(redos) * offloads - illegal - legal).sum())
    inner = Inner(
        zero_stage=np.array([s for s, _ in zeros], dtype=np.int64),
        zero_shard=np.array([g for _, g in zeros], dtype=np.int64),
        redo_mode=np.array([m for m, _ in redos], dtype=np.int64),
        redo_layers=np.array([k for _, k in redos], dtype=np.int64),
        offload=np.array(space.of("offload"), dtype=np.int64),
        zero_lists=_lists([s[0] for s in zero_sets]),
        redo_lists=_lists([s[0] for s in redo_sets]),
        zero_key=z.astype(np.int64),
        redo_key=r.astype(np.int64),
    )
    return inner, np.concatenate([[0], np.cumsum(legal)]).astype(np.int64)


def _lists(options: list[list[int]]) -> IntArray:
    width = max((len(o) for o in options), default=0) + 1
    return np.array([o + [-1] * (width - len(o)) for o in options], dtype=np.int64).reshape(-1, width)


def _zero_options(problem: Problem, space: Space, zeros: list[tuple[int, int]], key: tuple[int, ...]) -> tuple[list[int], int]:
    """Legal, distinct zero options of meshes with this key, and how many are illegal."""
    holders, inner_axis, experts_sharded, pipelined = key
    shards = space.of("shard")
    chosen: list[int] = []
    illegal = 0
    meant: set[tuple[int, int]] = set()
    for index, (stage, place) in enumerate(zeros):
        shard = int(shards[place])
        if stage and not shard_is_legal(shard, holders=holders, inner=inner_axis):
            illegal += 1
            continue
        if pipelined and stage > problem.runtime.zero_with_pipeline:
            illegal += 1
            continue
        whole = 0 if shard in (0, holders) else shard
        same = (stage, whole) if stage and shard != 1 and (holders > 1 or experts_sharded) else (0, 0)
        if same not in meant:
            meant.add(same)
            chosen.append(index)
    return chosen, illegal


def shard_is_legal(shard: int, *, holders: int, inner: int) -> bool:
    """A sharding group is a run of consecutive holders: it divides them, and covers or divides the inner of dp and cp."""
    if shard == 0:
        return True
    if holders % shard:
        return False
    inside = int(np.gcd(shard, inner))
    return (holders // inner) % (shard // inside) == 0


def _redo_options(space: Space, redos: list[tuple[int, int]], largest: int) -> tuple[list[int], int]:
    """Legal, distinct recompute options of chunks with at most `largest` layers, and how many are illegal."""
    layers = space.of("recompute_layers")
    chosen: list[int] = []
    illegal = 0
    meant: set[tuple[int, int]] = set()
    for index, (mode, place) in enumerate(redos):
        k = int(layers[place])
        if k > largest:
            illegal += 1
            continue
        same = (mode, 0 if mode < 2 or k == largest else k)
        if same not in meant:
            meant.add(same)
            chosen.append(index)
    return chosen, illegal


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
        order=tuple(str(space.of("order")[mesh["order"]]).split("-")),
    )
