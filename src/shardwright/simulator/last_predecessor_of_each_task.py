"""The predecessor of each task of a simulated step that finishes last, for which the task waits."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import IntArray
from shardwright.program.lowered_program import Program

NO_TASK: Final = -1
"""Predecessor of a task that waits for no other task."""


def last_predecessors(program: Program, finish: IntArray) -> IntArray:
    """(tasks,) index of the predecessor, its stream's included, that finishes last; -1 = none.

    The task before it on its stream is a predecessor too. Of several that finish at the same
    instant the result is the task before it on its stream, if that is one of them.

    Args:
        finish: picoseconds of each task, from the simulation.
    """
    instances = program.instances
    count = len(instances)
    source = np.repeat(np.arange(count), np.diff(instances.successor_start))
    target = instances.successor.astype(np.int64)
    order = np.lexsort((np.arange(count), instances.stream, instances.klass))
    same_stream = (instances.klass[order][1:] == instances.klass[order][:-1]) & (
        instances.stream[order][1:] == instances.stream[order][:-1]
    )
    source, target = (
        np.concatenate([source, order[:-1][same_stream]]),
        np.concatenate([target, order[1:][same_stream]]),
    )
    by_finish = np.lexsort((finish[source], target))
    last_predecessor = np.full(count, NO_TASK, dtype=np.int64)
    last_predecessor[target[by_finish]] = source[by_finish]
    return last_predecessor
