"""All tasks of a step as arrays, in the order in which their streams run them, and templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray, distinct
from shardwright.lazily_compiled_dataclass import dataclass


class TaskKind(IntEnum):
    """Kinds of task: actions of the order, sends, gathers, reductions and the update.

    The first five are actions of the order; the others cross stage borders and run on streams of
    their own.
    """

    F = 0
    I = 1  # noqa: E741 - PyTorch's letter
    W = 2
    B = 3
    R = 4
    SEND_F = 5
    SEND_B = 6
    GATHER = 7
    REDUCE = 8
    STEP = 9
    REDUCE_TIED = 10


class Stream(IntEnum):
    """Streams of a device: compute, sends forward and backward, and gradient synchronisation."""

    COMPUTE = 0
    SEND_F = 1
    SEND_B = 2
    SYNC = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """All tasks of a step as read-only arrays, one entry a task.

    Tasks of a device class stand in the order of its streams.

    Args:
        template: index into the Program's templates.
        klass: class of devices.
        stream: see Stream.
        microbatch: -1 for tasks of the whole step.
        beside_sync: an action that may run while a gather or reduction of its rank does (the order
            rules it out for the others).
        indegree, successor_start, successor: dependencies in CSR form (predecessor counts,
            successors).
    """

    template: Int32Array
    klass: Int32Array
    stream: Int32Array
    microbatch: Int32Array
    beside_sync: BoolArray
    indegree: Int32Array
    successor_start: Int32Array
    successor: Int32Array

    def __len__(self) -> int:
        return int(self.template.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The fields that all equal tasks share: kind, device class, lane, chunk, slice.

    Args:
        kind: see `TaskKind`.
        klass: class of devices.
        lane, chunk, slice: -1 where the task has none.
        edge: index of a send's edge, else -1.
        piece, pieces: a last backward, or a reduction, cut into buckets.
        early: its recompute is an action of its own.
        partner: (lane, chunk, kind, slice) of the action that the task runs overlapped with; None =
            it runs alone.
    """

    kind: TaskKind
    klass: int
    lane: int
    chunk: int
    slice: int
    edge: int
    piece: int
    pieces: int
    early: bool
    partner: tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """Task templates as read-only arrays, one entry a template.

    Fields as in `Template`, the partner's -1 where a task runs alone.
    """

    kind: IntArray
    klass: IntArray
    lane: IntArray
    chunk: IntArray
    slice: IntArray
    edge: IntArray
    piece: IntArray
    pieces: IntArray
    early: IntArray
    partner_lane: IntArray
    partner_chunk: IntArray
    partner_kind: IntArray
    partner_slice: IntArray

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, index: int) -> Template:
        kind, klass, lane, chunk, part, edge, piece, pieces, early, *partner = (
            int(getattr(self, f)[index]) for f in Templates.__slots__
        )
        return Template(
            kind=TaskKind(kind),
            klass=klass,
            lane=lane,
            chunk=chunk,
            slice=part,
            edge=edge,
            piece=piece,
            pieces=pieces,
            early=bool(early),
            partner=(partner[0], partner[1], partner[2], partner[3]) if partner[2] >= 0 else None,
        )

    def __iter__(self) -> Iterator[Template]:
        return (self[index] for index in range(len(self)))


Columns = Mapping[str, Int32Array | int]
"""Columns of consecutive tasks by name: one entry a task, or one value for all of them."""
NEUTRAL: Final = dict.fromkeys(
    ("lane", "chunk", "edge", "partner_lane", "partner_chunk", "partner_kind", "partner_slice"), -1
) | {"pieces": 1}
"""Value of a column that is not given, where it is not 0."""
_LEAST_TABLE: Final = 2**16
"""Entries that a table of codes may have for any number of tasks."""


def templates_of(parts: Sequence[tuple[int, Columns]]) -> tuple[Templates, Int32Array]:
    """The distinct templates among the tasks of `parts`, and each task's template index.

    Templates stand in the order of their fields.

    Args:
        parts: (number of tasks, their columns), one after the other.
    """
    ends = np.cumsum([count for count, _ in parts]).tolist()
    spans = [
        (slice(end - count, end), columns)
        for end, (count, columns) in zip(ends, parts, strict=True)
        if count
    ]
    code, codes = np.zeros(ends[-1], dtype=np.int64), 1
    most_codes = max(4 * len(code), _LEAST_TABLE)
    for name in Templates.__slots__:
        values = [(tasks, columns.get(name, NEUTRAL.get(name, 0))) for tasks, columns in spans]
        low, high = _extremes(values)
        width = high - low + 1
        if width == 1:
            continue
        if codes * width > most_codes:
            code, codes = _numbered_by_rank(code, codes, most_codes)
        code *= width
        for tasks, column in values:
            code[tasks] += column - low
        codes *= width
    template, count = _numbered_by_rank(code, codes, most_codes)
    first_task = np.empty(count, dtype=np.int64)
    first_task[template[::-1]] = np.arange(len(template) - 1, -1, -1)
    return _templates_of_tasks(spans, first_task), template.astype(np.int32)


def _extremes(values: Sequence[tuple[slice, Int32Array | int]]) -> tuple[int, int]:
    """The least and the largest value of a column that is given by parts."""
    extremes: list[int] = []
    for _, column in values:
        if isinstance(column, int):
            extremes.append(column)
        else:
            extremes += int(np.minimum.reduce(column)), int(np.maximum.reduce(column))
    return min(extremes), max(extremes)


def _numbered_by_rank(code: IntArray, codes: int, most_codes: int) -> tuple[IntArray, int]:
    """(rank of each code among the distinct ones, number of these); codes are below `codes`.

    A table of up to `most_codes` entries takes a tenth of the time of sorting.
    """
    if codes > most_codes:
        different, rank = np.unique(code, return_inverse=True)
        return rank.reshape(-1), len(different)
    exists = np.zeros(codes, dtype=np.bool_)
    exists[code] = True
    rank_of_code = np.cumsum(exists)
    return rank_of_code[code] - 1, int(rank_of_code[-1])


def _templates_of_tasks(spans: Sequence[tuple[slice, Columns]], chosen: IntArray) -> Templates:
    """Templates with the columns of the chosen tasks.

    Args:
        spans: (places of consecutive tasks, their columns).
    """
    table = {
        name: np.full(len(chosen), NEUTRAL.get(name, 0), dtype=np.int64)
        for name in Templates.__slots__
    }
    part_of_chosen = np.searchsorted([tasks.stop for tasks, _ in spans], chosen, side="right")
    for part in distinct(part_of_chosen).tolist():
        tasks, columns = spans[part]
        places = np.flatnonzero(part_of_chosen == part)
        for name in table.keys() & columns.keys():
            column = columns[name]
            table[name][places] = (
                column if isinstance(column, int) else column[chosen[places] - tasks.start]
            )
    for values in table.values():
        values.setflags(write=False)
    return Templates(**table)
