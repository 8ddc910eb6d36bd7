"""What goes along the edges between stages: bytes of the busiest device, and the collectives around them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import IntArray, distinct
from shardwright.collectives.algorithm import Collective
from shardwright.cost.communication import move_seconds
from shardwright.cost.device_network import group_span, network_of_devices, plan_tiers, tiers_between
from shardwright.hardware.cluster import Tier
from shardwright.program.problem import Problem
from shardwright.program.stages.edges import Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What a class of senders sends along an edge, in elements of a whole microbatch.

    Args:
        tier: that it crosses. most: of one device, sent or arriving. sent: of one sender. into: (class, most that one of its devices gets).
        collectives: of the edge, in which sender or receivers take part: (kind, devices, elements). around: senders and receivers, where
            there are such.
    """

    tier: int
    most: int
    sent: int
    into: tuple[tuple[int, int], ...]
    collectives: tuple[tuple[Collective, tuple[int, ...], int], ...]
    around: frozenset[int]


def crossing_of(messages: Messages, klass: int, class_of: IntArray, tiers: tuple[Tier, ...]) -> Crossing:
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
    return Crossing(
        tier=int(tiers_between(source, target, tiers).max()),
        most=int(max(sent.max(), arriving.max())),
        sent=int(sent.max()),
        into=into,
        collectives=tuple(
            (kind, devices, size)
            for kind, group, size in messages.collectives
            if not there.isdisjoint(devices := tuple(d + messages.base for d in group))
        ),
        around=there,
    )


def crossing_seconds(problem: Problem, messages: Messages, *, scale: float) -> float:
    """Seconds of an edge's messages alone: latency, the busiest device's bytes over the tier's bandwidth, and the collectives around them.

    Args:
        scale: bytes of an element, times the share of the sequence that is at work.
    """
    devices = messages.sends[:, :2] + messages.base
    seconds = 0.0
    if len(devices):
        tiers = plan_tiers(problem)
        tier = int(tiers_between(devices[:, 0], devices[:, 1], tiers).max())
        most = max(np.bincount(devices[:, side], messages.sends[:, 2]).max() for side in (0, 1)) * scale
        seconds = tiers[tier].latency_s + float(most) / tiers[tier].bandwidth
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
