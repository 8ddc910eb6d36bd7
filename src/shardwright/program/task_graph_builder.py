"""Tasks and their dependencies while a Program is built.

Columns that grow by whole arrays, and edges between tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.arrays import BoolArray, IntArray, distinct
from shardwright.program.task_kind_stream_and_dependency_arrays import (
    Instances,
    Templates,
    templates_of,
)

_NONE = dict.fromkeys(
    ("lane", "chunk", "edge", "partner_lane", "partner_chunk", "partner_kind", "partner_slice"), -1
) | {"pieces": 1}
"""Neutral value of each column where it is not 0."""


class TaskGraphBuilder:
    """Builder of a task graph: tasks as columns, edges, and tasks that start together."""

    def __init__(self, columns: dict[str, IntArray]) -> None:
        self._parts: list[tuple[int, Mapping[str, IntArray | int]]] = [
            (len(columns["kind"]), columns)
        ]
        self._count = len(columns["kind"])
        self._source: list[IntArray] = []
        self._target: list[IntArray] = []
        self._together: list[IntArray] = []

    def tasks(self, count: int, **columns: IntArray | int) -> IntArray:
        """Append `count` tasks, with neutral values in missing columns, and return their numbers.

        A column that is not given has its neutral value.
        """
        self._parts.append((count, columns))
        self._count += count
        return np.arange(self._count - count, self._count, dtype=np.int64)

    def add(self, before: IntArray, after: IntArray) -> None:
        """Add an edge from each task of `before` to the task at its place in `after`.

        Arrays of one shape; -1 on either side is no task.
        """
        exist = (before >= 0) & (after >= 0)
        self._source.append(before[exist])
        self._target.append(after[exist])

    def start_together(self, pairs: IntArray) -> None:
        """Store (n, 3) rows: a task, and first and last task of the action that starts with it."""
        self._together.append(pairs)

    def columns(self) -> dict[str, IntArray]:
        """All tasks as full columns, one entry a task."""
        table = {
            name: np.full(self._count, _NONE.get(name, 0), dtype=np.int64)
            for name in self._parts[0][1]
        }
        end = 0
        for count, columns in self._parts:
            end += count
            for name, values in columns.items():
                table[name][end - count : end] = values
        return table

    def edges(self) -> tuple[IntArray, IntArray]:
        """(source, target) task numbers of all edges, with those inherited by starting together.

        A task that starts together with another also waits for the tasks that the other waits for.

        Tasks of the other action itself, which may be in pieces, are left out: they only lay the
        two one after the other.
        """
        source, target = np.concatenate(self._source), np.concatenate(self._target)
        pairs = (
            np.concatenate(self._together) if self._together else np.zeros((0, 3), dtype=np.int64)
        )
        if not len(pairs):
            return source, target
        order = np.argsort(target, kind="stable")
        start = np.searchsorted(target[order], np.arange(self._count + 1))
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
        codes = np.concatenate(
            [source * self._count + target, inherited[outside] * self._count + other_first[outside]]
        )
        return np.divmod(distinct(codes), self._count)


def templates_and_instances(
    links: TaskGraphBuilder, *, meets: BoolArray
) -> tuple[Templates, Instances]:
    """Convert all tasks and edges to task templates and instances, with successors in CSR form.

    Args:
        meets: for the first tasks: True where one may run beside a gather or reduction of its
            devices.
    """
    columns = links.columns()
    source, target = links.edges()
    count = len(columns["kind"])
    stream, microbatch = columns.pop("stream"), columns.pop("microbatch")
    templates, template = templates_of(columns)
    order = np.argsort(source, kind="stable")
    beside_sync = np.zeros(count, dtype=np.bool_)
    beside_sync[: len(meets)] = meets
    instances = Instances(
        template=template.astype(np.int32),
        klass=columns["klass"].astype(np.int32),
        stream=stream.astype(np.int32),
        microbatch=microbatch.astype(np.int32),
        beside_sync=beside_sync,
        indegree=np.bincount(target, minlength=count).astype(np.int32),
        successor_start=np.concatenate(
            [[0], np.cumsum(np.bincount(source, minlength=count))]
        ).astype(np.int32),
        successor=target[order].astype(np.int32),
    )
    for name in Instances.__slots__:
        getattr(instances, name).setflags(write=False)
    return templates, instances
