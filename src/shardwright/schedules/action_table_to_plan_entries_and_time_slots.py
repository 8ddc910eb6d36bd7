"""Conversion between action tables and a plan's actions, and the time slot of each action.

The earliest unit time slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Int32Array
from shardwright.errors import StrategyError
from shardwright.schedules.action_order_arrays import KINDS, ActionTable
from shardwright.strategy.plan.pipeline_order import Action, Entry, Kind, actions_of

_CODES = {Kind(letter): code for code, letter in enumerate(KINDS)}


def row_entries(table: ActionTable, *, rank: int) -> tuple[Entry, ...]:
    """One rank's row of a table as a plan's entries: single actions and overlapped pairs."""
    start, end = int(table.row_start[rank]), int(table.row_start[rank + 1])
    entries: list[Entry] = []
    pending: Action | None = None
    for index in range(start, end):
        action = Action(
            chunk=int(table.chunk[index]),
            kind=Kind(KINDS[table.kind[index]]),
            microbatch=int(table.microbatch[index]),
            lane=int(table.lane[index]),
            slice=int(table.slice[index]),
        )
        if pending is not None:
            entries.append((pending, action))
            pending = None
        elif table.overlapped is not None and table.overlapped[index]:
            pending = action
        else:
            entries.append(action)
    return tuple(entries)


def table_of_entries(rows: Sequence[Sequence[Entry]]) -> ActionTable:
    """Build an action table from rows of entries, one row for each rank.

    Chunks and microbatches are counted from 0 to the highest that occurs.
    """
    flat = [action for row in rows for entry in row for action in actions_of(entry)]
    overlap_marks = [
        mark
        for row in rows
        for entry in row
        for mark in ((1, 0) if isinstance(entry, tuple) else (0,))
    ]
    sizes = [sum(len(actions_of(entry)) for entry in row) for row in rows]
    return ActionTable(
        num_ranks=len(rows),
        num_chunks=max((action.chunk for action in flat), default=-1) + 1,
        num_microbatches=max((action.microbatch for action in flat), default=-1) + 1,
        row_start=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        kind=np.array([_CODES[action.kind] for action in flat], np.int8),
        chunk=np.array([action.chunk for action in flat], np.int32),
        microbatch=np.array([action.microbatch for action in flat], np.int32),
        lane=np.array([action.lane for action in flat], np.int8),
        slice=np.array([action.slice for action in flat], np.int32),
        overlapped=np.array(overlap_marks, np.int8) if any(overlap_marks) else None,
    )


_Need = tuple[Kind, int, int, int, int]
"""Kind (I stands for the input gradient of B too), chunk, lane, microbatch, slice."""


def entries_by_slot(table: ActionTable) -> list[list[Entry | None]]:
    """Each rank's entries at the list index of their earliest slot; None where a rank is idle.

    Raises:
        StrategyError: the table deadlocks.
    """
    slot_of_action = slots(table)
    timelines: list[list[Entry | None]] = []
    for rank in range(table.num_ranks):
        timeline: list[Entry | None] = []
        action_index = int(table.row_start[rank])
        for entry in row_entries(table, rank=rank):
            timeline.extend([None] * (int(slot_of_action[action_index]) - len(timeline)))
            timeline.append(entry)
            action_index += len(actions_of(entry))
        timelines.append(timeline)
    return timelines


def _inputs(action: Action, last_chunk: int, num_slices: int) -> list[_Need]:
    """Actions that must end before `action`: of its own, the neighbouring chunk, and slice.

    Args:
        last_chunk: last chunk of the lane's chain of chunks.
        num_slices: token slices of a microbatch.
    """
    unit = (action.lane, action.microbatch, action.slice)
    match action.kind:
        case Kind.F:
            previous_chunk = [(Kind.F, action.chunk - 1, *unit)] if action.chunk > 0 else []
            return previous_chunk + (
                [(Kind.F, action.chunk, *unit[:2], action.slice - 1)] if action.slice else []
            )
        case Kind.W:
            return [(Kind.I, action.chunk, *unit)]
        case Kind.R:
            return [(Kind.F, action.chunk, *unit)]
    next_chunk = [(Kind.I, action.chunk + 1, *unit)] if action.chunk < last_chunk else []
    next_slice = (
        [(Kind.I, action.chunk, *unit[:2], action.slice + 1)]
        if action.slice + 1 < num_slices
        else []
    )
    return [(Kind.F, action.chunk, *unit), *next_chunk, *next_slice]


def slots(table: ActionTable) -> Int32Array:
    """(actions,) earliest time slot of each action, one an entry; StrategyError for a deadlock.

    F waits for F of the previous chunk, B and I for F of their chunk and B or I of the next chunk,
    W for I, R for F. Of a microbatch cut into slices, F waits for the previous slice, B and I for
    the next slice. The chunks of each lane are a chain; transfers take no time. A rank runs its row
    in order. A table that can run at all gets a slot for each action.

    Raises:
        StrategyError: the table deadlocks; the message names the first stuck action.
    """
    rows = [row_entries(table, rank=rank) for rank in range(table.num_ranks)]
    slot_of_action = np.full(table.kind.size, -1, np.int32)
    slot_of_need: dict[_Need, int] = {}
    waiting_ranks: dict[_Need, list[int]] = {}
    next_entry, next_action, free_slot = (
        [0] * len(rows),
        table.row_start[:-1].tolist(),
        [0] * len(rows),
    )
    ready_ranks = list(range(len(rows) - 1, -1, -1))
    last_chunk, num_slices = table.num_chunks - 1, int(table.slice.max(initial=0)) + 1
    while ready_ranks:
        rank = ready_ranks.pop()
        while next_entry[rank] < len(rows[rank]):
            actions = actions_of(rows[rank][next_entry[rank]])
            needs = [need for action in actions for need in _inputs(action, last_chunk, num_slices)]
            missing = next((need for need in needs if need not in slot_of_need), None)
            if missing is not None:
                waiting_ranks.setdefault(missing, []).append(rank)
                break
            slot = max([free_slot[rank], *(slot_of_need[need] + 1 for need in needs)])
            for action in actions:
                slot_of_action[next_action[rank]] = slot
                next_action[rank] += 1
                kind = Kind.I if action.kind is Kind.B else action.kind
                key = (kind, action.chunk, action.lane, action.microbatch, action.slice)
                slot_of_need[key] = slot
                ready_ranks.extend(waiting_ranks.pop(key, ()))
            free_slot[rank] = slot + 1
            next_entry[rank] += 1
    for rank, row in enumerate(rows):
        if next_entry[rank] < len(row):
            stuck = actions_of(row[next_entry[rank]])[0]
            raise StrategyError(
                f"deadlock: rank {rank} waits for ever at"
                f" {stuck.chunk}{stuck.kind}{stuck.microbatch}",
                hint="place an action behind every action that it needs, on its own rank too",
                rule="order.deadlock",
            )
    return slot_of_action
