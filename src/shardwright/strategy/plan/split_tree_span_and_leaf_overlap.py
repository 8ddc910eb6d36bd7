"""Properties of split trees that are computed without listing the leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardwright.strategy.plan.operator_split_tree import Split, devices_of, num_leaves

MAX_LISTED: Final = 2**20


def device_span(split: Split | None) -> int:
    """Distance in device numbers from a split tree's first device to its last; 0 for one."""
    if split is None:
        return 0
    if isinstance(split.step, tuple):
        return max(
            offset + device_span(child)
            for offset, child in zip(split.step, split.children, strict=True)
        )
    return (split.num_parts - 1) * split.step + device_span(split.children[0])


def depth(split: Split | None) -> int:
    """Number of cuts on the longest path from the root to a leaf."""
    return 0 if split is None else 1 + max(depth(child) for child in split.children)


def nodes(split: Split | None) -> Iterator[Split]:
    """Yield every cut of a split tree, parents first; equal parts share one child, yielded once."""
    if split is not None:
        yield split
        for child in split.children:
            yield from nodes(child)


def overlaps(split: Split | None) -> bool:
    """True if two leaves lie on one device, or if there are too many irregular leaves to list.

    A chain of equal cuts whose strides, sorted, each exceed the span of the smaller ones has
    distinct leaves; other trees are listed.
    """
    chain: list[tuple[int, int]] = []
    node = split
    while node is not None and isinstance(node.step, int):
        chain.append((node.step, node.num_parts))
        node = node.children[0]
    if node is None:
        reach = 0
        for step, parts in sorted(chain):
            if parts > 1 and step <= reach:
                break
            reach += step * (parts - 1)
        else:
            return False
    leaves = num_leaves(split)
    return leaves > MAX_LISTED or len(set(devices_of(split))) != leaves
