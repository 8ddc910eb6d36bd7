"""The actions of all device classes as tasks on their compute streams."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.device_classes_with_equal_actions import DeviceClass, Posts, TaskShape
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.task_graph_builder import TaskGraphBuilder
from shardwright.program.task_kind_stream_and_dependency_arrays import Columns, Stream, TaskKind

_F, _I, _W, _B, _R = (int(k) for k in (TaskKind.F, TaskKind.I, TaskKind.W, TaskKind.B, TaskKind.R))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTasks:
    """The actions of all device classes as tasks on their compute streams.

    Args:
        columns: columns of the tasks, as `Templates` has them, and their streams and microbatches.
        count: number of tasks.
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

    columns: Columns
    count: int
    first: Int32Array
    last: Int32Array
    following: Int32Array
    closing: IntArray
    closing_last: IntArray
    ends: IntArray
    meets: BoolArray
    pairs: Int32Array

    def link_row(self, links: TaskGraphBuilder) -> None:
        """Add an edge from each task to the next task of the same device class."""
        last_of_row = np.zeros(int(self.ends[-1]) + 1, dtype=np.bool_)
        last_of_row[self.ends] = True
        before = np.flatnonzero(~last_of_row).astype(np.int32)
        links.add(before, before + 1)

    def backward(self, which: Int32Array) -> Int32Array:
        """(posts, microbatches, slices) B's entry in `first` or `last`, else I's; -1 = none.

        Of the input gradient where it is a separate action.
        """
        return np.asarray(np.where(which[_B] >= 0, which[_B], which[_I]), dtype=np.int32)


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
    klass = np.repeat(np.arange(len(classes), dtype=np.int32), size)
    begin = np.concatenate([[0], np.cumsum(size)])
    count = int(begin[-1])
    action = np.arange(count) + np.repeat(start - begin[:-1], size)
    kind, lane, chunk, microbatch, part = (
        column[action].astype(np.int32, copy=False)
        for column in (rows.kind, rows.lane, rows.chunk, rows.microbatch, rows.slice)
    )
    post = posts.number[klass, posts.first_stage[lane] + chunk].astype(np.int32)
    shape_of = (
        5,
        len(posts.klass),
        int(microbatch.max(initial=0)) + 1,
        int(part.max(initial=0)) + 1,
    )
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
    pieces = np.ones(count, dtype=np.int32)
    pieces[final[final >= 0]] = closing[final >= 0]
    task = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(pieces, out=task[1:])
    action_of_task = np.repeat(np.arange(count, dtype=np.int32), pieces)
    continues = np.append(klass[1:] == klass[:-1], False)
    place = np.ravel_multi_index((kind, post, microbatch, part), shape_of)
    first, last, following = (
        _at_places(place, values, shape_of)
        for values in (task[:-1], task[1:] - 1, np.where(continues, task[1:], -1))
    )
    rebuilt_before = ((kind == _B) | (kind == _I)) & (first[_R, post, microbatch, part] >= 0)
    overlapped = (
        np.flatnonzero((rows.overlapped[action][:-1] != 0) & continues[:-1]) + 1
        if rows.overlapped is not None
        else np.empty(0, dtype=np.int64)
    )
    columns = {
        "kind": kind[action_of_task],
        "klass": klass[action_of_task],
        "lane": lane[action_of_task],
        "chunk": chunk[action_of_task],
        "slice": part[action_of_task],
        "piece": np.arange(len(action_of_task), dtype=np.int32) - task[action_of_task],
        "pieces": pieces[action_of_task],
        "early": rebuilt_before.astype(np.int32)[action_of_task],
        **_partners(rows, action, action_of_task, lane=lane, chunk=chunk, kind=kind, slice=part),
        "stream": int(Stream.COMPUTE),
        "microbatch": microbatch[action_of_task],
    }
    return ActionTasks(
        columns=columns,
        count=len(action_of_task),
        first=first,
        last=last,
        following=following,
        closing=closing,
        closing_last=np.where(final >= 0, task[final + 1] - 1, -1),
        ends=task[begin[1:]] - 1,
        meets=_may_overlap_sync(klass, kind, microbatch, begin, final, posts, shape)[
            action_of_task
        ],
        pairs=np.stack([task[overlapped], task[overlapped - 1], task[overlapped] - 1], axis=1),
    )


def _at_places(place: IntArray, values: Int32Array, shape: tuple[int, ...]) -> Int32Array:
    """Array of a shape with `values` at the flat indices `place`, and -1 elsewhere."""
    array = np.full(shape, -1, dtype=np.int32)
    array.reshape(-1)[place] = values
    return array


def _may_overlap_sync(
    klass: Int32Array,
    kind: Int32Array,
    microbatch: Int32Array,
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


def _partners(
    rows: ActionRows, action: IntArray, action_of_task: Int32Array, **fields: Int32Array
) -> dict[str, Int32Array]:
    """Columns ``partner_<field>`` of tasks: `fields` of the other action of a pair, -1 where alone.

    Empty where no action runs overlapped.
    """
    if rows.overlapped is None:
        return {}
    first = np.flatnonzero(rows.overlapped[action])
    columns = {}
    for name, values in fields.items():
        column = np.full(len(action), -1, dtype=np.int32)
        column[first], column[first + 1] = values[first + 1], values[first]
        columns[f"partner_{name}"] = column[action_of_task]
    return columns
