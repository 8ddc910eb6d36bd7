"""All tasks of a step as arrays, in the order in which their streams run them."""

from __future__ import annotations

from enum import IntEnum

from shardwright.arrays import BoolArray, Int32Array
from shardwright.lazy_dataclass import dataclass


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
