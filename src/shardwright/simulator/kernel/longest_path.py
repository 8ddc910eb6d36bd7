"""The longest path through a graph of tasks, on the integer clock of the event kernel."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Int32Array, IntArray
from shardwright.kernel_compilation import compiled
from shardwright.simulator.kernel.fixed_width_kernel_arguments import mark_stuck


@compiled
def longest_path(
    work: IntArray, indegree: Int32Array, successor_start: Int32Array, successor: Int32Array
) -> tuple[IntArray, IntArray]:
    """Earliest start and finish picoseconds of each task, resources unlimited; -1 = never ready.

    start = max over predecessors of finish, finish = start + work.

    Args:
        work: picoseconds, at least 0, shape (tasks,).
        indegree: number of predecessors, shape (tasks,).
        successor_start, successor: CSR of successors, shapes (tasks + 1,) and (edges,).

    Returns:
        start, finish: picoseconds, shape (tasks,); -1 for tasks that never become ready (on a cycle
            or after one).
    """
    num_tasks = work.size
    start, finish = np.zeros(num_tasks, np.int64), np.full(num_tasks, -1, np.int64)
    waiting = indegree.copy()
    done = np.empty(num_tasks + 1, np.int32)
    num_done = 0
    for task in range(num_tasks):
        if indegree[task] == 0:
            done[num_done] = task
            num_done += 1
    told = 0
    while told < num_done:
        task = done[told]
        told += 1
        now = start[task] + work[task]
        finish[task] = now
        for edge in range(successor_start[task], successor_start[task + 1]):
            after = successor[edge]
            if start[after] < now:
                start[after] = now
            waiting[after] -= 1
            if waiting[after] == 0:
                done[num_done] = after
                num_done += 1
    mark_stuck(waiting, start)
    return start, finish
