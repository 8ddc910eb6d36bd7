"""A longest-path simulator of action tables that shares no code with the package's: when each
action ends, and what each rank holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.schedules.action_order_arrays import KINDS, ActionTable

Key = tuple[str, int, int, int, int]
"""(F, I or W; lane; chunk; microbatch; slice)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Of each rank: start of its first action, end of its last, busy time, most forwards held until
    their B or W."""

    first: list[int]
    last: list[int]
    work: list[int]
    held: list[int]

    @property
    def makespan(self) -> int:
        return max(self.last)

    @property
    def idle(self) -> list[int]:
        """Waiting between a rank's first and last action."""
        return [
            last - first - work
            for first, last, work in zip(self.first, self.last, self.work, strict=True)
        ]


def needs_of(key: Key, *, chunks: int, slices: int) -> list[Key]:
    """What must be done before, by the mathematics of training: causal slices in order, their
    gradients in the opposite order."""
    kind, lane, chunk, microbatch, part = key
    needs: list[Key] = []
    if kind == "F":
        if chunk:
            needs.append(("F", lane, chunk - 1, microbatch, part))
        if part:
            needs.append(("F", lane, chunk, microbatch, part - 1))
    elif kind == "I":
        needs.append(("F", lane, chunk, microbatch, part))
        if chunk + 1 < chunks:
            needs.append(("I", lane, chunk + 1, microbatch, part))
        if part + 1 < slices:
            needs.append(("I", lane, chunk, microbatch, part + 1))
    else:
        needs.append(("I", lane, chunk, microbatch, part))
    return needs


def run(
    table: ActionTable,
    *,
    times: Mapping[str, int],
    pair: Callable[[int, int], int] = lambda a, b: a + b,
    transfer: int = 0,
    called: str = "the table",
) -> Run:
    """Run every row in order, each action once its inputs are there; AssertionError on deadlock.

    Args:
        times: of F, I, W; B takes I + W.
        pair: time of an overlapped pair from those of its parts.
        transfer: between different ranks.
        called: what the table is, for the message of a deadlock.
    """
    slices, row_start = int(table.slice.max()) + 1, table.row_start.tolist()
    letters_of = [KINDS[kind] for kind in table.kind.tolist()]
    places = list(
        zip(
            table.lane.tolist(),
            table.chunk.tolist(),
            table.microbatch.tolist(),
            table.slice.tolist(),
            strict=True,
        )
    )
    pairs = [False] * len(places) if table.overlapped is None else table.overlapped.tolist()
    length = dict(times) | {"B": times["I"] + times["W"]}
    owner = {}
    for rank in range(table.num_ranks):
        for lane, chunk, _, _ in places[row_start[rank] : row_start[rank + 1]]:
            owner[lane, chunk] = rank
    end: dict[Key, int] = {}
    place, free = row_start[:-1], [0] * table.num_ranks
    first: list[int] = [-1] * table.num_ranks
    work = [0] * table.num_ranks
    moving = True
    while moving:
        moving = False
        for rank in range(table.num_ranks):
            while place[rank] < row_start[rank + 1]:
                at = place[rank]
                count = 2 if pairs[at] else 1
                letters: list[str] = []
                outputs: list[Key] = []
                start = free[rank]
                for one in range(at, at + count):
                    letter, where = letters_of[one], places[one]
                    key: Key = ("I" if letter == "B" else letter, *where)
                    for need in needs_of(key, chunks=table.num_chunks, slices=slices):
                        if need not in end:
                            start = -1
                            break
                        start = max(
                            start, end[need] + (transfer if owner[need[1], need[2]] != rank else 0)
                        )
                    if start < 0:
                        break
                    letters.append(letter)
                    outputs += [key] if letter != "B" else [key, ("W", *where)]
                if start < 0:
                    break
                lasts = (
                    pair(length[letters[0]], length[letters[1]])
                    if count == 2
                    else length[letters[0]]
                )
                free[rank] = start + lasts
                work[rank] += lasts
                first[rank] = start if first[rank] < 0 else first[rank]
                end.update(dict.fromkeys(outputs, free[rank]))
                place[rank] += count
                moving = True
    stuck = [rank for rank in range(table.num_ranks) if place[rank] < row_start[rank + 1]]
    assert not stuck, f"{called} deadlocks: ranks {stuck} wait for an action that never starts"
    return Run(first=first, last=free, work=work, held=held(table))


def held(table: ActionTable) -> list[int]:
    """Most forwards whose B or W is not done, by rank; an overlapped pair holds its forward beside
    what its backward frees."""
    steps = np.array([{"F": 1, "B": -1, "W": -1}.get(KINDS[kind], 0) for kind in table.kind])
    return [
        max(0, int(np.cumsum(steps[table.row_start[r] : table.row_start[r + 1]]).max()))
        for r in range(table.num_ranks)
    ]
