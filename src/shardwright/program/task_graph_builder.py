"""Tasks and their dependencies while a Program is built.

Columns that grow by whole arrays, and edges between tasks.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, distinct
from shardwright.program.task_kind_stream_and_dependency_arrays import (
    Columns,
    Instances,
    Templates,
    templates_of,
)


class TaskGraphBuilder:
    """Builder of a task graph: tasks as columns, edges, and tasks that start together."""

    def __init__(self, count: int, columns: Columns) -> None:
        """Begin with `count` tasks."""
        self.parts: list[tuple[int, Columns]] = [(count, columns)]
        self.count = count
        self._source: list[Int32Array] = []
        self._target: list[Int32Array] = []
        self._together: list[Int32Array] = []

    def tasks(self, count: int, **columns: Int32Array | int) -> Int32Array:
        """Append `count` tasks, with neutral values in missing columns, and return their numbers.

        A column that is not given has its neutral value.
        """
        self.parts.append((count, columns))
        self.count += count
        return np.arange(self.count - count, self.count, dtype=np.int32)

    def add(self, before: Int32Array, after: Int32Array) -> None:
        """Add an edge from each task of `before` to the task at its place in `after`.

        Arrays of one shape; -1 on either side is no task.
        """
        exist = (before >= 0) & (after >= 0)
        self._source.append(before[exist])
        self._target.append(after[exist])

    def start_together(self, pairs: Int32Array) -> None:
        """Store (n, 3) rows: a task, and first and last task of the action that starts with it."""
        self._together.append(pairs)

    def column(self, name: str) -> Int32Array:
        """One entry a task of a column that all parts have."""
        values = np.empty(self.count, dtype=np.int32)
        end = 0
        for count, columns in self.parts:
            end += count
            values[end - count : end] = columns[name]
        return values

    def edges(self) -> tuple[Int32Array, Int32Array]:
        """(source, target) task numbers of all edges, with those inherited by starting together.

        A task that starts together with another also waits for the tasks that the other waits for.

        Tasks of the other action itself, which may be in pieces, are left out: they only lay the
        two one after the other.
        """
        source, target = np.concatenate(self._source), np.concatenate(self._target)
        pairs = (
            np.concatenate(self._together) if self._together else np.zeros((0, 3), dtype=np.int32)
        )
        if not len(pairs):
            return source, target
        order = np.argsort(target, kind="stable")
        start = np.searchsorted(target[order], np.arange(self.count + 1))
        count = start[pairs[:, 0] + 1] - start[pairs[:, 0]]
        pair_of_edge = np.repeat(np.arange(len(pairs)), count)
        place = (
            np.arange(len(pair_of_edge))
            - np.repeat(np.cumsum(count) - count, count)
            + start[pairs[pair_of_edge, 0]]
        )
        inherited = source[order][place]
        _, other_first, other_last = pairs[pair_of_edge].T
        outside = (inherited < other_first) | (inherited > other_last)
        before, after = (
            np.concatenate([source, inherited[outside]]).astype(np.int64),
            np.concatenate([target, other_first[outside]]),
        )
        before, after = np.divmod(distinct(before * self.count + after), self.count)
        return before.astype(np.int32), after.astype(np.int32)


def templates_and_instances(
    links: TaskGraphBuilder, *, meets: BoolArray
) -> tuple[Templates, Instances]:
    """Convert all tasks and edges to task templates and instances, with successors in CSR form.

    Args:
        meets: for the first tasks: True where one may run beside a gather or reduction of its
            devices.
    """
    source, target = links.edges()
    count = links.count
    templates, template = templates_of(links.parts)
    order = np.argsort(source, kind="stable")
    beside_sync = np.zeros(count, dtype=np.bool_)
    beside_sync[: len(meets)] = meets
    successor_start = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(source, minlength=count), out=successor_start[1:])
    instances = Instances(
        template=template,
        klass=links.column("klass"),
        stream=links.column("stream"),
        microbatch=links.column("microbatch"),
        beside_sync=beside_sync,
        indegree=np.bincount(target, minlength=count).astype(np.int32),
        successor_start=successor_start,
        successor=target[order],
    )
    for name in Instances.__slots__:
        getattr(instances, name).setflags(write=False)
    return templates, instances
