"""What goes along the edges between stages: bytes of the busiest device, and the collectives around them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwright.arrays import BoolArray, IntArray, distinct
from shardwright.collectives.algorithm import Collective
from shardwright.cost.communication import move_seconds
from shardwright.cost.device_network import group_span, network_of_devices, plan_units, rates_between
from shardwright.hardware.graph import level_between
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.program.stages.edges import Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What a class of senders sends along an edge, in elements of a whole microbatch.

    Args:
        tier: the outermost level that it crosses; all messages wait as long as one over it, latency_s, and share what a device has there.
        bandwidth: bytes/s at which what the busiest device sends or gets passes, whatever kinds are at its ends.
        most: of one device, sent or arriving. sent: of one sender. into: (class, most that one of its devices gets).
        collectives: of the edge, in which sender or receivers take part: (kind, devices, elements). around: senders and receivers, where
            there are such.
    """

    tier: int
    latency_s: float
    bandwidth: float
    most: int
    sent: int
    into: tuple[tuple[int, int], ...]
    collectives: tuple[tuple[Collective, tuple[int, ...], int], ...]
    around: frozenset[int]


def crossing_of(problem: Problem, messages: Messages, klass: int, class_of: IntArray) -> Crossing:
    """A class's part of an edge's messages."""
    ends = messages.sends[:, :2] + messages.base
    mine = class_of[ends[:, 0]] == klass
    source, target, elements = ends[mine, 0], ends[mine, 1], messages.sends[mine, 2]
    sent, received = np.bincount(source, elements), np.bincount(target, elements)
    # What others send to the same devices arrives with it: so one sender, or all of them as one class, take equally long.
    arriving = np.bincount(ends[:, 1], messages.sends[:, 2])[target]
    to = distinct(target)
    into = tuple((int(k), int(received[to[class_of[to] == k]].max())) for k in distinct(class_of[to]))
    there = frozenset((*source.tolist(), *target.tolist())) if messages.collectives else frozenset()
    most = int(max(sent.max(), arriving.max()))
    # All that goes to a receiver of the class's messages is priced with them, whoever sends it.
    beside = np.isin(ends[:, 1], to)
    level, latency_s, bandwidth = _passing(problem, ends[beside], messages.sends[beside, 2], mine[beside], most)
    return Crossing(
        tier=level,
        latency_s=latency_s,
        bandwidth=bandwidth,
        most=most,
        sent=int(sent.max()),
        into=into,
        collectives=tuple(
            (kind, devices, size)
            for kind, group, size in messages.collectives
            if not there.isdisjoint(devices := tuple(d + messages.base for d in group))
        ),
        around=there,
    )


def _passing(problem: Problem, ends: IntArray, elements: IntArray, mine: BoolArray, most: int) -> tuple[int, float, float]:
    """Level, latency and bytes/s of some messages, of which `mine` are the class's: one device's last as long as `most` elements do."""
    source, target = ends.T
    level = int(level_between(source[mine], target[mine], plan_units(problem)).max())
    rates = rates_between(problem, source, target, level)
    if len(rates.bandwidth) == 1:
        return level, float(rates.latency_s[0]), float(rates.bandwidth[0])
    latency_s, slowest = float(rates.latency_s[mine].max()), float(rates.bandwidth.min())
    if slowest == float(rates.bandwidth.max()):
        return level, latency_s, slowest
    out = np.bincount(source[mine], elements[mine] / rates.bandwidth[mine])
    into = np.bincount(target, elements / rates.bandwidth)
    return level, latency_s, most / float(max(out.max(), into.max()))


def crossing_seconds(problem: Problem, messages: Messages, *, scale: float) -> float:
    """Seconds of an edge's messages alone: latency, the busiest device's bytes over the tier's bandwidth, and the collectives around them.

    Args:
        scale: bytes of an element, times the share of the sequence that is at work.
    """
    devices = messages.sends[:, :2] + messages.base
    seconds = 0.0
    if len(devices):
        most = max(np.bincount(devices[:, side], messages.sends[:, 2]).max() for side in (0, 1))
        everything = np.ones(len(devices), dtype=np.bool_)
        _, latency_s, bandwidth = _passing(problem, devices, messages.sends[:, 2], everything, int(most))
        seconds = latency_s + float(most * scale) / bandwidth
    everywhere = [(kind, tuple(d + messages.base for d in group), size) for kind, group, size in messages.collectives]
    return seconds + around_seconds(problem, everywhere, frozenset(d for _, group, _ in everywhere for d in group), scale=scale)


def around_seconds(
    problem: Problem, collectives: Iterable[tuple[Collective, tuple[int, ...], int]], around: frozenset[int], *, scale: float
) -> float:
    """Seconds of collectives around the messages of an edge: of each kind those of the busiest of some devices, one after another."""
    spent: dict[Collective, dict[int, float]] = {}
    for kind, devices, elements in collectives:
        network = network_of_devices(problem, devices)
        volume = np.array([elements * scale])
        seconds = float(move_seconds(kind, volume=volume, span=group_span(devices, network), network=network)[0])
        of_kind = spent.setdefault(kind, {})
        for device in around.intersection(devices):
            of_kind[device] = of_kind.get(device, 0.0) + seconds
    return sum(max(of_kind.values(), default=0.0) for of_kind in spent.values())
