"""What each kind of device does in a step, and which kind it waits for."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.graph import groups_of
from shardwright.program.instances import Stream
from shardwright.program.program import Program
from shardwright.simulator.prediction import KindTimes
from shardwright.simulator.simulate import SimulatedPlan
from shardwright.units import PICOSECONDS_PER_SECOND

LINKS: Final = "links"
"""What is waited for where nothing computes: messages, gathers and sums of gradients."""
_NONE: Final = -1


def kind_names(cluster: Cluster) -> tuple[str, ...]:
    """The kind of each node group: its accelerator, and its zone where there are several."""
    several = len(cluster.zones) > 1
    return tuple(
        f"{g.kind.accelerator.name}{f'@{g.zone}' if several else ''}" for g in cluster.groups
    )


def kind_times(cluster: Cluster, result: SimulatedPlan) -> tuple[KindTimes, ...]:
    """The step of the mean device of each kind: seconds in which it is busy, and seconds in which
    it waits, by what for.

    A device waits while its compute stream runs nothing. What for is read off the chain of tasks
    that held it up: from what it does next back along the task that each one began behind, as far
    as the wait reaches. Seconds in which that chain computes are waits for the kind that computes,
    its own included (another stage of it); the others are waits for `LINKS`. Busy seconds, waits
    and jitter add up to the step. Left out: waiting inside actions, for collectives in a stage.
    """
    program, timeline = result.program, result.timeline
    names = kind_names(cluster)
    kinds = list(dict.fromkeys(names))
    group = groups_of(
        cluster, np.array([one.devices.first for one in program.classes], dtype=np.int64)
    )
    kind_of = np.array([kinds.index(names[g]) for g in group.tolist()], dtype=np.int64)
    counts = np.array([len(one.devices) for one in program.classes], dtype=np.float64)
    busy, waits = _seconds(program, timeline.start, timeline.finish, kind_of, num_kinds=len(kinds))
    found = []
    for kind, name in enumerate(kinds):
        mine = kind_of == kind
        devices = float(counts[mine].sum())
        if devices:
            share = counts[mine] / devices
            each = share @ waits[mine]
            found.append(
                KindTimes(
                    name=name,
                    devices=int(devices),
                    busy_s=float(share @ busy[mine]),
                    waits_s=tuple(
                        (what, float(seconds))
                        for what, seconds in zip([*kinds, LINKS], each, strict=True)
                        if seconds > 0
                    ),
                )
            )
    return tuple(found)


def _seconds(
    program: Program, start: IntArray, finish: IntArray, kind_of: IntArray, *, num_kinds: int
) -> tuple[FloatArray, FloatArray]:
    """(classes,) busy seconds, and (classes, kinds + 1) seconds of waiting for each kind and for
    links.
    """
    klass = program.templates.klass[program.instances.template]
    acts = program.instances.stream == int(Stream.COMPUTE)
    before = _held_by(program, klass, finish)
    cause = np.where(acts, kind_of[klass], num_kinds)
    waits = np.zeros((len(kind_of), num_kinds + 1))
    busy = np.zeros(len(kind_of))
    end, last = int(finish.max()), int(finish.argmax())
    for number in range(len(kind_of)):
        mine = np.flatnonzero(acts & (klass == number))
        mine = mine[np.argsort(start[mine], kind="stable")]
        done = np.concatenate([[0], np.maximum.accumulate(finish[mine])])
        begun = np.concatenate([start[mine], [end]])
        # Behind its last action a device waits for whatever ends the step.
        behind = np.concatenate([before[mine], [last]])
        gaps = np.flatnonzero(begun > done)
        waits[number] = _causes(
            behind[gaps], done[gaps], begun[gaps], before, start, finish, cause, num_kinds=num_kinds
        )
        busy[number] = end - float((begun - done)[gaps].sum())
    return busy / PICOSECONDS_PER_SECOND, waits / PICOSECONDS_PER_SECOND


def _causes(
    task: IntArray,
    low: IntArray,
    high: IntArray,
    before: IntArray,
    start: IntArray,
    finish: IntArray,
    cause: IntArray,
    *,
    num_kinds: int,
) -> FloatArray:
    """(kinds + 1,) picoseconds of some waits, each from `low` to `high`, by the cause of the tasks
    that end in `task`.
    """
    found = np.zeros(num_kinds + 1)
    while len(task):
        known = task != _NONE
        found[num_kinds] += float((high - low)[~known].sum())
        task, low, high = task[known], low[known], high[known]
        ended = np.clip(finish[task], low, high)
        begun = np.clip(start[task], low, ended)
        found[num_kinds] += float((high - ended).sum())
        np.add.at(found, cause[task], (ended - begun).astype(np.float64))
        left = begun > low
        task, low, high = before[task[left]], low[left], begun[left]
    return found


def _held_by(program: Program, klass: IntArray, finish: IntArray) -> IntArray:
    """(tasks,) of the tasks that each one waits for, those before it on its stream included, the
    one that ends last; -1 = none.
    """
    instances = program.instances
    count = len(instances)
    source = np.repeat(np.arange(count), np.diff(instances.successor_start))
    target = instances.successor.astype(np.int64)
    order = np.lexsort((np.arange(count), instances.stream, klass))
    same = (klass[order][1:] == klass[order][:-1]) & (
        instances.stream[order][1:] == instances.stream[order][:-1]
    )
    source, target = (
        np.concatenate([source, order[:-1][same]]),
        np.concatenate([target, order[1:][same]]),
    )
    ranked = np.lexsort((finish[source], target))
    held = np.full(count, _NONE, dtype=np.int64)
    held[target[ranked]] = source[ranked]
    return held
