"""Peak memory of each pipeline rank, from the actual order of its actions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwright.cost.member import StepCosts
from shardwright.program.chunks import content_text
from shardwright.program.problem import Problem
from shardwright.schedules.table import ActionTable, F
from shardwright.simulator.prediction import StageMemory
from shardwright.strategy.grid import Grid

Int64 = npt.NDArray[np.int64]


@lru_cache(maxsize=256)
def _frontier(kind: bytes, chunk: bytes, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Pareto-largest vectors of microbatches in flight, one number a local chunk, over a rank's row."""
    kinds = np.frombuffer(kind, dtype=np.int8)
    chunks = np.frombuffer(chunk, dtype=np.int32) // ranks
    count = int(chunks.max()) + 1
    step = np.where(kinds == F, 1, np.where((kinds == 3) | (kinds == 2), -1, 0))
    level = np.zeros((len(kinds), count), dtype=np.int64)
    for c in range(count):
        level[:, c] = np.cumsum(np.where(chunks == c, step, 0))
    tops = np.unique(level[kinds == F], axis=0)
    tops = tops[np.argsort(-tops.sum(axis=1), kind="stable")]
    kept: list[npt.NDArray[np.int64]] = []
    for top in tops:
        if not any((top <= other).all() for other in kept):
            kept.append(top)
    return tuple(tuple(int(x) for x in top) for top in kept)


def in_flight_frontier(table: ActionTable, rank: int) -> tuple[tuple[int, ...], ...]:
    """The largest combinations of microbatches that `rank` holds at once, per local chunk (exact, from its row of the order)."""
    rows = slice(int(table.row_start[rank]), int(table.row_start[rank + 1]))
    return _frontier(
        np.ascontiguousarray(table.kind[rows], dtype=np.int8).tobytes(),
        np.ascontiguousarray(table.chunk[rows], dtype=np.int32).tobytes(),
        table.num_ranks,
    )


def rank_activations(table: ActionTable, costs: StepCosts, rank: int) -> int:
    """Peak bytes of saved activations on `rank`: the largest over its order of in-flight microbatches times what each keeps."""
    saved = costs.saved_bytes[rank :: table.num_ranks]
    return max(int(np.dot(np.array(front), saved[: len(front)])) for front in in_flight_frontier(table, rank))


def stage_memory(problem: Problem, grid: Grid, costs: StepCosts, table: ActionTable) -> tuple[StageMemory, ...]:
    """Itemised peak of each pipeline rank, in bytes.

    Allocated is the sum of what lives at the peak: parameters, gradients, optimizer states, saved activations of the microbatches in
    flight, the head's logits, the largest temporary, and the runtime's workspace. Reserved adds the allocator's share.
    """
    ranks = []
    for rank in range(grid.pp):
        items = [(name, int(values[rank])) for name, values in costs.static_bytes]
        items.append(("activations", rank_activations(table, costs, rank)))
        items.append(("logits", int(costs.logits_bytes[rank])))
        items.append(("temporary", int(costs.transient_bytes[rank])))
        allocated = sum(size for _, size in items)
        mine = [content for c, content in enumerate(costs.contents) if c % grid.pp == rank]
        ranks.append(
            StageMemory(
                rank=rank,
                devices=grid.devices // grid.pp,
                layers=content_text(_merged(mine), problem.model),
                items=tuple(items),
                allocated=allocated,
                reserved=allocated * (100 + problem.runtime.allocator_reserve_percent) // 100,
            )
        )
    return tuple(ranks)


def _merged(contents: list[tuple[tuple[int, int], ...]]) -> tuple[tuple[int, int], ...]:
    counts: dict[int, int] = {}
    for content in contents:
        for block, count in content:
            counts[block] = counts.get(block, 0) + count
    return tuple(counts.items())
