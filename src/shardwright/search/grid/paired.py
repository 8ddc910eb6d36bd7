"""Schedules that only general plans run, searched behind the grid space: overlapped pairs, two lanes, weight gradients apart.

Their members are the legal ones of 1F1B on all devices without recompute, offload or groups of shards (with two lanes up to ZeRO-1), each
with each of these orders instead. Three bounds, each of the next: what a block does apart from tokens on their way to experts, over ranks;
on every rank what comes before its first action, its row with pairs as `cost.pairs` prices them, and what comes behind its last input
gradient; and the simulation of the plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.chunk_layout import layout_of
from shardwright.cost.critical_path import jitter
from shardwright.cost.device_buffers import context_bytes
from shardwright.cost.pairs import pair_seconds, taken_of
from shardwright.cost.parts import ATTENTION, EP, GEMM
from shardwright.cost.step_costs import StepCosts, reserve_factor, step_costs
from shardwright.program.problem import Problem
from shardwright.schedules.grid_order import order_violations
from shardwright.schedules.registry import schedule_table
from shardwright.schedules.table import ActionTable
from shardwright.search.grid.best_first import Simulated
from shardwright.search.grid.members import Members, enumerate_members, member_grid
from shardwright.search.grid.prepare import Prepared, prepare
from shardwright.search.grid.space import Space
from shardwright.search.limit import Limit
from shardwright.simulator.simulate import simulate_grid
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.rules import GridFacts, violations
from shardwright.strategy.grid.schedules import grid_schedule

_F, _I, _W, _B = 0, 1, 2, 3
_PRODUCTS: Final = [GEMM, ATTENTION]
_ROUNDED: Final = 1 - 1e-6
"""Clocks of the simulation are whole picoseconds."""


@dataclass(slots=True)
class PairedSearch:
    """What was found, and the fate of every member; `lower_bound_s`: none that is not ranked is faster."""

    ranked: list[Simulated] = field(default_factory=list)
    enumerated: int = 0
    illegal: int = 0
    infeasible: int = 0
    bounded_b0: int = 0
    bounded_b1: int = 0
    simulated: int = 0
    lower_bound_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rank's row of an order, as what its seconds and bytes are sums of.

    Args:
        alone, behind: (n, 3) kind, chunk, count of actions that no other is paired with; of those behind its last input gradient.
        pairs: (n, 5) kind and chunk of one and the other, count. first, last: chunks of its first action and of its last input gradient.
        held: (states, chunks) distinct numbers of microbatches of each of `chunks` that are in flight.
    """

    alone: IntArray
    behind: IntArray
    pairs: IntArray
    first: int
    last: int
    held: IntArray
    chunks: IntArray


@lru_cache(maxsize=512)
def rows_of(name: str, pp: int, microbatches: int) -> tuple[Row, ...]:
    """The rows of a schedule's order; microbatches: of each lane."""
    table = schedule_table(name, num_ranks=pp, chunks_per_rank=grid_schedule(name).chunks, num_microbatches=microbatches)
    return tuple(_row(table, slice(int(table.row_start[r]), int(table.row_start[r + 1]))) for r in range(pp))


def _row(table: ActionTable, at: slice) -> Row:
    kind, chunk = table.kind[at].astype(np.int64), table.chunk[at].astype(np.int64)
    one = np.zeros(len(kind), dtype=np.bool_) if table.overlapped is None else table.overlapped[at] != 0
    other = np.concatenate([[False], one[:-1]])
    actions = np.stack([kind, chunk], axis=1)
    place = np.flatnonzero(one)
    last = int(np.flatnonzero((kind == _I) | (kind == _B))[-1])
    if one[last]:
        last += 1
    step = np.where(kind == _F, 1, np.where((kind == _B) | (kind == _W), -1, 0))
    chunks = np.unique(chunk)
    held = np.cumsum((chunk[:, None] == chunks) * step[:, None], axis=0)
    return Row(
        alone=_counted(actions[~one & ~other]),
        behind=_counted(actions[last + 1 :]),
        pairs=_counted(np.concatenate([actions[place], actions[place + 1]], axis=1)),
        first=int(chunk[0]),
        last=int(chunk[last]),
        held=np.unique(held, axis=0),
        chunks=chunks,
    )


def _counted(actions: IntArray) -> IntArray:
    """Distinct rows with how often each is there."""
    if not len(actions):
        return np.zeros((0, actions.shape[1] + 1), dtype=np.int64)
    distinct, count = np.unique(actions, axis=0, return_counts=True)
    return np.concatenate([distinct, count[:, None]], axis=1)


def _spent(costs: StepCosts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(kinds, chunks) seconds of actions, of them tokens on their way to experts or back, and of them products and attention."""
    forward, backward, weight = costs.forward_s, costs.backward_s, costs.weight_s
    nothing = np.zeros_like(weight)
    whole = np.stack([forward, backward - weight, weight, backward])
    routed = costs.parts[:, :, EP]
    dense = costs.parts[:, :, _PRODUCTS].sum(axis=2)
    moved = np.minimum(np.stack([routed[0], routed[1], nothing, routed[1]]), whole)
    products = np.minimum(np.stack([dense[0], np.maximum(dense[1] - weight, 0.0), weight, dense[1]]), whole)
    return whole, moved, products


def path_bound(problem: Problem, rows: tuple[Row, ...], costs: StepCosts, *, devices: int) -> float:
    """Seconds that no run of these rows is below: for each rank, forwards of the chunks before its first action, its row, and input
    gradients of the chunks before its last one, or the weight gradients behind that.
    """
    spent, taken = _spent(costs), taken_of(problem)
    whole = spent[0]
    before = np.concatenate([np.zeros((len(whole), 1)), np.cumsum(whole, axis=1)], axis=1)
    longest = 0.0
    for row in rows:
        one, other = (tuple(part[row.pairs[:, k], row.pairs[:, c]] for part in spent) for k, c in ((0, 1), (2, 3)))
        work = float(whole[row.alone[:, 0], row.alone[:, 1]] @ row.alone[:, 2])
        work += float(pair_seconds(one, other, taken) @ row.pairs[:, 4]) if len(row.pairs) else 0.0  # type: ignore[arg-type]
        behind = float(whole[row.behind[:, 0], row.behind[:, 1]] @ row.behind[:, 2])
        longest = max(longest, float(before[_F, row.first]) + work + max(float(before[_I, row.last]) - behind, 0.0))
    return longest * jitter(problem, devices) * _ROUNDED


def memory_bound(problem: Problem, rows: tuple[Row, ...], costs: StepCosts, *, lanes: int) -> float:
    """Bytes that some device needs at least: means over ranks of what lives through the step and of activations at their fullest.

    Parameters and gradients are there once for each lane; sharded optimizer states are cut over the holders of both.
    """
    static = {name: float(values.sum()) / len(rows) for name, values in costs.static_bytes}
    held = (static["parameters"] + static["gradients"]) * lanes * _ROUNDED + static["workspace"] + static["optimizer"] * _ROUNDED
    held += float(np.mean([(row.held @ costs.saved_bytes[row.chunks]).max() for row in rows]))
    return held * reserve_factor(problem) * _ROUNDED + context_bytes(problem)


@dataclass(frozen=True, slots=True)
class KnownBounds:
    """Bounds of members, each counted once for all whose rows of the tables are alike in what it is made of.

    Args:
        elements: (mesh rows,) equal numbers where devices hold and shard as much. kept: (layer rows,) the same of activations and buffers.
        bytes_held, seconds: what is known.
    """

    problem: Problem
    prepared: Prepared
    elements: IntArray
    kept: IntArray
    bytes_held: dict[tuple[object, ...], float] = field(default_factory=dict)
    seconds: dict[tuple[object, ...], float] = field(default_factory=dict)

    @staticmethod
    def of(problem: Problem, prepared: Prepared) -> KnownBounds:
        """Nothing is known yet."""
        sync, layers = prepared.meshes.sync, prepared.layers
        held = (sync.dense, sync.experts, sync.spread, sync.frozen, sync.tied, sync.narrow, sync.shard, sync.expert_shard)
        return KnownBounds(problem, prepared, _alike(held), _alike((layers.saved_bytes, layers.buffer_bytes)))

    def asked(self, grid: Grid, place: int, *, microbatches: int, capacity: float) -> float | None:
        """A lower bound of the seconds of the member at `place` under the order of `grid`; None if it cannot fit into `capacity` bytes."""
        lanes, priced = grid_schedule(grid.schedule).lanes, self.prepared.priced(place)
        order = grid.schedule, grid.pp, microbatches, grid.recompute, grid.recompute_layers, grid.host
        held = (*order, grid.zero, grid.offload, int(self.elements[priced.mesh_row]), int(self.kept[priced.layer_row]))
        # Below ZeRO-2 a microbatch has nothing of its sharding but what its scales wait.
        sharding = (grid.zero, priced.mesh_row) if grid.zero >= 2 else float(priced.meshes.scales_s[priced.mesh_row])
        path = (*order, grid.devices, priced.layer_row, sharding)
        if held not in self.bytes_held or (self.bytes_held[held] <= capacity and path not in self.seconds):
            rows = rows_of(grid.schedule, grid.pp, microbatches // lanes)
            layout = layout_of(self.problem.model, pp=grid.pp, vpp=grid.vpp)
            costs = step_costs(self.problem, grid, replace(priced, layout=layout))
            self.bytes_held[held] = memory_bound(self.problem, rows, costs, lanes=lanes)
            if self.bytes_held[held] <= capacity and path not in self.seconds:
                self.seconds[path] = path_bound(self.problem, rows, costs, devices=grid.devices)
        return self.seconds[path] if self.bytes_held[held] <= capacity else None


def _alike(tables: Sequence[IntArray]) -> IntArray:
    """Numbers of the places of the tables' last axis, equal where all that stands there is."""
    columns = np.concatenate([table.reshape(-1, table.shape[-1]) for table in tables])
    result: IntArray = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
    return result


def _kernels(problem: Problem, prepared: Prepared) -> FloatArray:
    """(outers,) seconds of all blocks but for tokens on their way to experts, for one microbatch, over the ranks of the pipeline."""
    repeats = np.zeros(len(problem.model.blocks))
    for run in problem.model.runs:
        repeats[run.block] += run.count
    kept = [part for part in range(prepared.layers.seconds.shape[2]) if part != EP]
    seconds = np.einsum("b,bpkn->n", repeats, prepared.layers.seconds[:, :3][:, :, kept])
    outer = prepared.members.outers.columns
    spread: FloatArray = seconds[prepared.layer_row] / prepared.members.meshes.columns["pp"][outer["mesh"]]
    return spread


def _part(space: Space) -> Space | None:
    """The members of 1F1B whose order is changed; None if `space` has none of them."""
    keep = {"schedule": ("1f1b",), "vpp": (1,), "recompute": ("none",), "recompute_layers": (0,), "offload": (0,), "shard": (0,)}
    values = {axis: tuple(v for v in found if v in keep.get(axis, found)) for axis, found in space.values}
    # Lanes of two directions shard over the holders of both, and what each microbatch gathers with them: those have no bound here yet.
    most = 1 if any(grid_schedule(name).lanes > 1 for name in space.paired) else 3
    values["vpp"], values["zero"] = (1,), tuple(v for v in values["zero"] if int(v) <= most)
    values["pp"] = tuple(v for v in values["pp"] if int(v) > 1)
    if space.first or space.last or not all(values.values()):
        return None
    return replace(space, values=tuple((axis, values[axis]) for axis, _ in space.values), fewest=0)


def _grids(members: Members, names: tuple[str, ...], place: int) -> tuple[Grid, ...]:
    """A member with every schedule in the place of its own."""
    grid = member_grid(members, place)
    return tuple(replace(grid, schedule=name, vpp=grid_schedule(name).chunks) for name in names)


def search_paired(
    problem: Problem, space: Space, facts: GridFacts, *, capacity: float, top: int, until: float, limit: Limit
) -> PairedSearch | None:
    """The `top` best members under `until` seconds, certified; None where the space has none.

    Args:
        problem: under the options of `space`, which has one value of each. until: seconds of the last rank that is known.
    """
    part = _part(space)
    if not space.paired or part is None:
        return None
    members = enumerate_members(problem, part, facts)
    found = PairedSearch(enumerated=members.num_members * len(space.paired))
    if not members.num_members:
        return found
    prepared = prepare(problem, members)
    known = KnownBounds.of(problem, prepared)
    outer = np.repeat(np.arange(len(members.start) - 1), np.diff(members.start))
    least = (_kernels(problem, prepared) * members.outers.columns["microbatches"])[outer]
    order = np.argsort(least, kind="stable")
    heap: list[tuple[float, int, Grid]] = []
    at = 0
    while heap or at < len(order):
        below = min(until, _worst(found.ranked, top))
        least_s = min(float(least[order[at]]) if at < len(order) else float("inf"), heap[0][0] if heap else float("inf"))
        if least_s >= below or (limit.passed() and below < float("inf")):
            found.lower_bound_s = least_s
            break
        if heap and heap[0][0] <= least_s:
            _simulate(problem, heapq.heappop(heap)[2], capacity=capacity, top=top, found=found)
            continue
        place, at = int(order[at]), at + 1
        for grid in _grids(members, space.paired, place):
            bound = _bound(known, place, grid, facts, capacity=capacity, found=found)
            if bound is not None:
                heapq.heappush(heap, (max(bound, least_s), at * len(space.paired) + len(heap), grid))
    found.bounded_b0, found.bounded_b1 = (len(order) - at) * len(space.paired), len(heap)
    return found


def _simulate(problem: Problem, grid: Grid, *, capacity: float, top: int, found: PairedSearch) -> None:
    simulated = Simulated(grid=grid, result=simulate_grid(problem, grid))
    if simulated.result.need > capacity:
        found.infeasible += 1
        return
    found.simulated += 1
    found.ranked = sorted([*found.ranked, simulated], key=lambda s: s.step_time_s)[:top]


def _worst(ranked: list[Simulated], top: int) -> float:
    return ranked[top - 1].step_time_s if len(ranked) >= top else float("inf")


def _bound(known: KnownBounds, place: int, grid: Grid, facts: GridFacts, *, capacity: float, found: PairedSearch) -> float | None:
    """A lower bound of a member's seconds; None, counted, if it is not legal or cannot fit."""
    microbatches = facts.global_batch // (grid.dp * grid.microbatch)
    if violations(grid, facts=facts, general=True) or order_violations(grid, microbatches=microbatches):
        found.illegal += 1
        return None
    bound = known.asked(grid, place, microbatches=microbatches, capacity=capacity)
    found.infeasible += bound is None
    return bound
