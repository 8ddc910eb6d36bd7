"""Rows of actions written out as the table of a plan's order."""

from __future__ import annotations

from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.schedules.action_order_arrays import KINDS
from shardwright.strategy.plan.pipeline_order import Action, Entry, Kind, Table
from shardwright.strategy.plan.plan import Plan


def order_table_of_rows(rows: ActionRows, *, plan: Plan, order: int = 0) -> Table:
    """The rows of the plan's order number `order`, written as a table.

    `action_rows` of a plan with this table gives the same rows.
    """
    lanes = plan.orders[order].lanes
    turn = {i: lanes.index(lane.name) for i, lane in enumerate(plan.lanes) if lane.name in lanes}
    table_rows = []
    for devices, start, end in zip(
        rows.devices, rows.row_start[:-1].tolist(), rows.row_start[1:].tolist(), strict=True
    ):
        if start < end and int(rows.lane[start]) in turn:
            table_rows.append((devices[0], _entries(rows, slice(start, end), turn)))
    return Table(lanes=lanes, rows=tuple(table_rows))


def _entries(rows: ActionRows, row: slice, turn: dict[int, int]) -> tuple[Entry, ...]:
    """Table entries of the actions of one row, overlapped pairs as tuples."""
    columns = (rows.chunk, rows.kind, rows.microbatch, rows.lane, rows.slice)
    actions = [
        Action(
            chunk=chunk, kind=Kind(KINDS[kind]), microbatch=microbatch, lane=turn[lane], slice=part
        )
        for chunk, kind, microbatch, lane, part in zip(
            *(column[row].tolist() for column in columns), strict=True
        )
    ]
    if rows.overlapped is None:
        return tuple(actions)
    pairs = rows.overlapped[row].tolist()
    return tuple(
        (action, actions[i + 1]) if pairs[i] else action
        for i, action in enumerate(actions)
        if not (i and pairs[i - 1])
    )
