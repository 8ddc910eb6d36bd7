"""A lower bound of the peak of each pipeline rank of a grid, from the columns of the tables and the actual order of its actions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step_costs import StepCosts, held_bytes
from shardwright.program.problem import Problem
from shardwright.schedules.table import ActionTable, B, F, W


class _TableKey:
    """An action table as a dictionary key: tables are made once by name and kept, so identity is enough."""

    __slots__ = ("table",)

    def __init__(self, table: ActionTable) -> None:
        self.table = table

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TableKey) and self.table is other.table


@lru_cache(maxsize=64)
def _in_flight(key: _TableKey) -> tuple[FloatArray, ...]:
    return tuple(_rank_in_flight(key.table, rank) for rank in range(key.table.num_ranks))


def in_flight(table: ActionTable, rank: int) -> FloatArray:
    """(forwards, local chunks) microbatches that `rank` holds after each of its forwards (whole numbers), from its row of the order."""
    return _in_flight(_TableKey(table))[rank]


def _rank_in_flight(table: ActionTable, rank: int) -> FloatArray:
    rows = slice(int(table.row_start[rank]), int(table.row_start[rank + 1]))
    kind, chunk = table.kind[rows], table.chunk[rows] // table.num_ranks
    step = np.where(kind == F, 1, np.where((kind == B) | (kind == W), -1, 0))
    local = np.arange(int(chunk.max()) + 1)
    level = np.cumsum(np.where(chunk[:, None] == local[None, :], step[:, None], 0), axis=0)
    # A full forward is held until its gradients are done: peaks stand right after forwards.
    held: FloatArray = level[kind == F].astype(np.float64)
    return held


def activation_bytes(table: ActionTable, costs: StepCosts) -> IntArray:
    """(r,) peak bytes of saved activations: the largest over each rank's order of in-flight microbatches times what each keeps."""
    peaks = []
    for rank in range(table.num_ranks):
        held = in_flight(table, rank)
        # Whole numbers below 2^53: the products and sums are exact.
        peaks.append(int((held @ costs.saved_bytes[rank :: table.num_ranks][: held.shape[1]]).max()))
    return np.array(peaks, dtype=np.int64)


def allocated_bytes(table: ActionTable, costs: StepCosts) -> IntArray:
    """(r,) peak of what is allocated: what lives through the step, activations in flight, logits and the largest temporary."""
    total = activation_bytes(table, costs) + costs.logits_bytes + costs.transient_bytes
    for _, values in costs.static_bytes:
        total = total + values
    return total


def reserved_bytes(problem: Problem, table: ActionTable, costs: StepCosts) -> IntArray:
    """(r,) bytes that each device holds for the program: the allocator's blocks, communication buffers and the context."""
    return held_bytes(problem, costs, allocated_bytes(table, costs))[1]
