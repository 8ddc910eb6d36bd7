"""The actions of all device classes as tasks on their compute streams."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.device_classes_with_equal_actions import DeviceClass, Posts, TaskShape
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.task_graph_builder import TaskGraphBuilder
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream, TaskKind

_F, _I, _W, _B, _R = (int(k) for k in (TaskKind.F, TaskKind.I, TaskKind.W, TaskKind.B, TaskKind.R))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTasks:
    """The actions of all device classes as tasks on their compute streams.

    Args:
        columns: columns of the tasks, as `Templates` has them, and their streams and microbatches.
        first, last: (kinds, posts, microbatches, slices) task of an action, -1 = none; they differ
            for a last backward in pieces.
        following: task after an action in its row.
        closing: (posts,) number of pieces of the last backward, whose last task is `closing_last`;
            0 = none.
        ends: (classes,) last task of each row.
        meets: (tasks,) may run beside a gather or reduction of its devices.
        pairs: (pairs, 3) first task of an action that runs overlapped with the action before it,
            and the first and last task of the latter.
    """

    columns: dict[str, IntArray]
    first: IntArray
    last: IntArray
    following: IntArray
    closing: IntArray
    closing_last: IntArray
    ends: IntArray
    meets: BoolArray
    pairs: IntArray

    def link_row(self, links: TaskGraphBuilder) -> None:
        """Add an edge from each task to the next task of the same device class."""
        klass = self.columns["klass"]
        rows_continue = np.flatnonzero(klass[1:] == klass[:-1])
        links.add(rows_continue, rows_continue + 1)

    def backward(self, which: IntArray) -> IntArray:
        """(posts, microbatches, slices) tasks of B, else I, from `first` or `last`; -1 = none.

        Of the input gradient where it is a separate action.
        """
        return np.asarray(np.where(which[_B] >= 0, which[_B], which[_I]), dtype=np.int64)


def actions_as_tasks(
    rows: ActionRows, classes: tuple[DeviceClass, ...], posts: Posts, shape: TaskShape
) -> ActionTasks:
    """Tasks of each device class's actions on its compute stream, the last backward in pieces.

    With the last backward of a chunk in pieces.
    """
    row = np.array([c.row for c in classes], dtype=np.int64)
    start, size = (
        rows.row_start[row].astype(np.int64),
        np.diff(rows.row_start)[row].astype(np.int64),
    )
    klass = np.repeat(np.arange(len(classes)), size)
    begin = np.concatenate([[0], np.cumsum(size)])
    action = np.arange(int(begin[-1])) - np.repeat(begin[:-1], size) + np.repeat(start, size)
    kind, lane, chunk, microbatch, part = (
        np.asarray(column[action], dtype=np.int64)
        for column in (rows.kind, rows.lane, rows.chunk, rows.microbatch, rows.slice)
    )
    post = posts.number[klass, posts.first_stage[lane] + chunk]
    shape_of = (
        5,
        len(posts.klass),
        int(microbatch.max(initial=0)) + 1,
        int(part.max(initial=0)) + 1,
    )
    place = np.full(shape_of, -1, dtype=np.int64)
    place[kind, post, microbatch, part] = np.arange(len(kind))
    final = np.full(len(posts.klass), -1, dtype=np.int64)
    closes = np.flatnonzero((kind == _B) | (kind == _W))
    np.maximum.at(final, post[closes], closes)
    closing = np.array(
        [
            shape.pieces.get(key, 1)
            for key in zip(posts.lane.tolist(), posts.chunk.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    closing[final < 0] = 0
    pieces = np.ones(len(kind), dtype=np.int64)
    pieces[final[final >= 0]] = closing[final >= 0]
    task = np.concatenate([[0], np.cumsum(pieces)])
    action_of_task = np.repeat(np.arange(len(kind)), pieces)
    rebuilt_before = ((kind == _B) | (kind == _I)) & (place[_R, post, microbatch, part] >= 0)
    partner = _partners(rows, action, (lane, chunk, kind, part))
    columns = {
        "kind": kind[action_of_task],
        "klass": klass[action_of_task],
        "lane": lane[action_of_task],
        "chunk": chunk[action_of_task],
        "slice": part[action_of_task],
        "edge": np.full(len(action_of_task), -1, dtype=np.int64),
        "piece": np.arange(len(action_of_task)) - task[action_of_task],
        "pieces": pieces[action_of_task],
        "early": rebuilt_before[action_of_task].astype(np.int64),
        **{
            f"partner_{name}": values[action_of_task]
            for name, values in zip(("lane", "chunk", "kind", "slice"), partner, strict=True)
        },
        "stream": np.full(len(action_of_task), int(Stream.COMPUTE), dtype=np.int64),
        "microbatch": microbatch[action_of_task],
    }
    exists = place >= 0
    continues = np.append(klass[1:] == klass[:-1], False)
    following = np.where(continues, np.append(task[1:-1], -1), -1)
    overlaps = _overlaps_next(rows, action)
    overlapped = np.flatnonzero(overlaps[:-1] & continues[:-1]) + 1
    return ActionTasks(
        columns=columns,
        first=np.where(exists, task[place], -1),
        last=np.where(exists, task[place + 1] - 1, -1),
        following=np.where(exists, following[place], -1),
        closing=closing,
        closing_last=np.where(final >= 0, task[final + 1] - 1, -1),
        ends=task[begin[1:]] - 1,
        meets=_may_overlap_sync(klass, kind, microbatch, begin, final, posts, shape)[
            action_of_task
        ],
        pairs=np.stack([task[overlapped], task[overlapped - 1], task[overlapped] - 1], axis=1),
    )


def _may_overlap_sync(
    klass: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    begin: IntArray,
    final: IntArray,
    posts: Posts,
    shape: TaskShape,
) -> BoolArray:
    """(actions,) True where parameter gathers are not yet done, or gradient reductions may run.

    No reduction runs before a class's first chunk closes, and all parameters are gathered when the
    last first forward begins.
    """
    number = np.arange(len(klass))
    closes = begin[1:].copy()
    has_backward = final >= 0
    np.minimum.at(closes, posts.klass[has_backward], final[has_backward])
    meets = number >= closes[klass]
    if shape.gathers:
        opens = begin[:-1].copy()
        forward = np.flatnonzero((kind == _F) & (microbatch == 0))
        np.maximum.at(opens, klass[forward], forward)
        meets |= number < opens[klass]
    return meets


def _overlaps_next(rows: ActionRows, action: IntArray) -> BoolArray:
    """(actions,) True where an action runs overlapped with the next action of its row."""
    if rows.overlapped is None:
        return np.zeros(len(action), dtype=np.bool_)
    return np.asarray(rows.overlapped[action] != 0)


def _partners(
    rows: ActionRows, action: IntArray, fields: tuple[IntArray, ...]
) -> tuple[IntArray, ...]:
    """Entries of `fields` for the other action of a pair, (actions,) each; -1 where alone.

    -1 where an action runs alone.
    """
    overlaps = _overlaps_next(rows, action)
    first = np.flatnonzero(overlaps)
    columns = tuple(np.full(len(action), -1, dtype=np.int64) for _ in fields)
    for column, values in zip(columns, fields, strict=True):
        column[first], column[first + 1] = values[first + 1], values[first]
    return columns
