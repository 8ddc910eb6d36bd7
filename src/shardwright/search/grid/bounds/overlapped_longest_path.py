"""The longest path through an order with overlapped pairs and several lanes: a lower bound of its
step.

An action starts when its rank is free and its input is there; two that run overlapped start when
both can, and share the seconds of their pair one after the other, as `program.lower` lays them.
Sends, reductions and what collectives slow down are left out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step.overlapped_pairs import CommunicationShare, pair_share
from shardwright.schedules.action_table import ActionTable, F, W
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.strategy.grid.grid_schedules import grid_schedule


class Step(NamedTuple):
    """One action that runs alone, or two that run overlapped.

    Args:
        rank: of the pipeline.
        one, other: places of the actions in the table;
        other: -1 if it runs alone.
        behind, other_behind: actions that they wait for, -1 = none.
        part, other_part: places of their seconds.
    """

    rank: int
    one: int
    behind: int
    part: int
    other: int
    other_behind: int
    other_part: int


class Steps(NamedTuple):
    """The steps of an order, each after all that it depends on.

    Args:
        parts: (parts, 4) kind and chunk of an action, and of the one that it runs overlapped with
            (-1 = none): what has the same seconds.
    """

    steps: tuple[Step, ...]
    parts: IntArray
    actions: int
    ranks: int


@lru_cache(maxsize=64)
def steps_of(name: str, pp: int, microbatches: int) -> Steps:
    """The steps of a schedule's order, for these microbatches of each lane."""
    table = schedule_table(
        name,
        num_ranks=pp,
        chunks_per_rank=grid_schedule(name).chunks,
        num_microbatches=microbatches,
    )
    behind, first = _behind(table), _first_of_pairs(table)
    second = np.concatenate([[False], first[:-1]])
    own = np.stack([table.kind, table.chunk], axis=1).astype(np.int64)
    beside = np.full_like(own, -1)
    beside[first], beside[second] = own[second], own[first]
    parts, part = np.unique(np.concatenate([own, beside], axis=1), axis=0, return_inverse=True)
    wait, paired, of = behind.tolist(), first.tolist(), part.reshape(-1).tolist()
    at, end = table.row_start[:-1].tolist(), table.row_start[1:].tolist()
    done, steps = [False] * len(wait), list[Step]()
    moved = True
    while moved:
        moved = False
        for rank in range(pp):
            a = at[rank]
            while a < end[rank]:
                b = a + 1 if paired[a] else -1
                if not all(one < 0 or wait[one] < 0 or done[wait[one]] for one in (a, b)):
                    break
                steps.append(
                    Step(
                        rank,
                        a,
                        wait[a],
                        of[a],
                        b,
                        wait[b] if b >= 0 else -1,
                        of[b] if b >= 0 else -1,
                    )
                )
                done[a] = True
                if b >= 0:
                    done[b] = True
                a, moved = max(a, b) + 1, True
            at[rank] = a
    assert all(done), "named schedules do not deadlock"
    return Steps(steps=tuple(steps), parts=parts, actions=len(wait), ranks=pp)


def _first_of_pairs(table: ActionTable) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return (
        np.zeros(len(table.kind), dtype=np.bool_)
        if table.overlapped is None
        else np.asarray(table.overlapped != 0)
    )


def _behind(table: ActionTable) -> IntArray:
    """(actions,) the action whose output each one reads: of the previous chunk forward, of the
    next chunk backward; -1 = none.
    """
    kind, chunk = table.kind, table.chunk.astype(np.int64)
    place = (
        table.lane.astype(np.int64) * table.num_chunks + chunk
    ) * table.num_microbatches + table.microbatch
    lanes = int(table.lane.max()) + 1
    made = np.full((2, lanes * table.num_chunks * table.num_microbatches), -1, dtype=np.int64)
    forward, backward = kind == F, (kind != F) & (kind != W)
    made[0, place[forward]], made[1, place[backward]] = (
        np.flatnonzero(forward),
        np.flatnonzero(backward),
    )
    result = np.full(len(kind), -1, dtype=np.int64)
    later = forward & (chunk > 0)
    result[later] = made[0, place[later] - table.num_microbatches]
    last = backward & (chunk == table.num_chunks - 1)
    result[last] = made[0, place[last]]
    earlier = backward & ~last
    result[earlier] = made[1, place[earlier] + table.num_microbatches]
    return result


def longest_path(
    steps: Steps, spent: tuple[FloatArray, FloatArray, FloatArray], taken: CommunicationShare
) -> float:
    """Seconds from the start of the first action to the end of the last.

    Args:
        spent: (kinds, chunks) seconds of actions, of them exposed communication, and of them
            products and attention.
    """
    kind, chunk, other_kind, other_chunk = steps.parts.T
    one, other = (
        tuple([part[kind, chunk] for part in spent]),
        tuple([part[other_kind, other_chunk] for part in spent]),
    )
    seconds = np.where(other_kind < 0, one[0], pair_share(one, other, taken)).tolist()
    finish, free = [0.0] * (steps.actions + 1), [0.0] * steps.ranks
    # The last entry stands for what nothing has to wait for: place -1.
    for rank, a, behind, part, b, other_behind, other_part in steps.steps:
        end = max(free[rank], finish[behind], finish[other_behind]) + seconds[part]
        finish[a] = end
        if b >= 0:
            end += seconds[other_part]
            finish[b] = end
        free[rank] = end
    return max(free)
