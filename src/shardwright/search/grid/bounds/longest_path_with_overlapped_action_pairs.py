"""Longest path through an order with overlapped pairs and several lanes: a step's lower bound.

An action starts when its rank is free and its input is available. Two overlapped actions start when
both can, and share the seconds of their pair one after the other, as `program.lower_plan_to_tasks`
places them. Sends, reductions and the slowdown by collectives are left out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step.overlapped_action_pair_seconds import CommunicationShare, pair_share
from shardwright.schedules.action_order_arrays import ActionTable, F, W
from shardwright.schedules.schedule_registry import schedule_table
from shardwright.strategy.grid.chunk_placement_by_schedule import grid_schedule


class PathStep(NamedTuple):
    """One action that runs alone, or two overlapped actions, of one pipeline rank.

    Args:
        one, other: places of the actions in the table; other: -1 if the action runs alone.
        behind, other_behind: actions on which they depend, -1 = none.
        part, other_part: rows of `Steps.parts` that have their seconds.
    """

    rank: int
    one: int
    behind: int
    part: int
    other: int
    other_behind: int
    other_part: int


class Steps(NamedTuple):
    """Steps of an order, sorted so that each follows all steps on which it depends.

    Args:
        parts: (parts, 4) kind and chunk of an action, and of the overlapped action (-1 = none).
            Actions with the same part have the same seconds.
    """

    steps: tuple[PathStep, ...]
    parts: IntArray
    actions: int
    ranks: int


@lru_cache(maxsize=64)
def steps_of(name: str, pp: int, microbatches: int) -> Steps:
    """Sort a schedule's actions into steps of one or two overlapped actions, dependencies first."""
    table = schedule_table(
        name,
        num_ranks=pp,
        chunks_per_rank=grid_schedule(name).chunks,
        num_microbatches=microbatches,
    )
    behind, first = _producers(table), _starts_pair(table)
    second = np.concatenate([[False], first[:-1]])
    action = np.stack([table.kind, table.chunk], axis=1).astype(np.int64)
    overlapped = np.full_like(action, -1)
    overlapped[first], overlapped[second] = action[second], action[first]
    parts, part = np.unique(
        np.concatenate([action, overlapped], axis=1), axis=0, return_inverse=True
    )
    dependency, paired, part_of = behind.tolist(), first.tolist(), part.reshape(-1).tolist()
    next_action, end = table.row_start[:-1].tolist(), table.row_start[1:].tolist()
    done, steps = [False] * len(dependency), list[PathStep]()
    progressed = True
    while progressed:
        progressed = False
        for rank in range(pp):
            a = next_action[rank]
            while a < end[rank]:
                b = a + 1 if paired[a] else -1
                if not all(
                    action_place < 0
                    or dependency[action_place] < 0
                    or done[dependency[action_place]]
                    for action_place in (a, b)
                ):
                    break
                steps.append(
                    PathStep(
                        rank,
                        a,
                        dependency[a],
                        part_of[a],
                        b,
                        dependency[b] if b >= 0 else -1,
                        part_of[b] if b >= 0 else -1,
                    )
                )
                done[a] = True
                if b >= 0:
                    done[b] = True
                a, progressed = max(a, b) + 1, True
            next_action[rank] = a
    assert all(done), "named schedules do not deadlock"
    return Steps(steps=tuple(steps), parts=parts, actions=len(dependency), ranks=pp)


def _starts_pair(table: ActionTable) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(actions,) True for the first action of an overlapped pair."""
    return (
        np.zeros(len(table.kind), dtype=np.bool_)
        if table.overlapped is None
        else np.asarray(table.overlapped != 0)
    )


def _producers(table: ActionTable) -> IntArray:
    """(actions,) action whose output each action reads, -1 = none.

    A forward reads the previous chunk, a backward the next chunk.
    """
    kind, chunk = table.kind, table.chunk.astype(np.int64)
    key = (
        table.lane.astype(np.int64) * table.num_chunks + chunk
    ) * table.num_microbatches + table.microbatch
    lanes = int(table.lane.max()) + 1
    producer = np.full((2, lanes * table.num_chunks * table.num_microbatches), -1, dtype=np.int64)
    forward, backward = kind == F, (kind != F) & (kind != W)
    producer[0, key[forward]], producer[1, key[backward]] = (
        np.flatnonzero(forward),
        np.flatnonzero(backward),
    )
    result = np.full(len(kind), -1, dtype=np.int64)
    not_first = forward & (chunk > 0)
    result[not_first] = producer[0, key[not_first] - table.num_microbatches]
    last = backward & (chunk == table.num_chunks - 1)
    result[last] = producer[0, key[last]]
    not_last = backward & ~last
    result[not_last] = producer[1, key[not_last] + table.num_microbatches]
    return result


def longest_path(
    steps: Steps, spent: tuple[FloatArray, FloatArray, FloatArray], taken: CommunicationShare
) -> float:
    """Seconds from the first action's start to the last action's end, without sends, reductions.

    Args:
        spent: (kinds, chunks) seconds of actions: total, exposed communication part, GEMM and
            attention part.
    """
    kind, chunk, other_kind, other_chunk = steps.parts.T
    first_action, second_action = (
        tuple([part[kind, chunk] for part in spent]),
        tuple([part[other_kind, other_chunk] for part in spent]),
    )
    seconds = np.where(
        other_kind < 0, first_action[0], pair_share(first_action, second_action, taken)
    ).tolist()
    finish, free = [0.0] * (steps.actions + 1), [0.0] * steps.ranks
    # The last entry of `finish`, place -1, stands for no dependency.
    for rank, a, behind, part, b, other_behind, other_part in steps.steps:
        end = max(free[rank], finish[behind], finish[other_behind]) + seconds[part]
        finish[a] = end
        if b >= 0:
            end += seconds[other_part]
            finish[b] = end
        free[rank] = end
    return max(free)
