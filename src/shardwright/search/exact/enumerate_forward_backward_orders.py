"""All static orders of a pipeline of disjoint stages, and the step time under each order.

A stage's order is the sequence of its forwards and backwards; microbatches keep the order of their
numbers in both. This loses no better plan (exchange argument): take any orders of all stages with
their start times. Rename on each stage the microbatch of the k-th forward to k, and of the k-th
backward to k. All start times may stay, since k forwards (backwards) started on a stage need k
distinct ones finished at their source, so the k-th finish there is early enough. Kinds keep their
places, so memory is the same. The argument holds for actions of equal length for all microbatches
and uncontended links; that contention does not change it is tested, not proven.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, product

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray
from shardwright.errors import StrategyError
from shardwright.kernel_compilation import compiled
from shardwright.simulator.kernel.event_kernel import run_events
from shardwright.simulator.kernel.longest_path import longest_path

MAX_ORDERS = 1_000_000
"""Largest number of orders of a shape that are listed."""


@lru_cache(maxsize=64)
def stage_orders(microbatches: int) -> tuple[tuple[int, ...], ...]:
    """Every order of one stage's m forwards (0 .. m - 1) and m backwards (m .. 2 m - 1).

    A microbatch's backward follows its forward.
    """
    orders: list[tuple[int, ...]] = []

    def walk(done: tuple[int, ...], forwards: int, backwards: int) -> None:
        """Append all completions of a partial order."""
        if backwards == microbatches:
            orders.append(done)
            return
        if forwards < microbatches:
            walk((*done, forwards), forwards + 1, backwards)
        if backwards < forwards:
            walk((*done, microbatches + backwards), forwards, backwards + 1)

    walk((), 0, 0)
    return tuple(orders)


def in_flight(order: tuple[int, ...], microbatches: int) -> int:
    """Most microbatches in flight in one stage's order: forward done, backward not done."""
    return int(max(accumulate(1 if action < microbatches else -1 for action in order)))


@lru_cache(maxsize=64)
def pipeline_orders(stages: int, microbatches: int) -> tuple[IntArray, IntArray]:
    """(orders, stages, 2 m) deadlock-free orders of a chain, and (orders, stages) peak in flight.

    Returns:
        (orders, stages, 2 m) actions, and (orders, stages) most microbatches in flight.

    Raises:
        StrategyError: more than MAX_ORDERS combinations (rule ``search.orders``).
    """
    single = stage_orders(microbatches)
    if len(single) ** stages > MAX_ORDERS:
        raise StrategyError(
            f"{len(single)} ** {stages} orders of {stages} stages and {microbatches} microbatches",
            hint=f"at most {MAX_ORDERS} are listed: fewer microbatches or stages",
            rule="search.orders",
        )
    peak = [in_flight(order, microbatches) for order in single]
    deadlock_free = [
        chosen
        for chosen in product(range(len(single)), repeat=stages)
        if _completes([single[i] for i in chosen], microbatches)
    ]
    actions = np.array([[single[i] for i in chosen] for chosen in deadlock_free], dtype=np.int64)
    return actions, np.array(
        [[peak[i] for i in chosen] for chosen in deadlock_free], dtype=np.int64
    )


def num_orders(stages: int, microbatches: int) -> int:
    """Number of combinations of stage orders, including deadlocked combinations."""
    count: int = len(stage_orders(microbatches)) ** stages
    return count


def _completes(orders: list[tuple[int, ...]], microbatches: int) -> bool:
    """True if a chain of stages completes these orders without a deadlock."""
    place = [0] * len(orders)
    done: set[tuple[int, int]] = set()
    progressed = True
    while progressed:
        progressed = False
        for stage, order in enumerate(orders):
            while place[stage] < len(order):
                action = order[place[stage]]
                source = stage - 1 if action < microbatches else stage + 1
                if 0 <= source < len(orders) and (source, action) not in done:
                    break
                done.add((stage, action))
                place[stage] += 1
                progressed = True
    return all(p == len(order) for p, order in zip(place, orders, strict=True))


@compiled
def _links(
    base: IntArray,
    order: IntArray,
    stage_of: IntArray,
    coupled: BoolArray,
    first: IntArray,
    last: IntArray,
    send: IntArray,
    blocking: bool,
) -> IntArray:
    """(links, 2) dependencies of a shape's tasks: `base` ones, and those of one order a stage.

    An order ends with -1 if it has fewer actions than the longest.
    """
    classes, actions = first.shape
    found = np.empty((base.shape[0] + 2 * classes * classes * actions, 2), np.int64)
    count = base.shape[0]
    for link in range(count):
        found[link, 0], found[link, 1] = base[link, 0], base[link, 1]
    for one in range(classes):
        row = order[stage_of[one]]
        for place in range(1, actions):
            before, after = row[place - 1], row[place]
            if after < 0:
                break
            for other in range(classes):
                if coupled[one, other]:
                    found[count, 0], found[count, 1] = last[one, before], first[other, after]
                    count += 1
                    if blocking and send[one, before] >= 0:
                        found[count, 0], found[count, 1] = send[one, before], first[other, after]
                        count += 1
    return found[:count]


@compiled
def _contended(
    work: IntArray,
    indegree: Int32Array,
    successor_start: Int32Array,
    successor: Int32Array,
    use_start: Int32Array,
    use_resource: Int32Array,
    use_weight: Int32Array,
    num_resources: int,
) -> IntArray:
    """Finish picoseconds of each task with shared resources, by the event kernel."""
    capacity = work.size + 1
    wide, narrow = np.empty((4, capacity), np.int64), np.empty((5, capacity), np.int32)
    slots, loads = np.empty((capacity, 8), np.int64), np.empty((num_resources, 4), np.int64)
    changed, uses = np.empty(num_resources, np.int32), np.empty((use_resource.size, 3), np.int32)
    start, finish, arrival, key = wide[0, : work.size], wide[1, : work.size], wide[2], wide[3]
    waiting, done, arriving, item, spare = narrow[0], narrow[1], narrow[2], narrow[3], narrow[4]
    inputs = work, indegree, successor_start, successor, use_start, use_resource, use_weight
    run_events(
        *inputs,
        start,
        finish,
        waiting,
        done,
        arrival,
        arriving,
        key,
        item,
        spare,
        slots,
        loads,
        changed,
        uses,
    )
    return finish


@compiled
def finish_times(
    orders: IntArray,
    base: IntArray,
    stage_of: IntArray,
    coupled: BoolArray,
    first: IntArray,
    last: IntArray,
    send: IntArray,
    blocking: bool,
    work: IntArray,
    use_start: Int32Array,
    use_resource: Int32Array,
    use_weight: Int32Array,
    num_resources: int,
    contended: bool,
) -> IntArray:
    """Last finish in picoseconds by order, contended or longest path; -1 if a task never starts."""
    tasks = work.size
    result = np.empty(orders.shape[0], np.int64)
    for number in range(orders.shape[0]):
        links = _links(base, orders[number], stage_of, coupled, first, last, send, blocking)
        start, indegree = np.zeros(tasks + 1, np.int32), np.zeros(tasks, np.int32)
        for link in range(links.shape[0]):
            start[links[link, 0] + 1] += 1
            indegree[links[link, 1]] += 1
        for task in range(tasks):
            start[task + 1] += start[task]
        after, place = np.empty(links.shape[0], np.int32), start.copy()
        for link in range(links.shape[0]):
            after[place[links[link, 0]]] = links[link, 1]
            place[links[link, 0]] += 1
        if contended:
            finish = _contended(
                work, indegree, start, after, use_start, use_resource, use_weight, num_resources
            )
        else:
            _, finish = longest_path(work, indegree, start, after)
        result[number] = finish.max() if finish.min() >= 0 else -1
    return result
