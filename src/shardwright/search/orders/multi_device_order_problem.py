"""The order problem of lanes of a general plan whose actions may occupy several rows of devices.

Also the conversion between its sequences and action rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.orders.action_graph import ActionGraph, action_graph
from shardwright.program.orders.deadlock_check import run_order
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.orders.stage_device_sets_and_classes import Participation
from shardwright.schedules.action_order_arrays import B, F, I, W
from shardwright.search.orders.list_scheduling import NEVER
from shardwright.search.orders.multi_device_list_scheduling import SharedActions
from shardwright.search.orders.stage_times_and_bytes import StageTimes
from shardwright.strategy.plan.plan import Plan

_SORTS = 3
"""Forward, backward (I, or B where W takes no time), weight gradient."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedActionsProblem:
    """An order problem whose actions may occupy several rows of devices.

    Args:
        rows: the actions of each row, in arbitrary order.
        graph: dependency graph of the actions.
        arrays: arrays for the compiled kernels, by node.
        place: (3, lanes, stages, microbatches, slices) node of each forward, backward and weight
            gradient; -1 where there is none.
    """

    rows: ActionRows
    graph: ActionGraph
    arrays: SharedActions
    place: IntArray


def shared_actions_problem(
    plan: Plan, *, lanes: tuple[int, ...], take: Participation, times: StageTimes
) -> SharedActionsProblem:
    """Create the order problem of some lanes: F and, where W takes time, I and W, else B."""
    rows = _unordered_rows(plan, lanes=lanes, take=take, times=times)
    graph = action_graph(plan, rows, edges=times.edges)
    at = graph.position
    lane, chunk, kind, microbatch, part = (
        column[at].astype(np.int64)
        for column in (rows.lane, rows.chunk, rows.kind, rows.microbatch, rows.slice)
    )
    sort = np.array([0, 1, 2, 1, 0])[kind]
    place = np.full(
        (_SORTS, *times.forward.shape, int(microbatch.max()) + 1, int(part.max()) + 1), -1, np.int64
    )
    place[sort, lane, chunk, microbatch, part] = np.arange(len(at))
    turn, following = _neighbours_in_stage(place)
    every = np.array(
        [
            [s.every for s in one.stages] + [1] * (times.forward.shape[1] - len(one.stages))
            for one in plan.lanes
        ]
    )
    start = np.concatenate(([0], np.cumsum([one.microbatches for one in plan.lanes])))
    moved = chunk[graph.source] != chunk[graph.target]
    send = np.where(sort == 0, times.send_forward[lane, chunk], times.send_backward[lane, chunk])
    by_target, by_source = (
        np.argsort(graph.target, kind="stable"),
        np.argsort(graph.source, kind="stable"),
    )
    ends = np.arange(len(at) + 1)
    meeting, row_start = _rows_of(rows, graph)
    held, stash = times.held[lane, chunk], np.where(kind == B, 0, times.stash[lane, chunk])
    duration = np.choose(
        sort, [table[lane, chunk] for table in (times.forward, times.input, times.weight)]
    )
    fed = np.zeros(len(at), bool)
    fed[graph.target] = True
    arrays = SharedActions(
        time=duration,
        weight=(sort == 2).astype(np.int64),
        urgency=_longest_paths_to_end(
            duration, graph, delay=np.where(moved, send[graph.source], 0), following=following
        ),
        unit=start[lane] + microbatch * every[lane, chunk],
        opens=((sort == 0) & ~fed).astype(np.int64),
        row_start=row_start,
        row=meeting,
        need_start=np.searchsorted(graph.target[by_target], ends),
        need=graph.source[by_target],
        delay=np.where(moved, send[graph.source], 0)[by_target],
        after_start=np.searchsorted(graph.source[by_source], ends),
        after=graph.target[by_source],
        turn=turn,
        next=following,
        step=np.choose(sort, [held, stash - held, -stash]),
        limit=_row_limits(rows, times),
    )
    return SharedActionsProblem(rows=rows, graph=graph, arrays=arrays, place=place)


def _row_limits(rows: ActionRows, times: StageTimes) -> IntArray:
    """(rows,) bytes for activations in each row: the least of its devices; NEVER = no limits."""
    if times.limit is None:
        return np.full(rows.num_rows, NEVER, np.int64)
    return np.array([times.limit[devices.array].min() for devices in rows.devices], np.int64)


def _unordered_rows(
    plan: Plan, *, lanes: tuple[int, ...], take: Participation, times: StageTimes
) -> ActionRows:
    """All actions of every class of devices, stage by stage."""
    stages: list[list[IntArray]] = [[] for _ in take.classes]
    for lane in lanes:
        one = plan.lanes[lane]
        for chunk, stage in enumerate(one.stages):
            kinds = [F, I, W] if times.weight[lane, chunk] else [F, B]
            units = np.indices(
                (1, len(kinds), one.microbatches // stage.every, max(1, len(one.slices)))
            ).reshape(4, -1)
            columns = np.stack(
                [np.array(kinds)[units[1]], units[0] + lane, units[0] + chunk, units[2], units[3]]
            )
            for row in take.members[take.set_of[lane, chunk]]:
                stages[row].append(columns)
    sizes = [sum(columns.shape[1] for columns in row) for row in stages]
    kind, *others = np.concatenate([columns for row in stages for columns in row], axis=1).astype(
        np.int32
    )
    lane_of, chunk_of, microbatch, part = others
    return ActionRows(
        devices=take.classes,
        row_start=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        kind=kind.astype(np.int8),
        lane=lane_of,
        chunk=chunk_of,
        microbatch=microbatch,
        slice=part,
    )


def _neighbours_in_stage(node_at: IntArray) -> tuple[IntArray, IntArray]:
    """(nodes,) previous and next node of the same stage and kind, -1 where there is none.

    Backwards take slices from last to first.
    """
    ordered = node_at.copy()
    ordered[1:] = ordered[1:, ..., ::-1]
    lines = ordered.reshape(*node_at.shape[:3], -1)
    pairs = np.stack([lines[..., :-1].reshape(-1), lines[..., 1:].reshape(-1)])
    before, behind = pairs[:, (pairs >= 0).all(axis=0)]
    turn, following = np.full((2, int(node_at.max()) + 1), -1, np.int64)
    turn[behind], following[before] = before, behind
    return turn.copy(), following.copy()


def _rows_of(rows: ActionRows, graph: ActionGraph) -> tuple[IntArray, IntArray]:
    """Device-class rows that run each node, in CSR form: (rows, (nodes + 1,) starts)."""
    order = np.argsort(graph.node, kind="stable")
    return rows.row[order], np.searchsorted(graph.node[order], np.arange(len(graph.position) + 1))


def _longest_paths_to_end(
    duration: IntArray, graph: ActionGraph, *, delay: IntArray, following: IntArray
) -> IntArray:
    """(nodes,) longest path from each node's start to the end of the step."""
    has = np.flatnonzero(following >= 0)
    source = np.concatenate([graph.source, has])
    target = np.concatenate([graph.target, following[has]])
    wait = np.concatenate([delay, np.zeros(len(has), np.int64)])
    order = run_order(source, target, count=len(duration))
    assert len(order) == len(duration), "stages that feed one another in a circle"
    sort = np.argsort(source, kind="stable")
    start = np.searchsorted(source[sort], np.arange(len(duration) + 1)).tolist()
    behind, gap = target[sort].tolist(), wait[sort].tolist()
    way = duration.tolist()
    for one in reversed(order):
        way[one] += max(
            (gap[i] + way[behind[i]] for i in range(start[one], start[one + 1])), default=0
        )
    return np.array(way, np.int64)


def rows_in_order(problem: SharedActionsProblem, sequence: IntArray) -> ActionRows:
    """The action rows of the device classes, in the order of a sequence of actions."""
    rank = np.empty(len(sequence), np.int64)
    rank[sequence] = np.arange(len(sequence))
    rows = problem.rows
    picked = np.lexsort((rank[problem.graph.node], rows.row))
    return replace(
        rows,
        kind=rows.kind[picked],
        lane=rows.lane[picked],
        chunk=rows.chunk[picked],
        microbatch=rows.microbatch[picked],
        slice=rows.slice[picked],
    )


def sequence_of(problem: SharedActionsProblem, rows: ActionRows) -> IntArray | None:
    """A sequence that runs the given rows, with B as I and W; None where they deadlock."""
    place = (rows.lane, rows.chunk, rows.microbatch, rows.slice)
    first = problem.place[(np.array([0, 1, 2, 1, 0])[rows.kind], *place)]
    second = np.where(rows.kind == B, problem.place[(np.full(len(rows.kind), 2), *place)], -1)
    nodes, row = np.stack([first, second], axis=1).reshape(-1), np.repeat(rows.row, 2)
    row, nodes = row[nodes >= 0], nodes[nodes >= 0]
    same = np.flatnonzero(np.diff(row) == 0)
    source = np.concatenate([problem.graph.source, nodes[same]])
    target = np.concatenate([problem.graph.target, nodes[same + 1]])
    count = len(problem.graph.position)
    order = run_order(source, target, count=count)
    return np.array(order, np.int64) if len(order) == count else None
