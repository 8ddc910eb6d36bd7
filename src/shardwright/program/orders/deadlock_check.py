"""The rule of orders that needs the actions of all rows: an order must not deadlock."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.program.orders.action_graph import ActionGraph, Edges, action_graph
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.schedules.action_order_arrays import KINDS
from shardwright.schedules.format_action import format_action
from shardwright.strategy.plan.pipeline_order import Action, Kind
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.rule_violations import Violation

ACTION_RULES: Final = ("order.deadlock",)
"""Ids of the rules of `action_violations`."""


def action_violations(
    plan: Plan, rows: ActionRows, *, edges: Edges | None = None
) -> tuple[Violation, ...]:
    """The violation of ``order.deadlock`` where some action waits for ever; else none.

    An action runs once all rows that hold it have come to it, and every action that it waits for is
    done (`action_graph`). The two actions of an overlapped pair run together. The violation names
    the row with the lowest devices that does not end, and the action where it hangs.

    Args:
        edges: stages that feed one another, by lane of the plan; None = each lane is a chain.
    """
    graph = action_graph(plan, rows, edges=edges)
    group = _groups_at_once(rows, graph)
    source, target = group_edges(rows, group=group, graph=graph)
    order = run_order(source, target, count=int(group.max(initial=-1)) + 1)
    done = np.zeros(int(group.max(initial=-1)) + 1, bool)
    done[order] = True
    stuck = np.flatnonzero(~done[group])
    return (
        (_deadlock_violation(plan, rows, int(stuck[0]), group=group, done=done, graph=graph),)
        if len(stuck)
        else ()
    )


def _groups_at_once(rows: ActionRows, graph: ActionGraph) -> IntArray:
    """(actions,) group number: an action in all its rows, joined with its overlapped partner."""
    if rows.overlapped is None:
        return graph.node
    overlapped = np.flatnonzero(rows.overlapped)
    root = list(range(len(graph.position)))

    def root_of(member: int) -> int:
        """Representative of a node's set; shortens the path to it (union-find)."""
        while root[member] != member:
            root[member] = member = root[root[member]]
        return member

    for node, partner in zip(
        graph.node[overlapped].tolist(), graph.node[overlapped + 1].tolist(), strict=True
    ):
        a, b = root_of(node), root_of(partner)
        root[max(a, b)] = min(a, b)
    labels = np.array([root_of(node) for node in range(len(root))], dtype=np.int64)
    # Numbers without gaps: callers take the largest number as the number of groups.
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)[graph.node]


def group_edges(
    rows: ActionRows, *, group: IntArray, graph: ActionGraph
) -> tuple[IntArray, IntArray]:
    """(source, target) group numbers: each target waits for its source, by graph and row order.

    By the graph and by the order of each row.
    """
    row = rows.row
    continued = np.flatnonzero(np.diff(row) == 0) if len(row) else np.zeros(0, np.int64)
    if rows.overlapped is not None:
        continued = continued[rows.overlapped[continued] == 0]
    by_node = group[graph.position]
    source = np.concatenate([by_node[graph.source], group[continued]])
    target = np.concatenate([by_node[graph.target], group[continued + 1]])
    return source, target


def run_order(source: IntArray, target: IntArray, *, count: int) -> list[int]:
    """Topological order of a graph's nodes, without the nodes that can never run.

    Such as a node that waits for itself.

    Args:
        source, target: (edges,) nodes; target waits for source.
        count: number of nodes.
    """
    sort = np.argsort(source, kind="stable")
    start = np.searchsorted(source[sort], np.arange(count + 1)).tolist()
    followers = target[sort].tolist()
    waiting_for = np.bincount(target, minlength=count).tolist()
    order = [node for node in range(count) if not waiting_for[node]]
    for node in order:
        for follower in followers[start[node] : start[node + 1]]:
            waiting_for[follower] -= 1
            if not waiting_for[follower]:
                order.append(follower)
    return order


def _deadlock_violation(
    plan: Plan,
    rows: ActionRows,
    place: int,
    *,
    group: IntArray,
    done: BoolArray,
    graph: ActionGraph,
) -> Violation:
    """The violation of a deadlock: where a row hangs, and the action that it waits for.

    The row hangs at the action at `place`.
    """
    by_node = group[graph.position]
    needs = graph.source[(by_node[graph.target] == group[place])]
    missing = needs[~done[by_node[needs]]]
    row = int(rows.row[place])
    if len(missing):
        itself = by_node[missing[0]] == group[place]
        cause = (
            f"{_action_text(plan, rows, int(graph.position[missing[0]]))}"
            f"{', which it runs together with' if itself else ''}"
        )
        hint = "place an action behind every action that it needs, on its own devices too"
    else:
        waiting_rows = np.flatnonzero((group == group[place]) & (rows.row != row))
        other_row = int(rows.row[waiting_rows[0]]) if len(waiting_rows) else row
        cause = f"device {rows.devices[other_row][0]}, which never reaches this action"
        hint = "devices of one stage run its actions in one order"
    return Violation(
        rule=ACTION_RULES[0],
        message=(
            f"device {rows.devices[row][0]} waits for ever at {_action_text(plan, rows, place)} for"
            f" {cause}"
        ),
        hint=hint,
        path=f"row {rows.devices[row][0]}",
    )


def _action_text(plan: Plan, rows: ActionRows, place: int) -> str:
    """Text of the action at index `place` of the rows, in the notation of plan files."""
    action = Action(
        chunk=int(rows.chunk[place]),
        kind=Kind(KINDS[rows.kind[place]]),
        microbatch=int(rows.microbatch[place]),
        lane=int(rows.lane[place]),
        slice=int(rows.slice[place]),
    )
    return format_action(action, lanes=tuple(lane.name for lane in plan.lanes))
