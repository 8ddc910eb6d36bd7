"""Split trees as pictures: equal children once, with count and stride, devices at the leaves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.pictures.devices_with_equal_shares import device_text
from shardwright.strategy.plan.operator_split_tree import Split

MAX_BRANCHES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A cut of a split tree, or the devices at a leaf.

    Args:
        label: ``b[2:1]``, ``t8``, or at a leaf ``devices 0-7``.
        branch: what leads here from the parent: ``x2 @32`` for equal children, ``2/3`` for a share;
            empty at the root.
    """

    label: str
    branch: str = ""
    children: tuple[TreeNode, ...] = ()


def split_tree(split: Split | None, *, first_device: int = 0) -> TreeNode:
    """Picture of a split tree from device `first_device` on, with equal children drawn once.

    Children are equal if their weights, subtrees and strides are.
    """
    return _node(split, np.array([first_device], np.int64), branch="")


def _node(split: Split | None, bases: IntArray, *, branch: str) -> TreeNode:
    """Picture node of the equal subtrees that begin at the devices `bases`."""
    if split is None:
        noun = "device" if bases.size == 1 else "devices"
        return TreeNode(label=f"{noun} {device_text(np.sort(bases))}", branch=branch)
    zigzag = "z" if split.zigzag else ""
    if isinstance(split.step, int):
        starts = (bases[:, None] + np.arange(split.num_parts) * split.step).ravel()
        child = _node(split.children[0], starts, branch=f"x{split.num_parts} @{split.step}")
        return TreeNode(
            label=f"{split.dim.value}{split.num_parts}{zigzag}", branch=branch, children=(child,)
        )
    assert isinstance(split.parts, tuple)
    total = sum(split.parts)
    branches = [
        _node(
            child,
            (bases[:, None] + np.array(steps)).ravel(),
            branch=_part_text(weight, total, steps),
        )
        for weight, steps, child in _equal_neighbours(split)
    ]
    if len(branches) > MAX_BRANCHES:
        left = len(branches) - MAX_BRANCHES
        branches = [
            *branches[: MAX_BRANCHES - 1],
            TreeNode(label=f".. {left} more branches"),
            branches[-1],
        ]
    weights = [
        f"{w}*{n}" if n > 3 else ":".join([str(w)] * n)
        for w, n in ((w, len(list(g))) for w, g in groupby(split.parts))
    ]
    shown = (
        weights
        if len(weights) <= MAX_BRANCHES
        else [*weights[: MAX_BRANCHES - 1], "..", weights[-1]]
    )
    return TreeNode(
        label=f"{split.dim.value}[{':'.join(shown)}]{zigzag}",
        branch=branch,
        children=tuple(branches),
    )


def _equal_neighbours(split: Split) -> Iterator[tuple[int, list[int], Split | None]]:
    """Yield (weight, device offsets, child) of neighbours equal in weight, child and stride."""
    assert isinstance(split.parts, tuple)
    assert isinstance(split.step, tuple)
    run: list[int] = []
    before: tuple[int, Split | None] | None = None
    for weight, step, child in zip(split.parts, split.step, split.children, strict=True):
        even = len(run) < 2 or step - run[-1] == run[1] - run[0]
        if before is not None and (before != (weight, child) or not even):
            yield before[0], run, before[1]
            run = []
        run.append(step)
        before = (weight, child)
    if before is not None:
        yield before[0], run, before[1]


def _part_text(weight: int, total: int, steps: list[int]) -> str:
    """Text of a part's share, number and device stride, such as ``2/3 x4 @8``."""
    if len(steps) == 1:
        return f"{weight}/{total}"
    stride = f" @{steps[1] - steps[0]}" if steps[1] != steps[0] else ""
    return f"{weight}/{total} x{len(steps)}{stride}"


def tree_lines(node: TreeNode) -> list[str]:
    """The tree as text lines, one a node, with tree-drawing characters."""
    lines = [node.label]
    lines += _below(node, "")
    return lines


def _below(node: TreeNode, indent: str) -> list[str]:
    """Lines of the subtrees below a node, with `indent` and tree-drawing characters."""
    lines: list[str] = []
    for place, child in enumerate(node.children):
        last = place == len(node.children) - 1
        branch = f"{child.branch}  " if child.branch else ""
        lines.append(f"{indent}{'└─' if last else '├─'} {branch}{child.label}")
        lines += _below(child, indent + ("   " if last else "│  "))
    return lines
