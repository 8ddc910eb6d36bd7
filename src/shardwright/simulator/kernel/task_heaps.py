"""Binary heaps of tasks in plain arrays: arrivals by instant, and running tasks by finish.

Running tasks know their place in the heap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.arrays import Int32Array, IntArray
from shardwright.kernel_compilation import inlined

PLACE = 4
"""Column of a running task's slot that holds its place in the heap of finishes."""

Integer = int | np.signedinteger[Any]


@inlined
def push(key: IntArray, item: Int32Array, size: int, instant: Integer, task: Integer) -> None:
    """Add `task` at `instant` to a heap of `size` entries."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if key[parent] <= instant:
            break
        key[place] = key[parent]
        item[place] = item[parent]
        place = parent
    key[place] = instant
    item[place] = task


@inlined
def pop(key: IntArray, item: Int32Array, size: int) -> None:
    """Remove the root of a heap of `size` + 1 entries: move the last entry to the root and down."""
    instant, task = key[size], item[size]
    place, child = 0, 1
    while child < size:
        if child + 1 < size:
            child += key[child + 1] < key[child]
        if key[child] >= instant:
            break
        key[place] = key[child]
        item[place] = item[child]
        place = child
        child = 2 * place + 1
    key[place] = instant
    item[place] = task


@inlined
def sift_up(key: IntArray, item: Int32Array, slots: IntArray, place: Integer) -> None:
    """Move the entry at `place` of the finish heap towards the root until no parent is later."""
    instant, slot = key[place], item[place]
    while place > 0:
        parent = (place - 1) >> 1
        if key[parent] <= instant:
            break
        key[place] = key[parent]
        item[place] = item[parent]
        slots[item[place], PLACE] = place
        place = parent
    key[place] = instant
    item[place] = slot
    slots[slot, PLACE] = place


@inlined
def sift_down(key: IntArray, item: Int32Array, slots: IntArray, size: int, place: Integer) -> None:
    """Move the entry at `place` of the finish heap towards the leaves until no child is earlier."""
    instant, slot = key[place], item[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size:
            child += key[child + 1] < key[child]
        if key[child] >= instant:
            break
        key[place] = key[child]
        item[place] = item[child]
        slots[item[place], PLACE] = place
        place = child
    key[place] = instant
    item[place] = slot
    slots[slot, PLACE] = place
