"""The event kernel: tasks with dependencies that share resources, on an integer clock.

It has no domain knowledge.

Time and work are int64 picoseconds, loads and weights are fixed-point numbers with `SCALE` for a
whole resource. All arithmetic is integer, so the results are the same with and without numba, and
do not depend on the numbering of tasks or resources.

A task starts when its predecessors have finished (a stream's order is a chain of dependencies).
While it runs it adds its weights to the loads of its resources, and it advances at::

    rate = min(1, min over its resources of SCALE / load)

so resources are shared in proportion, and weights that add up to at most SCALE do not slow each
other. A rate changes only at an instant at which a load changes; then ``remaining -= floor(elapsed
SCALE / load)`` and ``finish = now + ceil(remaining load / SCALE)``. All events of one instant are
applied before any rate is renewed, so the order inside an instant has no effect, and one task of
weight k w equals exactly k copies of weight w.

Left out: rates given back by a task that is held up elsewhere (max-min fairness), preemption,
priorities.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Int32Array, IntArray
from shardwright.kernel_compilation import allocation_free, inlined, inner
from shardwright.simulator.kernel.fixed_width_kernel_arguments import (
    check_rows,
    fixed32,
    fixed64,
    mark_stuck,
)
from shardwright.simulator.kernel.task_heaps import PLACE, pop, push, sift_down, sift_up

Integer = int | np.signedinteger[Any]

SCALE: Final = 2**14 * 3**3 * 5 * 7
"""Load of a fully used resource. The shares of 8, 12, 36 or 72 devices divide it, so that equal
shares add up."""


_NEVER: Final = np.int64(2**63 - 1)

# State is packed into few arrays of plain integers: tuples of arrays cost ten times the work they
# hold. A running task has a slot, with columns: the task, work left at the instant SINCE, the
# highest load it has been under since then, and its place in the heap of finishes.
_TASK, _LEFT, _SINCE, _SLOWEST = range(4)
# A resource has a load, the load before the turn CHANGED_IN, and the first of the uses that load it
# now. An instant has a further turn where a task's rest is rounded to nothing as its rate changes.
_LOAD, _BEFORE, _CHANGED_IN, _FIRST = range(4)
# A use has the slot of its task, and the next and previous use of the same resource.
_SLOT, _NEXT, _PREVIOUS = range(3)


@inlined
def _seed(
    work: IntArray,
    start: IntArray,
    finish: IntArray,
    waiting: Int32Array,
    indegree: Int32Array,
    use_start: Int32Array,
    done: Int32Array,
    arrival: IntArray,
    arriving: Int32Array,
) -> tuple[int, int]:
    """Queue tasks without predecessors at instant 0, or finish them; return (queued, finished).

    Return the numbers of both. A heap of equal instants is in order for every order of insertion.
    """
    num_arriving, num_done = 0, 0
    for task in range(work.size):
        start[task], finish[task], waiting[task] = 0, -1, indegree[task]
        if waiting[task] == 0:
            if use_start[task] == use_start[task + 1] or work[task] == 0:
                finish[task] = work[task]
                done[num_done] = task
                num_done += 1
            else:
                arrival[num_arriving], arriving[num_arriving] = 0, task
                num_arriving += 1
    return num_arriving, num_done


@inlined
def _settle(
    work: IntArray,
    start: IntArray,
    finish: IntArray,
    waiting: Int32Array,
    edge_start: Int32Array,
    edge: Int32Array,
    use_start: Int32Array,
    done: Int32Array,
    arrival: IntArray,
    arriving: Int32Array,
    num_arriving: int,
    num_done: int,
    num_told: int,
) -> tuple[int, int]:
    """Release successors of newly finished tasks; return (tasks in arrival heap, finished tasks).

    A task without resources (or work) needs no event: its finish follows from its start, even if
    both are later than the clock.
    """
    while num_told < num_done:
        task = done[num_told]
        num_told += 1
        now = finish[task]
        for place in range(edge_start[task], edge_start[task + 1]):
            after = edge[place]
            if start[after] < now:
                start[after] = now
            waiting[after] -= 1
            if waiting[after] == 0:
                if use_start[after] == use_start[after + 1] or work[after] == 0:
                    finish[after] = start[after] + work[after]
                    done[num_done] = after
                    num_done += 1
                else:
                    push(arrival, arriving, num_arriving, start[after], after)
                    num_arriving += 1
    return num_arriving, num_done


@inlined
def _load(
    task: Integer,
    slot: Integer,
    turn: int,
    use_start: Int32Array,
    use_resource: Int32Array,
    use_weight: Int32Array,
    uses: Int32Array,
    resources: IntArray,
    changed: Int32Array,
    num_changed: int,
) -> int:
    """Add a task's weights to its resources; return the number of changed resources this turn."""
    for use in range(use_start[task], use_start[task + 1]):
        resource = use_resource[use]
        if resources[resource, _CHANGED_IN] != turn:
            resources[resource, _CHANGED_IN] = turn
            resources[resource, _BEFORE] = resources[resource, _LOAD]
            changed[num_changed] = resource
            num_changed += 1
        resources[resource, _LOAD] += use_weight[use]
        head = resources[resource, _FIRST]
        uses[use, _SLOT] = slot
        uses[use, _NEXT] = head
        uses[use, _PREVIOUS] = -1
        if head >= 0:
            uses[head, _PREVIOUS] = use
        resources[resource, _FIRST] = use
    return num_changed


@inlined
def _unload(
    task: Integer,
    turn: int,
    use_start: Int32Array,
    use_resource: Int32Array,
    use_weight: Int32Array,
    uses: Int32Array,
    resources: IntArray,
    changed: Int32Array,
    num_changed: int,
) -> int:
    """Subtract a task's weights from its resources; return the number of changed resources."""
    for use in range(use_start[task], use_start[task + 1]):
        resource = use_resource[use]
        if resources[resource, _CHANGED_IN] != turn:
            resources[resource, _CHANGED_IN] = turn
            resources[resource, _BEFORE] = resources[resource, _LOAD]
            changed[num_changed] = resource
            num_changed += 1
        resources[resource, _LOAD] -= use_weight[use]
        before, after = uses[use, _PREVIOUS], uses[use, _NEXT]
        if before >= 0:
            uses[before, _NEXT] = after
        else:
            resources[resource, _FIRST] = after
        if after >= 0:
            uses[after, _PREVIOUS] = before
    return num_changed


@inner
def _renew(
    slot: Integer,
    now: Integer,
    use_start: Int32Array,
    use_resource: Int32Array,
    resources: IntArray,
    slots: IntArray,
    key: IntArray,
    item: Int32Array,
    size: int,
) -> None:
    """Set the rate of the task in `slot` from its resources' loads, and move its finish."""
    task, old = slots[slot, _TASK], slots[slot, _SLOWEST]
    slowest = np.int64(SCALE)
    for use in range(use_start[task], use_start[task + 1]):
        slowest = max(slowest, resources[use_resource[use], _LOAD])
    if slowest != old:
        # whole and rest apart, because elapsed * SCALE would overflow after some minutes
        elapsed = now - slots[slot, _SINCE]
        left = slots[slot, _LEFT] - (elapsed // old) * SCALE - (elapsed % old) * SCALE // old
        slots[slot, _LEFT] = left
        slots[slot, _SINCE] = now
        slots[slot, _SLOWEST] = slowest
        place = slots[slot, PLACE]
        before, key[place] = (
            key[place],
            now + (left // SCALE) * slowest - (-(left % SCALE) * slowest // SCALE),
        )
        # Not by the rates: what is rounded may end a picosecond later at a higher one.
        if key[place] < before:
            sift_up(key, item, slots, place)
        else:
            sift_down(key, item, slots, size, place)


@allocation_free
def run_events(
    work: IntArray,
    indegree: Int32Array,
    edge_start: Int32Array,
    edge: Int32Array,
    use_start: Int32Array,
    use_resource: Int32Array,
    use_weight: Int32Array,
    start: IntArray,
    finish: IntArray,
    waiting: Int32Array,
    done: Int32Array,
    arrival: IntArray,
    arriving: Int32Array,
    key: IntArray,
    item: Int32Array,
    spare: Int32Array,
    slots: IntArray,
    resources: IntArray,
    changed: Int32Array,
    uses: Int32Array,
) -> int:
    """Run the event loop of `simulate` on checked arrays; return the number of finished tasks.

    The results are written into `start` and `finish`.

    Args:
        waiting, done, arrival, arriving, key, item, spare: working space, shape (tasks + 1,).
        slots: working space, (tasks + 1, 8).
        resources: working space, (resources, 4).
        changed: working space, (resources,).
        uses: working space, (uses, 3).
    """
    size, num_spare, turn = 0, 0, 0
    for resource in range(changed.size):
        (
            resources[resource, _LOAD],
            resources[resource, _CHANGED_IN],
            resources[resource, _FIRST],
        ) = (
            0,
            -1,
            -1,
        )
    num_arriving, num_done = _seed(
        work, start, finish, waiting, indegree, use_start, done, arrival, arriving
    )
    now, num_told = np.int64(0), 0
    while True:
        num_changed, turn = 0, turn + 1
        while size > 0 and key[0] == now:
            slot = item[0]
            task = slots[slot, _TASK]
            spare[num_spare] = slot
            num_spare += 1
            num_changed = _unload(
                task,
                turn,
                use_start,
                use_resource,
                use_weight,
                uses,
                resources,
                changed,
                num_changed,
            )
            size -= 1
            if size > 0:
                key[0], item[0] = key[size], item[size]
                sift_down(key, item, slots, size, 0)
            finish[task] = now
            done[num_done] = task
            num_done += 1
        num_arriving, num_done = _settle(
            work,
            start,
            finish,
            waiting,
            edge_start,
            edge,
            use_start,
            done,
            arrival,
            arriving,
            num_arriving,
            num_done,
            num_told,
        )
        num_told = num_done
        while num_arriving > 0 and arrival[0] == now:
            task = arriving[0]
            num_arriving -= 1
            pop(arrival, arriving, num_arriving)
            slot = size
            if num_spare > 0:
                num_spare -= 1
                slot = spare[num_spare]
            slots[slot, _TASK], slots[slot, _LEFT], slots[slot, _SINCE], slots[slot, _SLOWEST] = (
                task,
                work[task],
                now,
                SCALE,
            )
            num_changed = _load(
                task,
                slot,
                turn,
                use_start,
                use_resource,
                use_weight,
                uses,
                resources,
                changed,
                num_changed,
            )
            key[size], item[size] = now + work[task], slot
            sift_up(key, item, slots, size)
            size += 1
        for place in range(num_changed):
            resource = changed[place]
            if max(resources[resource, _LOAD], resources[resource, _BEFORE]) > SCALE:
                use = resources[resource, _FIRST]
                while use >= 0:
                    _renew(
                        uses[use, _SLOT],
                        now,
                        use_start,
                        use_resource,
                        resources,
                        slots,
                        key,
                        item,
                        size,
                    )
                    use = uses[use, _NEXT]
        if size == 0 and num_arriving == 0:
            break
        now = min(key[0] if size > 0 else _NEVER, arrival[0] if num_arriving > 0 else _NEVER)
    mark_stuck(waiting, start)
    return num_done


def simulate(
    work: npt.ArrayLike,
    indegree: npt.ArrayLike,
    successor_start: npt.ArrayLike,
    successor: npt.ArrayLike,
    use_start: npt.ArrayLike,
    use_resource: npt.ArrayLike,
    use_weight: npt.ArrayLike,
    num_resources: int,
) -> tuple[IntArray, IntArray, int]:
    """Start and finish picoseconds of each task on shared resources, and number of finished tasks.

    The module's docstring has the rule.

    Args:
        work: picoseconds alone on its resources, at least 0, shape (tasks,).
        indegree, successor_start, successor: as `longest_path`.
        use_start, use_resource, use_weight: CSR of the resources that a task loads while it runs,
            and the load in units of 1 / SCALE (at least 0).
        num_resources: number of resources.

    Returns:
        start, finish: picoseconds, shape (tasks,); -1 for tasks that never become ready. Then the
            number of finished tasks: fewer than all tasks means deadlock.
    """
    fixed_work, fixed_indegree = fixed64(work), fixed32(indegree)
    start, after = fixed32(successor_start), fixed32(successor)
    uses, resource, weight = fixed32(use_start), fixed32(use_resource), fixed32(use_weight)
    check_rows(start, fixed_work.size, after, fixed_work.size)
    check_rows(uses, fixed_work.size, resource, num_resources)
    assert fixed_indegree.size == fixed_work.size
    assert weight.size == resource.size
    num_tasks, capacity = fixed_work.size, fixed_work.size + 1
    begun, ended = np.empty(num_tasks, np.int64), np.empty(num_tasks, np.int64)
    # Two large blocks, of which only the used part is touched: the allocator keeps them between
    # calls instead of faulting pages in again.
    wide, narrow = np.empty(10 * capacity, np.int64), np.empty(5 * capacity, np.int32)
    arrival, key, slots = (
        wide[:capacity],
        wide[capacity : 2 * capacity],
        wide[2 * capacity :].reshape(capacity, 8),
    )
    waiting, done, arriving, item, spare = narrow.reshape(5, capacity)
    loads, changed = np.empty((num_resources, 4), np.int64), np.empty(num_resources, np.int32)
    inputs = fixed_work, fixed_indegree, start, after, uses, resource, weight
    heaps = arrival, arriving, key, item, spare, slots
    finished = run_events(
        *inputs,
        begun,
        ended,
        waiting,
        done,
        *heaps,
        loads,
        changed,
        np.empty((resource.size, 3), np.int32),
    )
    return begun, ended, finished
