"""Lower bound of the peak memory of each pipeline rank of a grid.

From the columns of the tables and the actual order of the rank's actions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray, distinct_rows
from shardwright.cost.step.strategy_rank_bytes import StepBytes, held_bytes
from shardwright.program.training_problem import Problem
from shardwright.schedules.action_order_arrays import ActionTable, B, F, W


class _TableKey:
    """Action table as a dictionary key that compares by identity.

    Tables are made once by name and kept.
    """

    __slots__ = ("table",)

    def __init__(self, table: ActionTable) -> None:
        self.table = table

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TableKey) and self.table is other.table


class _HeldCounts(NamedTuple):
    """Microbatches by chunk that each rank holds after its forwards, distinct within a rank.

    Args:
        held: (sets, local chunks) microbatches.
        rank: (sets,).
        start: (r + 1,) first set of each rank.
    """

    held: FloatArray
    rank: IntArray
    start: IntArray


@lru_cache(maxsize=64)
def _held_after_forwards(key: _TableKey) -> _HeldCounts:
    """Each rank's distinct counts, by chunk, of microbatches held after a forward (cached)."""
    sets_of_ranks = [_held_counts_of_rank(key.table, rank) for rank in range(key.table.num_ranks)]
    lengths, width = (
        [len(sets_of_rank) for sets_of_rank in sets_of_ranks],
        max(sets_of_rank.shape[1] for sets_of_rank in sets_of_ranks),
    )
    padded = [
        np.pad(sets_of_rank, ((0, 0), (0, width - sets_of_rank.shape[1])))
        for sets_of_rank in sets_of_ranks
    ]
    return _HeldCounts(
        np.concatenate(padded),
        np.repeat(np.arange(len(sets_of_ranks)), lengths),
        np.concatenate([[0], np.cumsum(lengths)]),
    )


def in_flight_microbatches(table: ActionTable, rank: int) -> FloatArray:
    """(distinct counts, local chunks) microbatches in flight after each forward of `rank`.

    Whole numbers, as floats.
    """
    all_sets = _held_after_forwards(_TableKey(table))
    return all_sets.held[all_sets.start[rank] : all_sets.start[rank + 1]]


def _held_counts_of_rank(table: ActionTable, rank: int) -> FloatArray:
    """(counts, chunks) microbatches held of each local chunk after each forward, distinct rows."""
    rows = slice(int(table.row_start[rank]), int(table.row_start[rank + 1]))
    kind, chunk = table.kind[rows], table.chunk[rows] // table.num_ranks
    step = np.where(kind == F, 1, np.where((kind == B) | (kind == W), -1, 0))
    local = np.arange(int(chunk.max()) + 1)
    level = np.cumsum(np.where(chunk[:, None] == local[None, :], step[:, None], 0), axis=0)
    # A full forward is held until its gradients are done: peaks stand right after forwards.
    return np.asarray(distinct_rows(level[kind == F]), dtype=np.float64)


def paired_activations(saved: IntArray, paired: IntArray, *, pipelined: bool) -> int:
    """Extra peak bytes of a rank by overlapped passes: largest `saved` pipelined, else `paired`.

    A forward's layer is allocated before the backward's beside it is freed. In a pipeline one
    forward more than the order says stands before the first backward, so that both are of different
    microbatches: then all of a chunk. Source: Megatron-Core, schedules.py,
    `get_pp_rank_microbatches` (num_warmup_microbatches + 1 under overlap_moe_expert_parallel_comm),
    and combined_1f1b.py. Leaves out the operands of delayed weight gradients, which last a step of
    the layer longer.

    Args:
        saved: (c,) bytes that a microbatch of each of its chunks keeps.
        paired: (c,) `StepBytes.paired_bytes`.
    """
    return int((np.where(paired > 0, saved, 0) if pipelined else paired).max(initial=0))


def activation_bytes(table: ActionTable, costs: StepBytes) -> IntArray:
    """(r,) peak bytes of saved activations, all in-flight microbatches, in each rank's order.

    The largest sum of in-flight microbatches times their bytes, and the bytes that an overlapped
    pair keeps besides (`paired_activations`).
    """
    all_sets, ranks = _held_after_forwards(_TableKey(table)), table.num_ranks
    saved: IntArray = costs.saved_bytes.reshape(-1, ranks)
    # Whole numbers below 2^53: the products and sums are exact.
    bytes_in_flight: FloatArray = (
        all_sets.held * saved.T[all_sets.rank, : all_sets.held.shape[1]]
    ).sum(axis=1)
    peaks: IntArray = np.maximum.reduceat(bytes_in_flight, all_sets.start[:-1]).astype(np.int64)
    if costs.paired_bytes.any():
        paired = costs.paired_bytes.reshape(-1, ranks)
        peaks += np.array(
            [
                paired_activations(saved[:, rank], paired[:, rank], pipelined=ranks > 1)
                for rank in range(ranks)
            ]
        )
    return peaks


def allocated_bytes(table: ActionTable, costs: StepBytes) -> IntArray:
    """(r,) peak tensor bytes of each rank: states, activations in flight, logits, temporaries.

    Tensors that live through the step, activations in flight, logits and the largest temporary.
    """
    total = activation_bytes(table, costs) + costs.logits_bytes + costs.transient_bytes
    for _, values in costs.static_bytes:
        total = total + values
    return total


def reserved_bytes(problem: Problem, table: ActionTable, costs: StepBytes) -> IntArray:
    """(r,) peak bytes that each device holds, with allocator blocks, buffers and the context.

    Buffers are those of communication.
    """
    return held_bytes(problem, costs, allocated_bytes(table, costs))[1]
