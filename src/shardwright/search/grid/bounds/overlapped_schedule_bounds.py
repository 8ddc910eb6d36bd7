"""Lower bounds of time and memory under the schedules that only general plans run.

Three bounds, each at least the one before: the seconds of blocks without expert all-to-all,
averaged over ranks; the row of every rank, with the actions before its first action and after its
last input gradient, and with pairs as `cost.step` prices overlapped actions; and the longest path
through the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright import arrays
from shardwright.arrays import FloatArray, IntArray, distinct_rows
from shardwright.cost.bounds.straggler_jitter import jitter_factor
from shardwright.cost.buffers.nccl_and_overlap_buffers_and_device_context import context_bytes
from shardwright.cost.part_phase_recompute_keys import ATTENTION, EP, GEMM
from shardwright.cost.step.overlapped_action_pair_seconds import (
    CommunicationShare,
    communication_share,
    pair_seconds,
)
from shardwright.cost.step.strategy_rank_bytes import StepBytes, reserve_factor
from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.cost.tables.pipeline_chunk_layout import layout_of
from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.check_grid_schedule_exists import order_violations
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.search.grid.bounds.bound_kernel_inputs import block_repeats
from shardwright.search.grid.bounds.longest_path_with_overlapped_action_pairs import (
    longest_path,
    steps_of,
)
from shardwright.search.grid.bounds.member_price_tables import Prepared
from shardwright.search.grid.members.extend_and_filter_axis_value_columns import distinct
from shardwright.strategy.grid.chunk_placement_by_schedule import grid_schedule
from shardwright.strategy.grid.parallelism_grid import Grid

_F, _I, _W, _B = 0, 1, 2, 3
_ROUTED: Final = [EP]
_PRODUCTS: Final = [GEMM, ATTENTION]
_ROUNDED: Final = 1 - 1e-6
"""Factor that keeps a bound below the simulation, whose clocks are whole picoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank's action row of a schedule, as the terms of its seconds and bytes.

    Args:
        alone: (n, 3) kind, chunk and count of the actions that are not paired.
        behind: (n, 3) kind, chunk and count of the actions after the last input gradient.
        pairs: (n, 5) kind and chunk of both actions of a pair, and count.
        first, last: chunks of the first action and of the last input gradient.
        held: (states, chunks) distinct numbers of microbatches in flight, for each of `chunks`.
    """

    alone: IntArray
    behind: IntArray
    pairs: IntArray
    first: int
    last: int
    held: IntArray
    chunks: IntArray


@lru_cache(maxsize=512)
def counted_rank_rows(name: str, pp: int, microbatches: int) -> tuple[RankRow, ...]:
    """(pp,) action counts of each rank's row in a named schedule; `microbatches` in each lane."""
    table = schedule_table(
        name,
        num_ranks=pp,
        chunks_per_rank=grid_schedule(name).chunks,
        num_microbatches=microbatches,
    )
    return tuple(
        _row(table, slice(int(table.row_start[r]), int(table.row_start[r + 1]))) for r in range(pp)
    )


def _row(table: ActionTable, actions_of_rank: slice) -> RankRow:
    """Count the actions, pairs and in-flight microbatches of one rank's slice of actions."""
    kind, chunk = (
        table.kind[actions_of_rank].astype(np.int64),
        table.chunk[actions_of_rank].astype(np.int64),
    )
    starts_pair = (
        np.zeros(len(kind), dtype=np.bool_)
        if table.overlapped is None
        else table.overlapped[actions_of_rank] != 0
    )
    ends_pair = np.concatenate([[False], starts_pair[:-1]])
    actions = np.stack([kind, chunk], axis=1)
    pair_starts = np.flatnonzero(starts_pair)
    last = int(np.flatnonzero((kind == _I) | (kind == _B))[-1])
    if starts_pair[last]:
        last += 1
    step = np.where(kind == _F, 1, np.where((kind == _B) | (kind == _W), -1, 0))
    chunks = arrays.distinct(chunk)
    in_flight = np.cumsum((chunk[:, None] == chunks) * step[:, None], axis=0)
    return RankRow(
        alone=_with_counts(actions[~starts_pair & ~ends_pair]),
        behind=_with_counts(actions[last + 1 :]),
        pairs=_with_counts(
            np.concatenate([actions[pair_starts], actions[pair_starts + 1]], axis=1)
        ),
        first=int(chunk[0]),
        last=int(chunk[last]),
        held=distinct_rows(in_flight),
        chunks=chunks,
    )


def _with_counts(actions: IntArray) -> IntArray:
    """Distinct rows of `actions`, each with its number of occurrences as last column."""
    if not len(actions):
        return np.zeros((0, actions.shape[1] + 1), dtype=np.int64)
    distinct, count = np.unique(actions, axis=0, return_counts=True)
    return np.concatenate([distinct, count[:, None]], axis=1)


def _action_seconds(costs: StepCosts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds by action kind and chunk: total, expert all-to-all part, GEMM and attention part."""
    moved, dense = costs.parts[:, :, _ROUTED].sum(axis=2), costs.parts[:, :, _PRODUCTS].sum(axis=2)
    return _by_action_kind(
        np.stack([costs.forward_s, costs.backward_s]), costs.weight_s, moved, dense
    )


def _by_action_kind(
    forward_and_backward: FloatArray, weight: FloatArray, moved: FloatArray, dense: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Split seconds of F and B into F, I, W, B: total, expert all-to-all, GEMM and attention.

    I and W are the two parts of B.

    Args:
        forward_and_backward, moved, dense: (2, chunks, ...) seconds of F and B: total, expert
            all-to-all, and GEMM and attention.
        weight: seconds of W.
    """
    (forward, backward), nothing = forward_and_backward, np.zeros_like(weight)
    total = np.stack([forward, backward - weight, weight, backward])
    exposed = np.minimum(np.stack([moved[0], moved[1], nothing, moved[1]]), total)
    products = np.minimum(
        np.stack([dense[0], np.maximum(dense[1] - weight, 0.0), weight, dense[1]]), total
    )
    return total, exposed, products


def path_bound(problem: Problem, grid: Grid, microbatches: int, costs: StepCosts) -> float:
    """Lower bound in seconds of a grid's step: longest path of its order plus the shortest update.

    Args:
        microbatches: number in each lane.
    """
    path = longest_path(
        steps_of(grid.schedule, grid.pp, microbatches),
        _action_seconds(costs),
        communication_share(problem),
    )
    return (path + float(costs.optimizer_s.min())) * jitter_factor(problem, grid.devices) * _ROUNDED


def _longest_row_seconds(
    rows: tuple[RankRow, ...], action_seconds: Sequence[FloatArray], share: CommunicationShare
) -> FloatArray:
    """(n,) lower bound in seconds along each rank's row, the maximum over ranks.

    The row follows the forward passes of the chunks before its first action. Behind it come the
    input gradients of the chunks before its last one, or the weight gradients after it, whichever
    is longer.

    Args:
        action_seconds: three arrays of (kinds, chunks, n), as `_action_seconds` returns them.
    """
    seconds = action_seconds[0]
    before = np.concatenate(
        [np.zeros((len(seconds), 1, seconds.shape[2])), np.cumsum(seconds, axis=1)], axis=1
    )
    longest = np.zeros(seconds.shape[2])
    for row in rows:
        work = row.alone[:, 2] @ seconds[row.alone[:, 0], row.alone[:, 1]]
        if len(row.pairs):
            first_action, second_action = (
                tuple([part[row.pairs[:, k], row.pairs[:, c]] for part in action_seconds])
                for k, c in ((0, 1), (2, 3))
            )
            work = work + row.pairs[:, 4] @ pair_seconds(first_action, second_action, share)  # type: ignore[arg-type, operator]
        behind = row.behind[:, 2] @ seconds[row.behind[:, 0], row.behind[:, 1]]
        longest = np.maximum(
            longest, before[_F, row.first] + work + np.maximum(before[_I, row.last] - behind, 0.0)
        )
    return longest


def row_bounds(
    problem: Problem, prepared: Prepared, name: str, least: FloatArray, *, until_s: float
) -> FloatArray:
    """(members,) `least` step seconds, raised along a schedule's rows where below `until_s`.

    Elsewhere the bound is `least`.
    """
    members, choices = prepared.members, prepared.members.inner.choices
    outer = members.outer_of_member()
    lists = choices.redo_lists[members.inner.redo_key[outer]]
    place = np.arange(len(outer)) - members.start[outer]
    redo = lists[np.arange(len(outer)), place // len(choices.offload) % (lists >= 0).sum(axis=1)]
    layer = prepared.layer_row[outer] + choices.redo_modules[redo] * prepared.layer_rows
    columns = {
        "pp": members.meshes.columns["pp"][members.outers.columns["mesh"][outer]],
        "m": members.outers.columns["microbatches"][outer],
    }
    below_limit, bounds, share = (
        np.flatnonzero(least < until_s),
        least.copy(),
        communication_share(problem),
    )
    shapes, shape = distinct({axis: column[below_limit] for axis, column in columns.items()})
    factor = jitter_factor(problem, members.space.devices) * _ROUNDED
    for number, (pp, count) in enumerate(
        zip(shapes["pp"].tolist(), shapes["m"].tolist(), strict=True)
    ):
        order = grid_schedule(name)
        if order_violations(Grid(pp=pp, vpp=order.chunks, schedule=name), microbatches=count):
            continue
        try:
            layout = layout_of(problem.model, pp=pp, vpp=order.chunks)
        except StrategyError:
            continue
        rows = below_limit[shape == number]
        layer_rows, at = np.unique(layer[rows], return_inverse=True)
        action_seconds = _chunk_action_seconds(
            layout.counts, prepared.layers.seconds[..., layer_rows]
        )
        longest = (
            _longest_row_seconds(
                counted_rank_rows(name, pp, count // order.lanes), action_seconds, share
            )
            * factor
        )
        bounds[rows] = np.maximum(bounds[rows], longest[at.reshape(-1)])
    return bounds


def _chunk_action_seconds(
    counts: IntArray, seconds: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of chunks with given block counts, as `_action_seconds`, without FP8 scale waits.

    Args:
        seconds: (blocks, phases, parts, n).
    """
    part_seconds = np.einsum(
        "cb,bkpn->kcpn", counts, np.stack([seconds[:, 0], seconds[:, 1] + seconds[:, 2]], axis=1)
    )
    weight = np.einsum("cb,bpn->cn", counts, seconds[:, 2])
    return _by_action_kind(
        part_seconds.sum(axis=2),
        weight,
        part_seconds[:, :, _ROUTED].sum(axis=2),
        part_seconds[:, :, _PRODUCTS].sum(axis=2),
    )


def memory_bound(
    problem: Problem, rows: tuple[RankRow, ...], costs: StepBytes, *, lanes: int
) -> float:
    """Lower bound in bytes of the fullest device: mean over ranks of states and peak activations.

    Parameters and gradients are counted once for each lane; sharded states are divided over the
    holders of both lanes.
    """
    static = {name: float(values.sum()) / len(rows) for name, values in costs.static_bytes}
    allocated = (
        (static["parameters"] + static["gradients"]) * lanes * _ROUNDED
        + static["workspace"]
        + static["optimizer"] * _ROUNDED
    )
    allocated += float(np.mean([(row.held @ costs.saved_bytes[row.chunks]).max() for row in rows]))
    return allocated * reserve_factor(problem) * _ROUNDED + context_bytes(problem)


def kernel_seconds_per_rank(problem: Problem, prepared: Prepared) -> FloatArray:
    """(outers,) lower bound of all blocks' seconds for one microbatch, divided by pp (a rank's).

    A paired action loses at least the time that its blocks lose to their own all-to-all; an
    unpaired action waits for its all-to-all.
    """
    repeats, share = block_repeats(problem), communication_share(problem)
    phase_seconds = prepared.layers.seconds[:, :3]
    other_parts = [part for part in range(phase_seconds.shape[2]) if part not in _ROUTED]
    # Weight gradients may stand alone, with nothing beside them.
    moved = np.stack(
        [phase_seconds[:, 0, _ROUTED].sum(axis=1), phase_seconds[:, 1:, _ROUTED].sum(axis=(1, 2))]
    )
    products = phase_seconds[:, :2, _PRODUCTS].sum(axis=2).transpose(1, 0, 2)
    products[1] += phase_seconds[:, 2, _PRODUCTS].sum(axis=1) - phase_seconds[:, 2].sum(axis=1)
    lost = (
        np.minimum(products * (share.share / (1.0 - share.share)), moved)
        if share.reserved
        else share.share * moved
    )
    seconds = np.einsum("b,bpkn->n", repeats, phase_seconds[:, :, other_parts]) + np.einsum(
        "b,kbn->n", repeats, lost
    )
    outer = prepared.members.outers.columns
    seconds_per_rank: FloatArray = (
        seconds[prepared.layer_row] / prepared.members.meshes.columns["pp"][outer["mesh"]]
    )
    return seconds_per_rank
