"""Search of the schedules that only general plans run, after the grid space: overlapped pairs, two
lanes, separate weight gradients.

Their members are the legal ones of 1F1B on all devices without recompute, offload or groups of
shards (with two lanes up to ZeRO-1), each with each of these orders instead. Four bounds, each of
the next: what blocks do apart from tokens on their way to experts, over ranks; on every rank what
comes before its first action, its row with pairs as `cost.pairs` prices them, and what comes behind
its last input gradient; the longest path through the order; and the simulation of the plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright import arrays
from shardwright.arrays import FloatArray, IntArray, distinct_rows
from shardwright.cost.bounds.longest_path import jitter_factor
from shardwright.cost.buffers.communication_buffers import context_bytes
from shardwright.cost.step.grid_bytes import StepBytes, reserve_factor, step_bytes
from shardwright.cost.step.grid_seconds import StepCosts, step_costs
from shardwright.cost.step.overlapped_pairs import (
    CommunicationShare,
    communication_share,
    pair_seconds,
)
from shardwright.cost.tables.layers_by_chunk import layout_of
from shardwright.cost.time_parts import ATTENTION, EP, GEMM
from shardwright.errors import StrategyError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.schedules.action_table import ActionTable
from shardwright.schedules.grid_schedule_rule import order_violations
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.search.grid.best_first import Simulated
from shardwright.search.grid.bounds.bound_arrays import Prepared, prepare
from shardwright.search.grid.bounds.overlapped_longest_path import longest_path, steps_of
from shardwright.search.grid.members.choice_columns import distinct
from shardwright.search.grid.members.declared_space import Space
from shardwright.search.grid.members.member_arrays import Members, enumerate_members, member_grid
from shardwright.search.search_limit import Limit
from shardwright.simulator.plan_simulation import simulate_grid
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_rules import GridFacts, violations
from shardwright.strategy.grid.grid_schedules import grid_schedule

_F, _I, _W, _B = 0, 1, 2, 3
_ROUTED: Final = [EP]
_PRODUCTS: Final = [GEMM, ATTENTION]
_ROUNDED: Final = 1 - 1e-6
"""Clocks of the simulation are whole picoseconds."""


@dataclass(slots=True)
class PairedSearch:
    """Results of the search of such schedules, with the fate of every member; `lower_bound_s`
    bounds all that are not ranked.
    """

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
    """A rank's row of an order, as the terms of its seconds and bytes.

    Args:
        alone, behind: (n, 3) kind, chunk, count of actions that no other is paired with; of those
            behind its last input gradient.
        pairs: (n, 5) kind and chunk of one and the other, count.
        first, last: chunks of its first action and of its last input gradient.
        held: (states, chunks) distinct numbers of microbatches of each of `chunks` that are in
            flight.
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
    """The distinct rows of a schedule's order, for these microbatches of each lane."""
    table = schedule_table(
        name,
        num_ranks=pp,
        chunks_per_rank=grid_schedule(name).chunks,
        num_microbatches=microbatches,
    )
    return tuple(
        _row(table, slice(int(table.row_start[r]), int(table.row_start[r + 1]))) for r in range(pp)
    )


def _row(table: ActionTable, at: slice) -> Row:
    kind, chunk = table.kind[at].astype(np.int64), table.chunk[at].astype(np.int64)
    one = (
        np.zeros(len(kind), dtype=np.bool_)
        if table.overlapped is None
        else table.overlapped[at] != 0
    )
    other = np.concatenate([[False], one[:-1]])
    actions = np.stack([kind, chunk], axis=1)
    place = np.flatnonzero(one)
    last = int(np.flatnonzero((kind == _I) | (kind == _B))[-1])
    if one[last]:
        last += 1
    step = np.where(kind == _F, 1, np.where((kind == _B) | (kind == _W), -1, 0))
    chunks = arrays.distinct(chunk)
    held = np.cumsum((chunk[:, None] == chunks) * step[:, None], axis=0)
    return Row(
        alone=_counted(actions[~one & ~other]),
        behind=_counted(actions[last + 1 :]),
        pairs=_counted(np.concatenate([actions[place], actions[place + 1]], axis=1)),
        first=int(chunk[0]),
        last=int(chunk[last]),
        held=distinct_rows(held),
        chunks=chunks,
    )


def _counted(actions: IntArray) -> IntArray:
    """Distinct rows with their numbers of occurrences."""
    if not len(actions):
        return np.zeros((0, actions.shape[1] + 1), dtype=np.int64)
    distinct, count = np.unique(actions, axis=0, return_counts=True)
    return np.concatenate([distinct, count[:, None]], axis=1)


def _spent(costs: StepCosts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(kinds, chunks) seconds of actions, of them expert all-to-all, and of them matrix products
    and attention.
    """
    moved, dense = costs.parts[:, :, _ROUTED].sum(axis=2), costs.parts[:, :, _PRODUCTS].sum(axis=2)
    return _apart(np.stack([costs.forward_s, costs.backward_s]), costs.weight_s, moved, dense)


def _apart(
    both: FloatArray, weight: FloatArray, moved: FloatArray, dense: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds by kind of action: F and B, and I and W as the two parts of B.

    Args:
        both, moved, dense: (2, chunks, ...) seconds of F and B, of them tokens on their way, and
            products.
        weight: of B's second half.
    """
    (forward, backward), nothing = both, np.zeros_like(weight)
    whole = np.stack([forward, backward - weight, weight, backward])
    exposed = np.minimum(np.stack([moved[0], moved[1], nothing, moved[1]]), whole)
    products = np.minimum(
        np.stack([dense[0], np.maximum(dense[1] - weight, 0.0), weight, dense[1]]), whole
    )
    return whole, exposed, products


def path_bound(problem: Problem, grid: Grid, microbatches: int, costs: StepCosts) -> float:
    """Lower bound in seconds of a grid under its order: the longest path, then the least update of
    a rank.

    Args:
        microbatches: of each lane.
    """
    path = longest_path(
        steps_of(grid.schedule, grid.pp, microbatches), _spent(costs), communication_share(problem)
    )
    return (path + float(costs.optimizer_s.min())) * jitter_factor(problem, grid.devices) * _ROUNDED


def _longest(
    rows: tuple[Row, ...], spent: Sequence[FloatArray], taken: CommunicationShare
) -> FloatArray:
    """(n,) the longest of each rank's way in, row, and way out: forwards of the chunks before its
    first action; then input gradients of the chunks before its last one, or the weight gradients
    after it.

    Args:
        spent: (kinds, chunks, n) each, as `_spent` has them.
    """
    whole = spent[0]
    before = np.concatenate(
        [np.zeros((len(whole), 1, whole.shape[2])), np.cumsum(whole, axis=1)], axis=1
    )
    longest = np.zeros(whole.shape[2])
    for row in rows:
        work = row.alone[:, 2] @ whole[row.alone[:, 0], row.alone[:, 1]]
        if len(row.pairs):
            one, other = (
                tuple([part[row.pairs[:, k], row.pairs[:, c]] for part in spent])
                for k, c in ((0, 1), (2, 3))
            )
            work = work + row.pairs[:, 4] @ pair_seconds(one, other, taken)  # type: ignore[arg-type, operator]
        behind = row.behind[:, 2] @ whole[row.behind[:, 0], row.behind[:, 1]]
        longest = np.maximum(
            longest, before[_F, row.first] + work + np.maximum(before[_I, row.last] - behind, 0.0)
        )
    return longest


def _paths(
    problem: Problem, prepared: Prepared, name: str, least: FloatArray, *, until: float
) -> FloatArray:
    """(members,) lower bound in seconds under the order of a schedule: along the rows where the
    kernels take less than `until`, else `least`.
    """
    members, choices = prepared.members, prepared.members.inner.choices
    outer = np.repeat(np.arange(len(members.start) - 1), np.diff(members.start))
    lists = choices.redo_lists[members.inner.redo_key[outer]]
    place = np.arange(len(outer)) - members.start[outer]
    redo = lists[np.arange(len(outer)), place // len(choices.offload) % (lists >= 0).sum(axis=1)]
    layer = prepared.layer_row[outer] + choices.redo_modules[redo] * prepared.layer_rows
    columns = {
        "pp": members.meshes.columns["pp"][members.outers.columns["mesh"][outer]],
        "m": members.outers.columns["microbatches"][outer],
    }
    close, found, taken = np.flatnonzero(least < until), least.copy(), communication_share(problem)
    kinds, kind = distinct({axis: column[close] for axis, column in columns.items()})
    rough = jitter_factor(problem, members.space.devices) * _ROUNDED
    for number, (pp, count) in enumerate(
        zip(kinds["pp"].tolist(), kinds["m"].tolist(), strict=True)
    ):
        order = grid_schedule(name)
        if order_violations(Grid(pp=pp, vpp=order.chunks, schedule=name), microbatches=count):
            continue
        try:
            layout = layout_of(problem.model, pp=pp, vpp=order.chunks)
        except StrategyError:
            continue
        some = close[kind == number]
        of, at = np.unique(layer[some], return_inverse=True)
        spent = _spent_by(layout.counts, prepared.layers.seconds[..., of])
        longest = _longest(rows_of(name, pp, count // order.lanes), spent, taken) * rough
        found[some] = np.maximum(found[some], longest[at.reshape(-1)])
    return found


def _spent_by(counts: IntArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(kinds, chunks, n) `_spent` of chunks with these numbers of blocks, without waiting for
    scales.

    Args:
        seconds: (blocks, phases, parts, n).
    """
    both = np.einsum(
        "cb,bkpn->kcpn", counts, np.stack([seconds[:, 0], seconds[:, 1] + seconds[:, 2]], axis=1)
    )
    weight = np.einsum("cb,bpn->cn", counts, seconds[:, 2])
    return _apart(
        both.sum(axis=2), weight, both[:, :, _ROUTED].sum(axis=2), both[:, :, _PRODUCTS].sum(axis=2)
    )


def memory_bound(problem: Problem, rows: tuple[Row, ...], costs: StepBytes, *, lanes: int) -> float:
    """Lower bound in bytes of the fullest device: means over ranks of the states and of activations
    at their peak.

    Parameters and gradients are there once for each lane; sharded states are cut over the holders
    of both.
    """
    static = {name: float(values.sum()) / len(rows) for name, values in costs.static_bytes}
    held = (
        (static["parameters"] + static["gradients"]) * lanes * _ROUNDED
        + static["workspace"]
        + static["optimizer"] * _ROUNDED
    )
    held += float(np.mean([(row.held @ costs.saved_bytes[row.chunks]).max() for row in rows]))
    return held * reserve_factor(problem) * _ROUNDED + context_bytes(problem)


def _kernels(problem: Problem, prepared: Prepared) -> FloatArray:
    """(outers,) lower bound in seconds of all blocks for one microbatch without expert all-to-all,
    divided by the pipeline ranks.

    An action that is paired loses at least what its blocks would lose to tokens of their own; one
    that is not waits for them.
    """
    repeats, taken = np.zeros(len(problem.model.blocks)), communication_share(problem)
    for run in problem.model.runs:
        repeats[run.block] += run.count
    each = prepared.layers.seconds[:, :3]
    kept = [part for part in range(each.shape[2]) if part not in _ROUTED]
    # Weight gradients may stand alone, with nothing beside them.
    moved = np.stack([each[:, 0, _ROUTED].sum(axis=1), each[:, 1:, _ROUTED].sum(axis=(1, 2))])
    products = each[:, :2, _PRODUCTS].sum(axis=2).transpose(1, 0, 2)
    products[1] += each[:, 2, _PRODUCTS].sum(axis=1) - each[:, 2].sum(axis=1)
    lost = (
        np.minimum(products * (taken.share / (1.0 - taken.share)), moved)
        if taken.reserved
        else taken.share * moved
    )
    seconds = np.einsum("b,bpkn->n", repeats, each[:, :, kept]) + np.einsum(
        "b,kbn->n", repeats, lost
    )
    outer = prepared.members.outers.columns
    spread: FloatArray = (
        seconds[prepared.layer_row] / prepared.members.meshes.columns["pp"][outer["mesh"]]
    )
    return spread


def _part(space: Space) -> Space | None:
    """The part of a space that is searched with overlapped schedules; None if it is empty.

    It has the 1F1B members with several stages and without recompute, offload or sharded groups,
    and the overlapped schedules with a number of chunks a rank that the space has.
    """
    chunks = space.of("vpp")
    space = replace(
        space, paired=tuple(name for name in space.paired if grid_schedule(name).chunks in chunks)
    )
    keep = {"recompute": ("none",), "recompute_layers": (0,), "offload": (0,), "shard": (0,)}
    values = {
        axis: tuple(v for v in found if v in keep.get(axis, found)) for axis, found in space.values
    }
    # Lanes of two directions shard over the holders of both, and what each microbatch gathers with
    # them: those have no bound here yet.
    most = 1 if any(grid_schedule(name).lanes > 1 for name in space.paired) else 3
    values["schedule"], values["vpp"] = ("1f1b",), (1,)
    values["zero"] = tuple(v for v in values["zero"] if int(v) <= most)
    values["pp"] = tuple(v for v in values["pp"] if int(v) > 1)
    if not space.paired or space.first or space.last or not all(values.values()):
        return None
    return replace(space, values=tuple((axis, values[axis]) for axis, _ in space.values), fewest=0)


def _grid(members: Members, name: str, place: int) -> Grid:
    """A member with another schedule in place of its own."""
    return replace(member_grid(members, place), schedule=name, vpp=grid_schedule(name).chunks)


def search_paired(
    problem: Problem,
    space: Space,
    facts: GridFacts,
    *,
    capacity: float,
    top: int,
    until: float,
    limit: Limit,
) -> PairedSearch | None:
    """The `top` best members below `until` seconds, certified; None where the space has none.

    Args:
        problem: under the options of `space`, which has one value of each.
        until: seconds of the last rank that is known.
    """
    part = _part(space)
    if part is None:
        return None
    space = part
    members = enumerate_members(problem, part, facts)
    found = PairedSearch(enumerated=members.num_members * len(space.paired))
    if not members.num_members:
        return found
    prepared = prepare(problem, members)
    outer = np.repeat(np.arange(len(members.start) - 1), np.diff(members.start))
    kernels = (_kernels(problem, prepared) * members.outers.columns["microbatches"])[outer]
    least = np.stack(
        [_paths(problem, prepared, name, kernels, until=until) for name in space.paired], axis=1
    ).reshape(-1)
    order = np.argsort(least, kind="stable")
    heap: list[tuple[float, int, Grid]] = []
    at = 0
    # Members wait under the bound along their rows, then under the longest path of their order. The
    # least of both bounds all that were not simulated.
    while heap or at < len(order):
        below = min(until, _worst(found.ranked, top))
        least_s = min(
            float(least[order[at]]) if at < len(order) else float("inf"),
            heap[0][0] if heap else float("inf"),
        )
        if least_s >= below or (limit.passed() and below < float("inf")):
            found.lower_bound_s = least_s
            break
        if heap and heap[0][0] <= least_s:
            _simulate(problem, heapq.heappop(heap)[2], capacity=capacity, top=top, found=found)
            continue
        (place, name), at = divmod(int(order[at]), len(space.paired)), at + 1
        grid = _grid(members, space.paired[name], place)
        bound = _bound(problem, prepared, place, grid, facts, capacity=capacity, found=found)
        if bound is not None:
            heapq.heappush(heap, (max(bound, least_s), at, grid))
    found.bounded_b0, found.bounded_b1 = len(order) - at, len(heap)
    return found


def _simulate(
    problem: Problem, grid: Grid, *, capacity: float, top: int, found: PairedSearch
) -> None:
    simulated = Simulated(grid=grid, result=simulate_grid(problem, grid))
    if not simulated.result.fits_in(capacity):
        found.infeasible += 1
        return
    found.simulated += 1
    found.ranked = sorted([*found.ranked, simulated], key=lambda s: s.step_time_s)[:top]


def _worst(ranked: list[Simulated], top: int) -> float:
    return ranked[top - 1].step_time_s if len(ranked) >= top else float("inf")


def _bound(
    problem: Problem,
    prepared: Prepared,
    place: int,
    grid: Grid,
    facts: GridFacts,
    *,
    capacity: float,
    found: PairedSearch,
) -> float | None:
    """A lower bound of a member's seconds; None, counted, if it is not legal or cannot fit."""
    microbatches = facts.global_batch // (grid.dp * grid.microbatch)
    if violations(grid, facts=facts, general=True) or order_violations(
        grid, microbatches=microbatches
    ):
        found.illegal += 1
        return None
    lanes = grid_schedule(grid.schedule).lanes
    rows = rows_of(grid.schedule, grid.pp, microbatches // lanes)
    priced = replace(
        prepared.priced(place), layout=layout_of(problem.model, pp=grid.pp, vpp=grid.vpp)
    )
    if memory_bound(problem, rows, step_bytes(problem, grid, priced), lanes=lanes) > capacity:
        found.infeasible += 1
        return None
    return path_bound(problem, grid, microbatches // lanes, step_costs(problem, grid, priced))
