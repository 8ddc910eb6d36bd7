"""Builders of action tables: rows written action by action, or sorted by time slot.

Rows written action by action are schedules described as phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Int32Array, IntArray
from shardwright.schedules.action_order_arrays import ActionTable, B, F, I, W

Place = tuple[int, int]
"""A chunk as (lane, chunk)."""


@dataclass(slots=True, kw_only=True)
class RowWriter:
    """One rank's row of actions under construction.

    Each added action takes the next microbatch of its chunk.

    Actions beyond the last microbatch are left out, so a rule for many microbatches can be cut to
    few. B, and I, count as one.

    Args:
        microbatches: microbatches of each lane.
    """

    microbatches: int
    actions: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    _next_microbatch: dict[tuple[int, Place], int] = field(default_factory=dict)

    def count(self, kind: int, place: Place) -> int:
        """Number of actions of `kind` that the row has so far for a chunk; B counts as I."""
        return self._next_microbatch.get((I if kind == B else kind, place), 0)

    def add(self, kind: int, place: Place, *, paired: bool = False) -> None:
        """Append a chunk's next action of `kind` on the next microbatch; nothing after the last.

        B gives the input and the weight gradient of one microbatch.
        """
        microbatch = self._next_microbatch.get((I if kind == B else kind, place), 0)
        for counted in (I, W) if kind == B else (kind,):
            assert self._next_microbatch.get((counted, place), 0) == microbatch, (
                "a full backward with weight gradients still put off"
            )
            self._next_microbatch[counted, place] = microbatch + 1
        if microbatch < self.microbatches:
            self.actions.append((kind, place[1], microbatch, place[0], int(paired)))

    def add_each(self, kinds: tuple[int, ...], place: Place) -> None:
        """Append a chunk's next action of each of `kinds`, in order."""
        for kind in kinds:
            self.add(kind, place)

    def forward(self, place: Place, times: int = 1) -> None:
        """Append the next `times` forwards of a chunk."""
        for _ in range(times):
            self.add(F, place)

    def backward_pair(self, forward: Place, backward: Place) -> None:
        """Append one chunk's next forward and another's next backward, overlapped if both remain.

        Either one is left out beyond the last microbatch; the other then runs alone.
        """
        is_pair = (
            self.count(F, forward) < self.microbatches
            and self.count(B, backward) < self.microbatches
        )
        self.add(F, forward, paired=is_pair)
        self.add(B, backward)


def written_table(rows: Sequence[RowWriter], *, num_chunks: int) -> ActionTable:
    """Build the action table of finished rows, one for each rank.

    All rows have the same microbatches.
    """
    columns = np.array([action for row in rows for action in row.actions], np.int32).reshape(-1, 5)
    sizes = [len(row.actions) for row in rows]
    return ActionTable(
        num_ranks=len(rows),
        num_chunks=num_chunks,
        num_microbatches=rows[0].microbatches,
        row_start=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        kind=columns[:, 0].astype(np.int8),
        chunk=columns[:, 1].copy(),
        microbatch=columns[:, 2].copy(),
        lane=columns[:, 3].astype(np.int8),
        slice=np.zeros(len(columns), np.int32),
        overlapped=columns[:, 4].astype(np.int8) if columns[:, 4].any() else None,
    )


def slotted_table(
    *,
    slot: IntArray,
    kind: IntArray,
    chunk: IntArray,
    microbatch: IntArray,
    lane: IntArray,
    rank: IntArray,
    num_ranks: int,
) -> ActionTable:
    """The action table that orders each rank's actions by time slot.

    All arguments have one shape, and no two actions of a rank share a slot.
    """
    flat = [
        np.broadcast_to(column, slot.shape).reshape(-1)
        for column in (rank, slot, kind, chunk, microbatch, lane)
    ]
    order = np.lexsort((flat[1], flat[0]))
    rank, slot, kind, chunk, microbatch, lane = (column[order] for column in flat)
    assert ((np.diff(rank) > 0) | (np.diff(slot) > 0)).all(), "two actions of a rank in one slot"
    return ActionTable(
        num_ranks=num_ranks,
        num_chunks=int(chunk.max()) + 1,
        num_microbatches=int(microbatch.max()) + 1,
        row_start=_starts(rank, num_ranks),
        kind=kind.astype(np.int8),
        chunk=chunk.astype(np.int32),
        microbatch=microbatch.astype(np.int32),
        lane=lane.astype(np.int8),
        slice=np.zeros(rank.size, np.int32),
    )


def _starts(rank: IntArray, num_ranks: int) -> Int32Array:
    """(num_ranks + 1,) index of each rank's first action in the sorted array `rank`."""
    return np.searchsorted(rank, np.arange(num_ranks + 1)).astype(np.int32)
