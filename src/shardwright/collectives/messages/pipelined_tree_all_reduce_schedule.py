"""Schedules of pipelined all-reduces along spanning trees: up to the root and down again.

The buffer goes in parts that follow one another by one round.

A tree with its share of the buffer takes 2 h rounds for one part, h those of a broadcast in which a
member sends one message at a time, to the child first whose own subtree needs longest; the way up
is the way down backwards. Part p is p rounds behind the first:

    rounds = 2 h + P - 1,   seconds(P) = alpha_P + V beta_P: sums over the rounds of `round_costs`

so the time over all P is the least of some lines. All trees run at the same time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.groups.links_of_one_group import Layout
from shardwright.collectives.messages.message_rounds_and_proof import (
    MessageSchedule,
    proven_sum,
    round_costs,
)
from shardwright.lazily_compiled_dataclass import dataclass

PARTS: Final = tuple(2**power for power in range(11))
"""Numbers of parts that are tried: 1 to 1024."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A rooted spanning tree: its share of the buffer, and each member's parent.

    -1: the root.
    """

    share: float
    parent: tuple[int, ...]


def rooted_tree(share: float, edges: list[tuple[int, int]], root: int) -> Tree:
    """The tree with the given edges over members 0 .. number of edges, rooted at `root`."""
    neighbours: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for end, far_end in edges:
        neighbours[end].append(far_end)
        neighbours[far_end].append(end)
    parent, waiting = {root: -1}, [root]
    for member in waiting:
        for neighbour in neighbours[member]:
            if neighbour not in parent:
                parent[neighbour] = member
                waiting.append(neighbour)
    return Tree(share=share, parent=tuple(parent[member] for member in range(len(neighbours))))


def middle_member(edges: list[tuple[int, int]]) -> int:
    """A member in the middle of a longest path of the tree with the given edges."""

    def farthest(start: int) -> list[int]:
        """Members on the path from the member farthest from `start` back to `start`."""
        tree = rooted_tree(1.0, edges, start)
        depth, order = {start: 0}, [start]
        children: list[list[int]] = [[] for _ in tree.parent]
        for member, parent in enumerate(tree.parent):
            if parent >= 0:
                children[parent].append(member)
        for member in order:
            for child in children[member]:
                depth[child] = depth[member] + 1
                order.append(child)
        path = [order[-1]]
        while path[-1] != start:
            path.append(tree.parent[path[-1]])
        return path

    path = farthest(farthest(0)[0])
    return path[len(path) // 2]


def send_steps(tree: Tree) -> tuple[IntArray, int]:
    """(step in which each member receives a broadcast down the tree (root: -1), number of steps).

    The root: -1.
    """
    children: list[list[int]] = [[] for _ in tree.parent]
    for member, parent in enumerate(tree.parent):
        if parent >= 0:
            children[parent].append(member)
    order = [tree.parent.index(-1)]
    for member in order:
        order += children[member]
    needs = [0] * len(order)
    for member in reversed(order):
        children[member].sort(key=lambda child: (-needs[child], child))
        needs[member] = max(
            (needs[child] + place + 1 for place, child in enumerate(children[member])), default=0
        )
    step = np.full(len(order), -1)
    for member in order:
        for place, child in enumerate(children[member]):
            step[child] = step[member] + place + 1
    return step, needs[order[0]]


def tree_all_reduce(trees: tuple[Tree, ...], *, parts: int = 1) -> MessageSchedule:
    """The message schedule of an all-reduce along `trees` in `parts` pipelined parts.

    The pieces of a tree stand side by side.
    """
    columns = []
    for number, tree in enumerate(trees):
        step, height = send_steps(tree)
        child = np.flatnonzero(step >= 0)
        parent = np.array(tree.parent)[child]
        for part in range(parts):
            piece = np.full(child.size, number * parts + part)
            columns.append(np.stack([height - 1 - step[child] + part, child, parent, piece]))
            columns.append(np.stack([height + step[child] + part, parent, child, piece]))
    messages = np.concatenate(columns, axis=1) if columns else np.zeros((4, 0), dtype=np.int64)
    messages = messages[:, np.argsort(messages[0], kind="stable")]
    return MessageSchedule(
        size=len(trees[0].parent),
        shares=tuple(tree.share / parts for tree in trees for _ in range(parts)),
        round=messages[0],
        source=messages[1],
        target=messages[2],
        piece=messages[3],
    )


@lru_cache(maxsize=1024)
def tree_lines(layout: Layout, trees: tuple[Tree, ...]) -> tuple[FloatArray, FloatArray]:
    """(latency, seconds a byte) of an all-reduce along trees, for each number of parts in `PARTS`.

    alpha_P and beta_P. The schedule is proven for one part: each further part is the same a round
    later.

    Rounds in which all steps are under way are alike; they are priced once.
    """
    schedule = proven_sum(tree_all_reduce(trees))
    steps = int(schedule.round.max(initial=-1)) + 1
    alpha, beta = np.zeros(len(PARTS)), np.zeros(len(PARTS))
    for index, parts in enumerate(PARTS):
        under_way = min(parts, steps)
        if parts == under_way or index == 0 or PARTS[index - 1] < steps:
            last_step = np.arange(steps + under_way - 1)
            first_step = np.maximum(last_step - under_way + 1, 0)
            latencies, busy = round_costs(_windows(schedule, first_step, last_step), layout)
        weights = np.ones(latencies.size)
        weights[steps - 1] += parts - under_way
        alpha[index], beta[index] = weights @ latencies, weights @ busy / parts
    return alpha, beta


def _windows(
    schedule: MessageSchedule, first_step: IntArray, last_step: IntArray
) -> MessageSchedule:
    """Schedule whose round r has all messages of steps first_step[r] to last_step[r].

    From `first_step` to `last_step`.
    """
    edge = np.searchsorted(schedule.round, np.arange(int(schedule.round.max()) + 2))
    low, high = edge[first_step], edge[np.minimum(last_step, len(edge) - 2) + 1]
    rows = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
    return replace(
        schedule,
        round=np.repeat(np.arange(first_step.size), high - low),
        source=schedule.source[rows],
        target=schedule.target[rows],
        piece=schedule.piece[rows],
    )
