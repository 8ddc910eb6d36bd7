"""The space of the exact search: stage cuts, device sets, split trees, microbatches and orders.

Members that differ by symmetry alone are counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from itertools import combinations, product

import numpy as np

from shardwright.errors import UsageError
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_network_levels import network_units
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.training_problem import Problem
from shardwright.search.exact.enumerate_tensor_split_trees import CutNode, TreeSpace, labelled_trees
from shardwright.strategy.plan.plan import Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSpace:
    """Every plan of a few lanes on disjoint device sets, in contiguous stages of the block chain.

    Devices may stay idle. A stage runs under one split tree (see
    `search.exact.enumerate_tensor_split_trees`). Every stage has any order of its forwards and
    backwards (see `search.exact.enumerate_forward_backward_orders`). Lanes share the batch by any
    numbers of microbatches of one size. Nothing is recomputed.

    Args:
        trees: split trees that a stage may have.
        microbatches: allowed numbers of microbatches of a lane.
        max_stages: largest number of stages of a lane.
        shards: ZeRO rules of every plan.
        lanes: largest number of lanes.
    """

    trees: TreeSpace = field(default_factory=TreeSpace)
    microbatches: tuple[int, ...] = (1, 2, 3)
    max_stages: int = 4
    shards: tuple[Shards, ...] = ()
    lanes: int = 1

    def text(self) -> str:
        """Text of the space and its values, for the certificate."""
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
"""Largest sizes that `exact_space` accepts: devices, blocks of the chain (embedding and head among
them), microbatches and lanes."""
MOST_DEVICES_OF_LANES = 6
"""Most devices if there may be several lanes; with more than MOST_DEVICES, a stage is split once
into equal parts."""


def exact_space(problem: Problem, *, blocks: int, lanes: int = 1) -> ExactSpace:
    """Exact space with up to MOST_MICROBATCHES microbatches; UsageError for too large a problem.

    With one lane the count divides the global batch.

    Raises:
        UsageError: the problem is too large for the enumeration; the message names the limits.
    """
    devices = problem.cluster.num_devices
    max_devices = MOST_DEVICES if lanes == 1 else MOST_DEVICES_OF_LANES
    if not 1 <= lanes <= MOST_LANES:
        raise UsageError(
            f"--lanes {lanes}: the exact space has plans of 1 to {MOST_LANES} lanes",
            hint=f"--lanes {MOST_LANES} or fewer",
        )
    if devices > max_devices or blocks > MOST_BLOCKS:
        raise UsageError(
            f"{blocks} blocks on {devices} devices are too many for the exact space: at most"
            f" {MOST_BLOCKS} blocks (embedding and head among them), {max_devices} devices,"
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
    """The blocks and the devices of each stage of a lane; split trees and order are still open.

    Args:
        ends: number of blocks up to the last block of each stage.
        devices: devices of each stage, by label.
    """

    microbatches: int
    ends: tuple[int, ...]
    devices: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def working(self) -> tuple[int, ...]:
        """Sorted numbers of the devices of all stages."""
        return tuple(
            sorted(
                device
                for stage in self.devices
                for label_devices in stage
                for device in label_devices
            )
        )


def device_labels(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Device numbers by class: devices of one node and the same network units are exchangeable.

    Devices of a class are in one node, and on every network level in one unit or each alone in its
    unit.
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
    for device, position in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        classes.setdefault(position, []).append(device)
    return tuple(tuple(members) for members in classes.values())


def partitions(problem: Problem, space: ExactSpace, *, blocks: int) -> Iterator[Partition]:
    """Yield every partition of a one-lane plan, up to the exchange of devices of one label.

    Devices of a label go to stages in descending order of their number in the stage, ties to the
    earlier stage.
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
    """Yield every partition of a lane on devices of these labels; `idle` allows unused devices."""
    sizes = tuple(len(label) for label in labels)
    for stages in range(1, min(max_stages, blocks, sum(sizes)) + 1):
        maps = [
            assign_devices(counts, labels) for counts in _device_counts(stages, sizes, idle=idle)
        ]
        for inner in combinations(range(1, blocks), stages - 1):
            for devices in maps:
                for number in microbatches:
                    yield Partition(microbatches=number, ends=(*inner, blocks), devices=devices)


def _device_counts(
    stages: int, sizes: tuple[int, ...], *, idle: bool
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every (stages, labels) table of device counts, with at least one device a stage."""
    if not stages:
        if idle or not sum(sizes):
            yield ()
        return
    for first in product(*(range(n + 1) for n in sizes)):
        remaining = tuple(n - k for n, k in zip(sizes, first, strict=True))
        if sum(first) and sum(remaining) >= stages - 1:
            for rest in _device_counts(stages - 1, remaining, idle=idle):
                yield first, *rest


def assign_devices(
    counts: tuple[tuple[int, ...], ...], labels: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Assign devices to stages or lanes by label, given the device counts (stages, labels)."""
    devices: list[list[tuple[int, ...]]] = [[() for _ in labels] for _ in counts]
    for number, label in enumerate(labels):
        place = 0
        for stage in sorted(range(len(counts)), key=lambda s: (-counts[s][number], s)):
            devices[stage][number] = label[place : place + counts[stage][number]]
            place += counts[stage][number]
    return tuple(tuple(stage) for stage in devices)


def stage_trees(devices: tuple[tuple[int, ...], ...], space: ExactSpace) -> Iterator[CutNode | int]:
    """Yield every split tree of a stage on devices that are grouped by label."""
    yield from labelled_trees(tuple(len(label_devices) for label_devices in devices), space.trees)
