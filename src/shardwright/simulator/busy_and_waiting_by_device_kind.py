"""Busy and waiting seconds of each kind of device in a step, by the cause of the wait."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_network_levels import node_group_numbers
from shardwright.program.lowered_program import Program
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream
from shardwright.simulator.last_predecessor_of_each_task import NO_TASK, last_predecessors
from shardwright.simulator.prediction import KindTimes
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.units import PICOSECONDS_PER_SECOND

LINKS: Final = "links"
"""Cause of waits while no device computes: messages, gathers and gradient reductions."""


def kind_names(cluster: Cluster) -> tuple[str, ...]:
    """Name of each node group's kind: its accelerator, and its zone if there are several zones."""
    has_zones = len(cluster.zones) > 1
    return tuple(
        f"{g.kind.accelerator.name}{f'@{g.zone}' if has_zones else ''}" for g in cluster.groups
    )


def kind_times(cluster: Cluster, simulated: SimulatedPlan) -> tuple[KindTimes, ...]:
    """Mean busy seconds of a device of each kind, and its mean waits by cause: a kind, or links.

    A device waits while its compute stream runs nothing. The cause is found by walking back from
    the device's next task along the chain of tasks that each started last before it, as far as the
    wait reaches. Seconds in which a task of that chain computes are waits for the kind that
    computes, which may be the device's own kind (another stage); the other seconds are waits for
    `LINKS`. Busy seconds, waits and jitter add up to the step. Waits inside actions, for
    collectives in a stage, are left out.
    """
    program, timeline = simulated.program, simulated.timeline
    names = kind_names(cluster)
    kinds = list(dict.fromkeys(names))
    group = node_group_numbers(
        cluster,
        np.array([device_class.devices.first for device_class in program.classes], dtype=np.int64),
    )
    kind_of = np.array([kinds.index(names[g]) for g in group.tolist()], dtype=np.int64)
    counts = np.array(
        [len(device_class.devices) for device_class in program.classes], dtype=np.float64
    )
    busy, waits = _busy_and_waiting(
        program, timeline.start, timeline.finish, kind_of, num_device_kinds=len(kinds)
    )
    times_of_kinds = []
    for kind, name in enumerate(kinds):
        of_kind = kind_of == kind
        devices = float(counts[of_kind].sum())
        if devices:
            share = counts[of_kind] / devices
            waits_of_kind = share @ waits[of_kind]
            times_of_kinds.append(
                KindTimes(
                    name=name,
                    devices=int(devices),
                    busy_s=float(share @ busy[of_kind]),
                    waits_s=tuple(
                        (cause, float(seconds))
                        for cause, seconds in zip([*kinds, LINKS], waits_of_kind, strict=True)
                        if seconds > 0
                    ),
                )
            )
    return tuple(times_of_kinds)


def _busy_and_waiting(
    program: Program,
    start: IntArray,
    finish: IntArray,
    device_kind_of_class: IntArray,
    *,
    num_device_kinds: int,
) -> tuple[FloatArray, FloatArray]:
    """(classes,) busy seconds, and (classes, kinds + 1) waits in seconds by cause, links last."""
    klass = program.instances.klass
    is_action = program.instances.stream == int(Stream.COMPUTE)
    last_before = last_predecessors(program, finish)
    cause = np.where(is_action, device_kind_of_class[klass], num_device_kinds)
    waits = np.zeros((len(device_kind_of_class), num_device_kinds + 1))
    busy = np.zeros(len(device_kind_of_class))
    end, last_task = int(finish.max()), int(finish.argmax())
    for number in range(len(device_kind_of_class)):
        own_actions = np.flatnonzero(is_action & (klass == number))
        own_actions = own_actions[np.argsort(start[own_actions], kind="stable")]
        busy_until = np.concatenate([[0], np.maximum.accumulate(finish[own_actions])])
        next_start = np.concatenate([start[own_actions], [end]])
        # After its last action a device waits for the task that ends the step.
        waits_behind = np.concatenate([last_before[own_actions], [last_task]])
        gaps = np.flatnonzero(next_start > busy_until)
        waits[number] = _waits_by_cause(
            waits_behind[gaps],
            busy_until[gaps],
            next_start[gaps],
            last_before,
            start,
            finish,
            cause,
            num_kinds=num_device_kinds,
        )
        busy[number] = end - float((next_start - busy_until)[gaps].sum())
    return busy / PICOSECONDS_PER_SECOND, waits / PICOSECONDS_PER_SECOND


def _waits_by_cause(
    task: IntArray,
    low: IntArray,
    high: IntArray,
    last_predecessor: IntArray,
    start: IntArray,
    finish: IntArray,
    cause: IntArray,
    *,
    num_kinds: int,
) -> FloatArray:
    """(kinds + 1,) picoseconds of waits `low` to `high` by the kind that computed then; links last.

    Each wait ends with a task in `task`, whose chain of last predecessors is followed.
    """
    picoseconds = np.zeros(num_kinds + 1)
    while len(task):
        has_cause = task != NO_TASK
        picoseconds[num_kinds] += float((high - low)[~has_cause].sum())
        task, low, high = task[has_cause], low[has_cause], high[has_cause]
        ended = np.clip(finish[task], low, high)
        begun = np.clip(start[task], low, ended)
        picoseconds[num_kinds] += float((high - ended).sum())
        np.add.at(picoseconds, cause[task], (ended - begun).astype(np.float64))
        reaches_further = begun > low
        task, low, high = (
            last_predecessor[task[reaches_further]],
            low[reaches_further],
            begun[reaches_further],
        )
    return picoseconds
