"""What goes along the edges between stages: bytes of the busiest device, and the collectives around
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from shardwright.arrays import BoolArray, Int32Array, IntArray, among, distinct, rises
from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.cost.network.grid_groups import move_seconds
from shardwright.cost.network.plan_groups import (
    group_span,
    network_of_devices,
    plan_units,
    rate_of_level,
    rates_between,
)
from shardwright.hardware.graph import Units, level_between
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.program.same import Same
from shardwright.program.stages.edges import Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What a class of senders sends along an edge, in elements of a whole microbatch.

    Args:
        tier: the outermost level that it crosses; all messages wait as long as one over it,
            latency_s, and share what a device has there.
        bandwidth: bytes/s at which what the busiest device sends or gets passes, whatever kinds are
            at its ends.
        most: of one device, sent or arriving.
        sent: of one sender.
        into: (class, most that one of its devices gets).
        collectives: of the edge, in which sender or receivers take part: (kind, devices, elements).
        around: senders and receivers, where there are such.
    """

    tier: int
    latency_s: float
    bandwidth: float
    most: int
    sent: int
    into: tuple[tuple[int, int], ...]
    collectives: tuple[tuple[Collective, tuple[int, ...], int], ...]
    around: frozenset[int]


def crossing_of(problem: Problem, messages: Messages, klass: int, class_of: Int32Array) -> Crossing:
    """A class's part of an edge's messages."""
    load = _load(Same(messages), klass, Same(class_of), plan_units(problem))
    mine, beside = load.mine, load.beside
    there = frozenset[int]()
    if messages.collectives:
        there = frozenset((messages.sends[mine, :2] + messages.base).reshape(-1).tolist())
    # All that goes to a receiver of the class's messages is priced with them, whoever sends it.
    latency_s, bandwidth = _passing(
        problem, messages, beside, mine, level=load.level, most=load.most
    )
    return Crossing(
        tier=load.level,
        latency_s=latency_s,
        bandwidth=bandwidth,
        most=load.most,
        sent=load.sent,
        into=load.into,
        collectives=tuple(
            (kind, devices, size)
            for kind, group, size in messages.collectives
            if not there.isdisjoint(devices := tuple(d + messages.base for d in group))
        ),
        around=there,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Load:
    """Elements of a class's messages along an edge, and how far they go; the same whatever links
    carry.

    Args:
        level: the outermost that one of them crosses.
        most: of one device, sent or arriving.
        sent: of one sender of the class.
        into: (class, most that one of its devices gets).
        mine: (messages,) those that the class sends.
        beside: (messages,) those that arrive at a device to which the class sends, whoever sends
            them.
    """

    level: int
    most: int
    sent: int
    into: tuple[tuple[int, int], ...]
    mine: BoolArray
    beside: BoolArray


@lru_cache(maxsize=256)
def _load(
    messages: Same[Messages], klass: int, class_of: Same[Int32Array], units: tuple[Units, ...]
) -> _Load:
    """What a class sends and what arrives where it sends to,
    devices counted from the edge's base.
    """
    base, classes = messages.value.base, class_of.value
    source, target, elements = messages.value.sends.T
    mine = classes[source + base] == klass
    if rises(source) and rises(target):
        return _load_of_single(messages.value, mine, classes, units)
    from_here, to_there = source[mine], target[mine]
    sent, received = np.bincount(from_here, elements[mine]), np.bincount(to_there, elements[mine])
    # What others send to the same devices arrives with it: so one sender, or all of them as one
    # class, take equally long.
    arriving = np.bincount(target, elements)
    is_receiver = among(to_there, len(arriving))
    to = np.flatnonzero(is_receiver)
    class_there = classes[to + base].astype(np.int64)
    return _Load(
        level=_level(from_here + base, to_there + base, units),
        most=int(max(sent.max(), arriving[to].max())),
        sent=int(sent.max()),
        into=tuple(
            (k, int(received[to[class_there == k]].max())) for k in distinct(class_there).tolist()
        ),
        mine=mine,
        beside=is_receiver[target],
    )


def _load_of_single(
    messages: Messages, mine: BoolArray, classes: Int32Array, units: tuple[Units, ...]
) -> _Load:
    """`_load` where each device sends one message, and gets one."""
    source, target, elements = messages.sends[mine].T
    there = classes[target + messages.base].astype(np.int64)
    most = np.zeros(int(there.max()) + 1, dtype=np.int64)
    if there.min() < len(most) - 1:
        np.maximum.at(most, there, elements)
    else:
        most[-1] = elements.max()
    return _Load(
        level=_level(source + messages.base, target + messages.base, units),
        most=int(most.max()),
        sent=int(most.max()),
        into=tuple((k, int(most[k])) for k in distinct(there).tolist()),
        mine=mine,
        beside=mine,
    )


def _level(source: IntArray, target: IntArray, units: tuple[Units, ...]) -> int:
    """The outermost level that some pair of devices exchanges over."""
    return int(level_between(source, target, units).max())


def _passing(
    problem: Problem, messages: Messages, some: BoolArray, mine: BoolArray, *, level: int, most: int
) -> tuple[float, float]:
    """Latency and bytes/s of an edge's messages `mine`: one device's last as long as `most`
    elements do.

    Args:
        some: (messages,) those that are priced with them.
        level: that they cross.
    """
    rate = rate_of_level(problem, level)
    if rate is not None:
        return rate
    source, target = (messages.sends[some, :2] + messages.base).T
    elements, own = messages.sends[some, 2], mine[some]
    rates = rates_between(problem, source, target, level)
    latency_s, slowest = float(rates.latency_s[own].max()), float(rates.bandwidth.min())
    if slowest == float(rates.bandwidth.max()):
        return latency_s, slowest
    out = np.bincount(source[own], elements[own] / rates.bandwidth[own])
    into = np.bincount(target, elements / rates.bandwidth)
    return latency_s, most / float(max(out.max(), into.max()))


def crossing_seconds(problem: Problem, messages: Messages, *, scale: float) -> float:
    """Seconds of an edge's messages alone: latency, the busiest device's bytes over the tier's
    bandwidth, and the collectives around them.

    Args:
        scale: bytes of an element, times the share of the sequence that is at work.
    """
    seconds = 0.0
    if len(messages.sends):
        source, target, elements = messages.sends.T
        most = int(max(np.bincount(source, elements).max(), np.bincount(target, elements).max()))
        level = _level(source + messages.base, target + messages.base, plan_units(problem))
        everything = np.ones(len(source), dtype=np.bool_)
        latency_s, bandwidth = _passing(
            problem, messages, everything, everything, level=level, most=most
        )
        seconds = latency_s + float(most * scale) / bandwidth
    everywhere = [
        (kind, tuple(d + messages.base for d in group), size)
        for kind, group, size in messages.collectives
    ]
    return seconds + around_seconds(
        problem, everywhere, frozenset(d for _, group, _ in everywhere for d in group), scale=scale
    )


def around_seconds(
    problem: Problem,
    collectives: Iterable[tuple[Collective, tuple[int, ...], int]],
    around: frozenset[int],
    *,
    scale: float,
) -> float:
    """Seconds of collectives around the messages of an edge: of each kind those of the busiest of
    some devices, one after another.
    """
    spent: dict[Collective, dict[int, float]] = {}
    for kind, devices, elements in collectives:
        network = network_of_devices(problem, devices)
        volume = np.array([elements * scale])
        seconds = float(
            move_seconds(kind, volume=volume, span=group_span(devices, network), network=network)[0]
        )
        of_kind = spent.setdefault(kind, {})
        for device in around.intersection(devices):
            of_kind[device] = of_kind.get(device, 0.0) + seconds
    return sum(max(of_kind.values(), default=0.0) for of_kind in spent.values())
