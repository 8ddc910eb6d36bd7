"""Seconds and bytes of messages between pipeline stages of a general plan.

Bytes of the busiest device, and the collectives around the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from shardwright.arrays import (
    BoolArray,
    Int32Array,
    IntArray,
    distinct,
    is_increasing,
    membership_mask,
)
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.network.grid_groups_and_collective_seconds import move_seconds
from shardwright.cost.network.networks_of_plan_devices import (
    group_span,
    network_of_devices,
    plan_units,
    rate_of_level,
    rates_between,
)
from shardwright.hardware.cluster_network_levels import level_between
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.identity_cache_keys import Same
from shardwright.program.stages.stage_messages import Messages
from shardwright.program.training_problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Messages that a class of senders sends along an edge between stages.

    In elements of a whole microbatch.

    Args:
        tier: the outermost level that the messages cross; all of them wait as long as one over it,
            latency_s, and share a device's links there.
        bandwidth: bytes/s of the busiest device's traffic, whatever kinds are at its ends.
        most: elements of one device, sent or arriving.
        sent: elements of one sender.
        into: (class, the most elements that one of its devices receives).
        collectives: collectives of the edge that include a sender or receiver: (kind, devices,
            elements).
        around: senders and receivers, where there are such collectives.
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
    """Elements, latency (s), bytes/s and collectives of messages that a device class sends."""
    load = _message_load(Same(messages), klass, Same(class_of), plan_units(problem))
    own_messages, beside = load.mine, load.beside
    ends = frozenset[int]()
    if messages.collectives:
        ends = frozenset((messages.sends[own_messages, :2] + messages.base).reshape(-1).tolist())
    # All messages to a receiver of the class's messages are priced with them, whoever sends them.
    latency_s, bandwidth = _latency_and_rate(
        problem, messages, beside, own_messages, level=load.level, most_elements=load.most
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
            if not ends.isdisjoint(devices := tuple(d + messages.base for d in group))
        ),
        around=ends,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _MessageLoad:
    """Elements of a class's messages along an edge, and the outermost level that they cross.

    The same on all networks with these units.

    Args:
        level: the outermost that one of them crosses.
        most: elements of one device, sent or arriving.
        sent: elements of one sender of the class.
        into: (class, the most elements that one of its devices receives).
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
def _message_load(
    messages: Same[Messages], klass: int, class_of: Same[Int32Array], units: tuple[Units, ...]
) -> _MessageLoad:
    """Most elements a device of class `klass` sends on an edge, and most that its receivers get.

    Devices are counted from the edge's base.
    """
    base, classes = messages.value.base, class_of.value
    source, target, elements = messages.value.sends.T
    own_messages = classes[source + base] == klass
    if is_increasing(source) and is_increasing(target):
        return _load_of_single_messages(messages.value, own_messages, classes, units)
    own_sources, own_targets = source[own_messages], target[own_messages]
    sent, received = (
        np.bincount(own_sources, elements[own_messages]),
        np.bincount(own_targets, elements[own_messages]),
    )
    # Messages of other senders to the same devices arrive too: so one sender, or all of them as one
    # class, take equally long.
    arriving = np.bincount(target, elements)
    is_receiver = membership_mask(own_targets, len(arriving))
    receivers = np.flatnonzero(is_receiver)
    receiver_classes = classes[receivers + base].astype(np.int64)
    return _MessageLoad(
        level=_outermost_level(own_sources + base, own_targets + base, units),
        most=int(max(sent.max(), arriving[receivers].max())),
        sent=int(sent.max()),
        into=tuple(
            (k, int(received[receivers[receiver_classes == k]].max()))
            for k in distinct(receiver_classes).tolist()
        ),
        mine=own_messages,
        beside=is_receiver[target],
    )


def _load_of_single_messages(
    messages: Messages, own_messages: BoolArray, classes: Int32Array, units: tuple[Units, ...]
) -> _MessageLoad:
    """`_message_load` (elements by receiver class) if no device sends or receives two messages."""
    source, target, elements = messages.sends[own_messages].T
    receiver_classes = classes[target + messages.base].astype(np.int64)
    most_of_class = np.zeros(int(receiver_classes.max()) + 1, dtype=np.int64)
    if receiver_classes.min() < len(most_of_class) - 1:
        np.maximum.at(most_of_class, receiver_classes, elements)
    else:
        most_of_class[-1] = elements.max()
    return _MessageLoad(
        level=_outermost_level(source + messages.base, target + messages.base, units),
        most=int(most_of_class.max()),
        sent=int(most_of_class.max()),
        into=tuple((k, int(most_of_class[k])) for k in distinct(receiver_classes).tolist()),
        mine=own_messages,
        beside=own_messages,
    )


def _outermost_level(source: IntArray, target: IntArray, units: tuple[Units, ...]) -> int:
    """Index of the outermost network level that some pair of devices exchanges over."""
    return int(level_between(source, target, units).max())


def _latency_and_rate(
    problem: Problem,
    messages: Messages,
    priced_messages: BoolArray,
    own_messages: BoolArray,
    *,
    level: int,
    most_elements: int,
) -> tuple[float, float]:
    """Latency in seconds and effective bytes/s of messages: slowest ends, by the busiest device.

    The messages last as long as `most_elements` of one device do.

    Args:
        priced_messages: (messages,) all messages to the receivers of the class, with its own.
        level: level that they cross.
    """
    rate = rate_of_level(problem, level)
    if rate is not None:
        return rate
    source, target = (messages.sends[priced_messages, :2] + messages.base).T
    elements, is_own = messages.sends[priced_messages, 2], own_messages[priced_messages]
    rates = rates_between(problem, source, target, level)
    latency_s, slowest = float(rates.latency_s[is_own].max()), float(rates.bandwidth.min())
    if slowest == float(rates.bandwidth.max()):
        return latency_s, slowest
    out_seconds = np.bincount(source[is_own], elements[is_own] / rates.bandwidth[is_own])
    in_seconds = np.bincount(target, elements / rates.bandwidth)
    return latency_s, most_elements / float(max(out_seconds.max(), in_seconds.max()))


def crossing_seconds(problem: Problem, messages: Messages, *, scale: float) -> float:
    """Seconds of an edge, `scale` bytes an element: latency, busiest device's bytes, collectives.

    Args:
        scale: bytes of an element, times the share of the sequence that is at work.
    """
    return crossing_seconds_by_scale(problem, messages, scales=(scale,))[0]


def crossing_seconds_by_scale(
    problem: Problem, messages: Messages, *, scales: Sequence[float]
) -> list[float]:
    """`crossing_seconds` for each of several bytes an element."""
    most, latency_s, bandwidth = 0, 0.0, 1.0
    if len(messages.sends):
        source, target, elements = messages.sends.T
        most = int(max(np.bincount(source, elements).max(), np.bincount(target, elements).max()))
        level = _outermost_level(
            source + messages.base, target + messages.base, plan_units(problem)
        )
        all_messages = np.ones(len(source), dtype=np.bool_)
        latency_s, bandwidth = _latency_and_rate(
            problem, messages, all_messages, all_messages, level=level, most_elements=most
        )
    all_collectives = [
        (kind, tuple(d + messages.base for d in group), size)
        for kind, group, size in messages.collectives
    ]
    around = frozenset(d for _, group, _ in all_collectives for d in group)
    return [
        latency_s
        + float(most * scale) / bandwidth
        + around_seconds(problem, all_collectives, around, scale=scale)
        for scale in scales
    ]


def around_seconds(
    problem: Problem,
    collectives: Iterable[tuple[Collective, tuple[int, ...], int]],
    around: frozenset[int],
    *,
    scale: float,
) -> float:
    """Seconds of an edge's collectives: by kind, the busiest `around` device's sum, all added."""
    seconds_of_kinds: dict[Collective, dict[int, float]] = {}
    for kind, devices, elements in collectives:
        network = network_of_devices(problem, devices)
        volume = np.array([elements * scale])
        seconds = float(
            move_seconds(kind, volume=volume, span=group_span(devices, network), network=network)[0]
        )
        seconds_of_device = seconds_of_kinds.setdefault(kind, {})
        for device in around.intersection(devices):
            seconds_of_device[device] = seconds_of_device.get(device, 0.0) + seconds
    return sum(
        max(seconds_of_device.values(), default=0.0)
        for seconds_of_device in seconds_of_kinds.values()
    )
