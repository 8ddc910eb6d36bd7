"""The space of the exact search: all cuts, device sets, trees, microbatches and orders, up to
symmetry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from itertools import combinations, product

import numpy as np

from shardwright.errors import UsageError
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.device_topology import network_units
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.problem import Problem
from shardwright.search.exact.stage_split_trees import Node, TreeSpace, labelled_trees
from shardwright.strategy.plan.plan import Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSpace:
    """Every plan of a few lanes on disjoint sets of devices (devices may stay idle), each lane's
    stages contiguous cuts of the block chain.

    A stage runs under one tree (see `search.exact.trees`); every stage has any order of its
    forwards and backwards (see `search.exact.orders`). Lanes share the batch by any numbers of
    microbatches of one size. Nothing is recomputed.

    Args:
        trees: of every stage.
        microbatches: numbers of them, of a lane.
        max_stages: most stages of a lane.
        shards: rules of every plan
        (ZeRO).
        lanes: most of them.
    """

    trees: TreeSpace = field(default_factory=TreeSpace)
    microbatches: tuple[int, ...] = (1, 2, 3)
    max_stages: int = 4
    shards: tuple[Shards, ...] = ()
    lanes: int = 1

    def text(self) -> str:
        """Description of the space and its values."""
        dims = ",".join(dim.value for dim in self.trees.dims)
        weights = ",".join(f"{w}:1" for w in self.trees.weights)
        numbers = ",".join(map(str, self.microbatches))
        lanes = (
            f"lanes <= {self.lanes} on disjoint device sets, microbatches of one size shared among"
            " them; "
            if self.lanes > 1
            else ""
        )
        return (
            f"{lanes}contiguous stages <= {self.max_stages} on disjoint device sets; trees over"
            f" {dims}, weights {weights}, depth <= {self.trees.depth}; microbatches {numbers}; all"
            " static orders; nothing recomputed"
        )


MOST_DEVICES, MOST_BLOCKS, MOST_MICROBATCHES, MOST_LANES = 4, 6, 3, 3
"""Sizes up to which `exact_space` is searched: devices, blocks of the chain (embedding and head
among them), microbatches and lanes."""
MOST_DEVICES_OF_LANES = 6
"""Devices up to which it is searched where there may be several lanes; of more than MOST_DEVICES a
stage is cut once into equal parts."""


def exact_space(problem: Problem, *, blocks: int, lanes: int = 1) -> ExactSpace:
    """The space of a small problem: every number of microbatches up to MOST_MICROBATCHES, which of
    one lane divides the global batch.

    Raises:
        UsageError: the problem is too large for the enumeration; says the limits.
    """
    devices = problem.cluster.num_devices
    most = MOST_DEVICES if lanes == 1 else MOST_DEVICES_OF_LANES
    if not 1 <= lanes <= MOST_LANES:
        raise UsageError(
            f"--lanes {lanes}: the exact space has plans of 1 to {MOST_LANES} lanes",
            hint=f"--lanes {MOST_LANES} or fewer",
        )
    if devices > most or blocks > MOST_BLOCKS:
        raise UsageError(
            f"{blocks} blocks on {devices} devices are too many for the exact space: at most"
            f" {MOST_BLOCKS} blocks (embedding and head among them), {most} devices,"
            f" {MOST_MICROBATCHES} microbatches",
            hint="--space joint, or fewer --max-devices",
        )
    numbers = tuple(
        m for m in range(1, MOST_MICROBATCHES + 1) if lanes > 1 or problem.job.global_batch % m == 0
    )
    trees = TreeSpace(dims=(Dim.BATCH, Dim.WIDTH, Dim.HEADS, Dim.HIDDEN))
    if devices > MOST_DEVICES:
        trees = TreeSpace(dims=(Dim.BATCH, Dim.WIDTH), weights=(1,), depth=1)
    return ExactSpace(trees=trees, microbatches=numbers, max_stages=devices, lanes=lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A part of the space: the cut of the chain and the devices of each stage; trees and order are
    open.

    Args:
        ends: of each stage, the number of blocks up to its last one.
        devices: of each stage, by label.
    """

    microbatches: int
    ends: tuple[int, ...]
    devices: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def working(self) -> tuple[int, ...]:
        """Numbers of the devices of all stages."""
        return tuple(sorted(device for stage in self.devices for some in stage for device in some))


def device_labels(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Classes of interchangeable devices: of one node, and on every network level in one unit or
    each alone in its own.
    """
    devices = np.arange(cluster.num_devices)
    nodes = np.repeat(
        np.arange(sum(g.count for g in cluster.groups)),
        [g.kind.num_devices for g in cluster.groups for _ in range(g.count)],
    )
    columns = [nodes]
    for level in network_units(cluster):
        unit = level.of(devices)
        columns.append(np.where(np.bincount(unit)[unit] > 1, unit, -1))
    classes: dict[tuple[int, ...], list[int]] = {}
    for device, lying in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        classes.setdefault(lying, []).append(device)
    return tuple(tuple(some) for some in classes.values())


def partitions(problem: Problem, space: ExactSpace, *, blocks: int) -> Iterator[Partition]:
    """Every partition of plans of one lane, up to the exchange of devices of one label.

    Devices of a label are dealt to the stages by falling number of them there, ties to the earlier
    stage.
    """
    numbers = tuple(m for m in space.microbatches if problem.job.global_batch % m == 0)
    return lane_partitions(
        device_labels(problem.cluster),
        numbers,
        blocks=blocks,
        max_stages=space.max_stages,
        idle=True,
    )


def lane_partitions(
    labels: tuple[tuple[int, ...], ...],
    microbatches: tuple[int, ...],
    *,
    blocks: int,
    max_stages: int,
    idle: bool,
) -> Iterator[Partition]:
    """Every partition of a lane on devices of these labels; `idle`: some may be left out."""
    sizes = tuple(len(label) for label in labels)
    for stages in range(1, min(max_stages, blocks, sum(sizes)) + 1):
        maps = [dealt(counts, labels) for counts in _counts(stages, sizes, idle=idle)]
        for inner in combinations(range(1, blocks), stages - 1):
            for devices in maps:
                for number in microbatches:
                    yield Partition(microbatches=number, ends=(*inner, blocks), devices=devices)


def _counts(
    stages: int, sizes: tuple[int, ...], *, idle: bool
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """(stages, labels) devices of each label for each stage, at least one a stage."""
    if not stages:
        if idle or not sum(sizes):
            yield ()
        return
    for first in product(*(range(n + 1) for n in sizes)):
        left = tuple(n - k for n, k in zip(sizes, first, strict=True))
        if sum(first) and sum(left) >= stages - 1:
            for rest in _counts(stages - 1, left, idle=idle):
                yield first, *rest


def dealt(
    counts: tuple[tuple[int, ...], ...], labels: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The devices of each of a few stages or lanes by label,
    given how many of each label it has.
    """
    found: list[list[tuple[int, ...]]] = [[() for _ in labels] for _ in counts]
    for number, label in enumerate(labels):
        place = 0
        for stage in sorted(range(len(counts)), key=lambda s: (-counts[s][number], s)):
            found[stage][number] = label[place : place + counts[stage][number]]
            place += counts[stage][number]
    return tuple(tuple(stage) for stage in found)


def stage_trees(devices: tuple[tuple[int, ...], ...], space: ExactSpace) -> Iterator[Node | int]:
    """Every tree of a stage on these devices (by label)."""
    yield from labelled_trees(tuple(len(some) for some in devices), space.trees)
