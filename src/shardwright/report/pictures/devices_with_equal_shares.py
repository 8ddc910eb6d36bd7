"""Classes of devices with equal shares of a plan, and the split-tree path to each class."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import StrategyError
from shardwright.strategy.plan.operator_split_tree import Split, num_leaves
from shardwright.strategy.plan.split_tree_span_and_leaf_overlap import MAX_LISTED

MAX_DEVICES = MAX_LISTED
"""Largest number of devices of a plan that is drawn."""
MAX_RANGES = 3


@lru_cache(maxsize=1024)
def split_paths(split: Split | None) -> tuple[tuple[str, IntArray], ...]:
    """(cuts as text, sorted device offsets) of each path of a split tree; equal parts are one.

    Equal parts are one way (``b8``); an unequal part says its share (``b2/3``). ``b[2:1]{t2, .+2}``
    has the ways ``b2/3 t2`` to 0 and 1, and ``b1/3`` to 2. A single device without cuts is the
    empty way.

    Raises:
        StrategyError: more than `MAX_LISTED` leaves.
    """
    if num_leaves(split) > MAX_LISTED:
        raise StrategyError(
            f"a tree of {num_leaves(split)} devices is too large to draw",
            hint=f"at most {MAX_LISTED}",
        )
    return tuple((way, np.sort(offsets)) for way, offsets in _split_paths(split))


def _split_paths(split: Split | None) -> list[tuple[str, IntArray]]:
    """Unsorted (cuts as text, offsets of its devices) of each path of a split tree."""
    if split is None:
        return [("", np.zeros(1, np.int64))]
    zigzag = "z" if split.zigzag else ""
    if isinstance(split.step, int):
        starts = np.arange(split.num_parts, dtype=np.int64)[:, None] * split.step
        return [
            (
                _prefixed(f"{split.dim.value}{split.num_parts}{zigzag}", way),
                (starts + offsets).ravel(),
            )
            for way, offsets in _split_paths(split.children[0])
        ]
    assert isinstance(split.parts, tuple)
    class_of: dict[str, list[IntArray]] = {}
    for weight, step, child in zip(split.parts, split.step, split.children, strict=True):
        for way, offsets in _split_paths(child):
            cut = _prefixed(f"{split.dim.value}{weight}/{sum(split.parts)}{zigzag}", way)
            class_of.setdefault(cut, []).append(step + offsets)
    return [(way, np.concatenate(several)) for way, several in class_of.items()]


def _prefixed(cut: str, way: str) -> str:
    """Put a cut before the cuts of a path, with a space between."""
    return f"{cut} {way}" if way else cut


def device_classes(sets: Iterable[IntArray], *, devices: int) -> IntArray:
    """Class number of each device; two devices share one if every set holds both or neither.

    Args:
        sets: distinct device numbers each.
        devices: of the plan.

    Returns:
        Shape (devices,): classes are numbered by their lowest device.

    Raises:
        StrategyError: a set holds a device that the plan has not, or there are more than
        `MAX_DEVICES`.
    """
    if devices > MAX_DEVICES:
        raise StrategyError(
            f"{devices} devices are too many to draw", hint=f"at most {MAX_DEVICES}"
        )
    class_of = np.zeros(devices, np.int64)
    sizes = [devices]
    for members in sets:
        if members.size and not 0 <= members.min() <= members.max() < devices:
            raise StrategyError(
                f"device {int(members.max())} of {devices}",
                hint="devices are counted from 0",
                rule="plan.devices",
            )
        here, inverse, counts = np.unique(
            class_of[members], return_inverse=True, return_counts=True
        )
        for place, (klass, count) in enumerate(zip(here.tolist(), counts.tolist(), strict=True)):
            if count < sizes[klass]:
                class_of[members[inverse == place]] = len(sizes)
                sizes[klass] -= count
                sizes.append(count)
    _, first, inverse = np.unique(class_of, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(first.size)
    return rank[inverse]


def device_text(devices: IntArray) -> str:
    """Sorted device numbers as text: ``0-7``, ``0-7, 32-39``, or ``0-7 x8 @64`` with a stride.

    ``0-7 x8 @64`` is eight equal ranges at stride 64.

    Beyond a few irregular ranges only the first and the last are named: ``0-1, 4-7, .., 60``.
    """
    if not devices.size:
        return "none"
    breaks = np.flatnonzero(np.diff(devices) != 1)
    first, last = (
        devices[np.concatenate(([0], breaks + 1))],
        devices[np.concatenate((breaks, [devices.size - 1]))],
    )
    texts = [
        f"{a}-{b}" if b > a else f"{a}"
        for a, b in zip(first[:2].tolist(), last[:2].tolist(), strict=True)
    ]
    count = first.size
    if count == 1:
        return texts[0]
    lengths, strides = last - first, np.diff(first)
    if count > 2 and (lengths == lengths[0]).all() and (strides == strides[0]).all():
        return f"{texts[0]} x{count} @{strides[0]}"
    if count > MAX_RANGES:
        return f"{', '.join(texts)}, .., {devices[-1]}"
    return ", ".join(
        f"{a}-{b}" if b > a else f"{a}" for a, b in zip(first.tolist(), last.tolist(), strict=True)
    )
