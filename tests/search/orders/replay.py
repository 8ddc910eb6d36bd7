"""An order run again by hand, without the package's kernels, and small problems to search."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import strategies as st

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import KINDS, ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement, chunk_ranks
from shardwright.search.orders.order_problem import OrderProblem


def problem_of(
    owner: IntArray,
    microbatches: int,
    *,
    forward: object = 1,
    input: object = 1,
    weight: object = 1,
    send: object = 0,
    held: object = 1,
    stash: object = 1,
    limit: object = 1,
) -> OrderProblem:
    """A problem whose numbers are single or by chunk."""

    def full(value: object) -> IntArray:
        return np.array(np.broadcast_to(np.asarray(value, np.int64), owner.shape))

    return OrderProblem(
        owner=owner,
        microbatches=microbatches,
        forward=full(forward),
        input=full(input),
        weight=full(weight),
        send_forward=full(send),
        send_backward=full(send),
        held=full(held),
        stash=full(stash),
        limit=np.array(np.broadcast_to(np.asarray(limit, np.int64), (int(owner.max()) + 1,))),
    )


def chain(ranks: int, microbatches: int, **numbers: object) -> OrderProblem:
    """One chunk a rank."""
    return problem_of(np.arange(ranks)[None], microbatches, **numbers)  # type: ignore[arg-type]


def replay(problem: OrderProblem, table: ActionTable) -> tuple[int, list[int]]:
    """Makespan and most that each rank keeps; AssertionError if the table is not a whole order of
    the problem or deadlocks."""
    rows = []
    for rank in range(table.num_ranks):
        row = []
        for a in range(table.row_start[rank], table.row_start[rank + 1]):
            where = (int(table.lane[a]), int(table.chunk[a]), int(table.microbatch[a]))
            letters = "IW" if KINDS[table.kind[a]] == "B" else KINDS[table.kind[a]]
            assert problem.owner[where[:2]] == rank
            row += [(letter, *where) for letter in letters]
        rows.append(row)
    everything = set(
        product("FIW", range(problem.lanes), range(problem.chunks), range(problem.microbatches))
    )
    assert sorted(action for row in rows for action in row) == sorted(everything)
    end: dict[tuple[str, int, int, int], int] = {}
    at, free = [0] * len(rows), [0] * len(rows)
    moving = True
    while moving:
        moving = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                letter, lane, c, k = row[at[rank]]
                needs = []
                if letter == "F" and c:
                    needs.append((("F", lane, c - 1, k), problem.send_forward[lane, c - 1]))
                if letter == "I":
                    needs.append((("F", lane, c, k), 0))
                    if c + 1 < problem.chunks:
                        needs.append((("I", lane, c + 1, k), problem.send_backward[lane, c + 1]))
                if letter == "W":
                    needs.append((("I", lane, c, k), 0))
                if any(need not in end for need, _ in needs):
                    break
                lasts = {"F": problem.forward, "I": problem.input, "W": problem.weight}[letter][
                    lane, c
                ]
                free[rank] = int(
                    max([free[rank], *(end[need] + int(wait) for need, wait in needs)]) + lasts
                )
                end[letter, lane, c, k] = free[rank]
                at[rank] += 1
                moving = True
    assert at == [len(row) for row in rows], "deadlock"
    peaks = []
    for row in rows:
        level, peak = 0, 0
        for letter, lane, c, _ in row:
            held, stash = int(problem.held[lane, c]), int(problem.stash[lane, c])
            level += {"F": held, "I": stash - held, "W": -stash}[letter]
            peak = max(peak, level)
        assert level == 0
        peaks.append(peak)
    return max(free), peaks


@st.composite
def problems(
    draw: st.DrawFn, *, most_ranks: int = 4, most_microbatches: int = 6, single: bool = False
) -> OrderProblem:
    """Random problems of all placements, with room for at least one microbatch on every rank."""
    placement = ChunkPlacement.LOOPED if single else draw(st.sampled_from(ChunkPlacement))
    ranks = draw(st.integers(1, most_ranks))
    each = 1 if single or placement is ChunkPlacement.OPPOSITE else draw(st.integers(1, 2))
    owner = chunk_ranks(placement, num_ranks=ranks, chunks_per_rank=each).astype(np.int64)
    count = owner.size

    def numbers(low: int, high: int) -> IntArray:
        return np.array(
            draw(st.lists(st.integers(low, high), min_size=count, max_size=count)), np.int64
        ).reshape(owner.shape)

    held = numbers(1, 3)
    least = max(
        int(np.bincount(row, weights=held[lane], minlength=ranks).max())
        for lane, row in enumerate(owner)
    )
    return OrderProblem(
        owner=owner,
        microbatches=draw(st.integers(1, most_microbatches)),
        forward=numbers(1, 9),
        input=numbers(1, 9),
        weight=numbers(0, 9),
        send_forward=numbers(0, 3),
        send_backward=numbers(0, 3),
        held=held,
        stash=np.minimum(held, numbers(0, 3)),
        limit=np.full(ranks, least + draw(st.integers(0, 12))),
    )
