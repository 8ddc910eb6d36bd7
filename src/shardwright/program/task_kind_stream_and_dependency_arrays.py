"""All tasks of a step as arrays, in the order in which their streams run them, and templates."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray
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


def templates_of(columns: dict[str, IntArray]) -> tuple[Templates, IntArray]:
    """The distinct templates among the tasks' `columns`, and each task's template index.

    `columns` have one entry a task.
    """
    code = np.zeros(len(columns["kind"]), dtype=np.int64)
    code_limit = 2**62
    for name in Templates.__slots__:
        values = columns[name] + 1
        width = int(values.max(initial=0)) + 1
        if code_limit < width:
            _, code = np.unique(code, return_inverse=True)
            code_limit = 2**62 // (int(code.max(initial=0)) + 1)
        code, code_limit = code * width + values, code_limit // width
    _, first_task, template = np.unique(code, return_index=True, return_inverse=True)
    templates = Templates(**{name: columns[name][first_task] for name in Templates.__slots__})
    for name in Templates.__slots__:
        getattr(templates, name).setflags(write=False)
    return templates, template.reshape(-1).astype(np.int64)
