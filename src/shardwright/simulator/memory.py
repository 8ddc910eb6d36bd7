"""Peak memory of each pipeline rank, from the actual order of its actions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwright.cost.member import StepCosts, held_bytes
from shardwright.program.chunks import content_text
from shardwright.program.problem import Problem
from shardwright.schedules.table import ActionTable, B, F, W
from shardwright.simulator.prediction import StageMemory
from shardwright.strategy.grid import Grid

Int64 = npt.NDArray[np.int64]


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
def _in_flight(key: _TableKey) -> tuple[npt.NDArray[np.float64], ...]:
    return tuple(_rank_in_flight(key.table, rank) for rank in range(key.table.num_ranks))


def in_flight(table: ActionTable, rank: int) -> npt.NDArray[np.float64]:
    """(forwards, local chunks) microbatches that `rank` holds after each of its forwards (whole numbers), from its row of the order."""
    return _in_flight(_TableKey(table))[rank]


def _rank_in_flight(table: ActionTable, rank: int) -> npt.NDArray[np.float64]:
    rows = slice(int(table.row_start[rank]), int(table.row_start[rank + 1]))
    kind, chunk = table.kind[rows], table.chunk[rows] // table.num_ranks
    step = np.where(kind == F, 1, np.where((kind == B) | (kind == W), -1, 0))
    local = np.arange(int(chunk.max()) + 1)
    level = np.cumsum(np.where(chunk[:, None] == local[None, :], step[:, None], 0), axis=0)
    # A full forward is held until its gradients are done: peaks stand right after forwards.
    held: npt.NDArray[np.float64] = level[kind == F].astype(np.float64)
    return held


def activation_bytes(table: ActionTable, costs: StepCosts) -> Int64:
    """(r,) peak bytes of saved activations: the largest over each rank's order of in-flight microbatches times what each keeps."""
    peaks = []
    for rank in range(table.num_ranks):
        held = in_flight(table, rank)
        # Whole numbers below 2^53: the products and sums are exact.
        peaks.append(int((held @ costs.saved_bytes[rank :: table.num_ranks][: held.shape[1]]).max()))
    return np.array(peaks, dtype=np.int64)


def allocated_bytes(table: ActionTable, costs: StepCosts) -> Int64:
    """(r,) peak of what is allocated: what lives through the step, activations in flight, logits and the largest temporary."""
    total = activation_bytes(table, costs) + costs.logits_bytes + costs.transient_bytes
    for _, values in costs.static_bytes:
        total = total + values
    return total


def reserved_bytes(problem: Problem, table: ActionTable, costs: StepCosts) -> Int64:
    """(r,) bytes that each device holds for the program: the allocator's blocks, communication buffers and the context."""
    return held_bytes(problem, costs, allocated_bytes(table, costs))[1]


def stage_memory(problem: Problem, grid: Grid, costs: StepCosts, table: ActionTable) -> tuple[StageMemory, ...]:
    """Itemised peak of each pipeline rank, in bytes.

    Allocated is the sum of what lives at the peak: parameters, gradients, optimizer states, saved activations of the microbatches in
    flight, the head's logits, the largest temporary, and the runtime's workspace. Reserved adds what the allocator holds beyond that
    (fragmentation), communication buffers and the device's context; it is the sum of all items.
    """
    activations, allocated = activation_bytes(table, costs), allocated_bytes(table, costs)
    blocks, held = held_bytes(problem, costs, allocated)
    ranks = []
    for rank in range(grid.pp):
        items = [(name, int(values[rank])) for name, values in costs.static_bytes]
        items.append(("activations", int(activations[rank])))
        items.append(("logits", int(costs.logits_bytes[rank])))
        items.append(("temporary", int(costs.transient_bytes[rank])))
        items.append(("fragmentation", int(blocks[rank] - allocated[rank])))
        items += [(name, int(values[rank])) for name, values in costs.outside_bytes]
        mine = [content for c, content in enumerate(costs.contents) if c % grid.pp == rank]
        ranks.append(
            StageMemory(
                rank=rank,
                devices=grid.devices // grid.pp,
                layers=content_text(_merged(mine), problem.model),
                items=tuple(items),
                allocated=int(allocated[rank]),
                reserved=int(held[rank]),
            )
        )
    return tuple(ranks)


def _merged(contents: list[tuple[tuple[int, int], ...]]) -> tuple[tuple[int, int], ...]:
    counts: dict[int, int] = {}
    for content in contents:
        for block, count in content:
            counts[block] = counts.get(block, 0) + count
    return tuple(counts.items())
