"""Between action tables and the actions of a plan's order, and where each action falls on a grid of
unit slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Int32Array
from shardwright.errors import StrategyError
from shardwright.schedules.table import KINDS, ActionTable
from shardwright.strategy.plan.order import Action, Kind

Entry = Action | tuple[Action, Action]
"""One action, or a pair that runs overlapped."""

_CODES = {Kind(letter): code for code, letter in enumerate(KINDS)}


def actions_of(entry: Entry) -> tuple[Action, ...]:
    """The one or two actions of an entry."""
    return entry if isinstance(entry, tuple) else (entry,)


def row_entries(table: ActionTable, *, rank: int) -> tuple[Entry, ...]:
    """Row `rank` of a table as actions and pairs."""
    first, last = int(table.row_start[rank]), int(table.row_start[rank + 1])
    result: list[Entry] = []
    pending: Action | None = None
    for place in range(first, last):
        action = Action(
            chunk=int(table.chunk[place]),
            kind=Kind(KINDS[table.kind[place]]),
            microbatch=int(table.microbatch[place]),
            lane=int(table.lane[place]),
            slice=int(table.slice[place]),
        )
        if pending is not None:
            result.append((pending, action))
            pending = None
        elif table.overlapped is not None and table.overlapped[place]:
            pending = action
        else:
            result.append(action)
    return tuple(result)


def table_of(rows: Sequence[Sequence[Entry]]) -> ActionTable:
    """The table with these rows; chunks and microbatches are counted from 0 to the highest that
    occurs.
    """
    flat = [action for row in rows for entry in row for action in actions_of(entry)]
    pairs = [
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
        overlapped=np.array(pairs, np.int8) if any(pairs) else None,
    )


_Need = tuple[Kind, int, int, int, int]
"""Kind (I stands for the input gradient of B too), chunk, lane, microbatch, slice."""


def _inputs(action: Action, last: int, parts: int) -> list[_Need]:
    """What `action` waits for, along a chain of chunks whose last is `last`, with `parts` slices of
    a microbatch.
    """
    rest = (action.lane, action.microbatch, action.slice)
    match action.kind:
        case Kind.F:
            before = [(Kind.F, action.chunk - 1, *rest)] if action.chunk > 0 else []
            return before + (
                [(Kind.F, action.chunk, *rest[:2], action.slice - 1)] if action.slice else []
            )
        case Kind.W:
            return [(Kind.I, action.chunk, *rest)]
        case Kind.R:
            return [(Kind.F, action.chunk, *rest)]
    after = [(Kind.I, action.chunk + 1, *rest)] if action.chunk < last else []
    later = (
        [(Kind.I, action.chunk, *rest[:2], action.slice + 1)] if action.slice + 1 < parts else []
    )
    return [(Kind.F, action.chunk, *rest), *after, *later]


def slots(table: ActionTable) -> Int32Array:
    """Earliest slot of each action when every entry takes one slot and ranks run their rows in
    order.

    F waits for F of the chunk before, B and I for F of their chunk and B or I of the chunk after, W
    for I, R for F. Of a microbatch cut into slices, F waits for the slice before, B and I for the
    slice after. The chunks of each lane are a chain; transfers take no time. A table that can run
    at all gets a slot for each action.

    Returns:
        Shape (actions,).

    Raises:
        StrategyError: the table deadlocks; the first stuck action is named.
    """
    rows = [row_entries(table, rank=rank) for rank in range(table.num_ranks)]
    result = np.full(table.kind.size, -1, np.int32)
    done: dict[_Need, int] = {}
    sleepers: dict[_Need, list[int]] = {}
    next_entry, place, free = [0] * len(rows), table.row_start[:-1].tolist(), [0] * len(rows)
    awake = list(range(len(rows) - 1, -1, -1))
    last, parts = table.num_chunks - 1, int(table.slice.max(initial=0)) + 1
    while awake:
        rank = awake.pop()
        while next_entry[rank] < len(rows[rank]):
            actions = actions_of(rows[rank][next_entry[rank]])
            needs = [need for action in actions for need in _inputs(action, last, parts)]
            missing = next((need for need in needs if need not in done), None)
            if missing is not None:
                sleepers.setdefault(missing, []).append(rank)
                break
            slot = max([free[rank], *(done[need] + 1 for need in needs)])
            for action in actions:
                result[place[rank]] = slot
                place[rank] += 1
                kind = Kind.I if action.kind is Kind.B else action.kind
                key = (kind, action.chunk, action.lane, action.microbatch, action.slice)
                done[key] = slot
                awake.extend(sleepers.pop(key, ()))
            free[rank] = slot + 1
            next_entry[rank] += 1
    for rank, row in enumerate(rows):
        if next_entry[rank] < len(row):
            stuck = actions_of(row[next_entry[rank]])[0]
            raise StrategyError(
                f"deadlock: rank {rank} waits for ever at"
                f" {stuck.chunk}{stuck.kind}{stuck.microbatch}",
                hint="an action must come after everything it needs, on its own rank too",
                rule="order.deadlock",
            )
    return result
