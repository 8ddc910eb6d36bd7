"""The declared space of the exact search: cuts, device sets, trees, microbatches and orders, all of them, up to symmetry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

from shardwright.cost.device_network import network_among
from shardwright.errors import UsageError
from shardwright.hardware.cluster import Cluster
from shardwright.model.ir.tensor import Dim
from shardwright.program.problem import Problem
from shardwright.search.exact.trees import Node, TreeSpace, labelled_trees
from shardwright.strategy.plan.plan import Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSpace:
    """Every plan of one lane whose stages are contiguous cuts of the block chain on disjoint sets of devices (devices may stay idle).

    A stage runs under one tree (see `search.exact.trees`); every stage has any order of its forwards and backwards (see
    `search.exact.orders`). Nothing is recomputed.

    Args:
        trees: of every stage. microbatches: numbers of them. max_stages: most stages. shards: rules of every plan (ZeRO).
    """

    trees: TreeSpace = field(default_factory=TreeSpace)
    microbatches: tuple[int, ...] = (1, 2, 3)
    max_stages: int = 4
    shards: tuple[Shards, ...] = ()

    def text(self) -> str:
        """The space in words and values."""
        dims = ",".join(dim.value for dim in self.trees.dims)
        weights = ",".join(f"{w}:1" for w in self.trees.weights)
        numbers = ",".join(map(str, self.microbatches))
        return (
            f"contiguous stages <= {self.max_stages} on disjoint device sets; trees over {dims}, weights {weights}, depth <= "
            f"{self.trees.depth}; microbatches {numbers}; all static orders; nothing recomputed"
        )


MOST_DEVICES, MOST_BLOCKS, MOST_MICROBATCHES = 4, 6, 3
"""Sizes up to which `exact_space` is searched: devices, blocks of the chain (embedding and head among them), microbatches."""


def exact_space(problem: Problem, *, blocks: int) -> ExactSpace:
    """The space of a small problem: every number of microbatches up to MOST_MICROBATCHES that divides the global batch.

    Raises:
        UsageError: the problem is too large for the enumeration; says the limits.
    """
    devices = problem.cluster.num_devices
    if devices > MOST_DEVICES or blocks > MOST_BLOCKS:
        raise UsageError(
            f"{blocks} blocks on {devices} devices are too many for the exact space: at most {MOST_BLOCKS} blocks (embedding and head "
            f"among them), {MOST_DEVICES} devices, {MOST_MICROBATCHES} microbatches",
            hint="--space joint, or fewer --max-devices",
        )
    batch = problem.job.global_batch
    trees = TreeSpace(dims=(Dim.BATCH, Dim.WIDTH, Dim.HEADS, Dim.HIDDEN))
    microbatches = tuple(m for m in range(1, MOST_MICROBATCHES + 1) if batch % m == 0)
    return ExactSpace(trees=trees, microbatches=microbatches, max_stages=devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A part of the space: where the chain is cut and which devices each stage has. Left open: its trees and its order.

    Args:
        ends: of each stage, the number of blocks up to its last one. devices: of each stage, by label.
    """

    microbatches: int
    ends: tuple[int, ...]
    devices: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def working(self) -> tuple[int, ...]:
        """Devices of all stages, by number."""
        return tuple(sorted(device for stage in self.devices for some in stage for device in some))


def device_labels(cluster: Cluster, *, library: str) -> tuple[tuple[int, ...], ...]:
    """Devices in classes that nothing tells apart: of one node, and on every tier of every network that kinds share, in one unit or each
    alone in its own.
    """
    kinds = range(len(cluster.groups))
    subsets = [(0,)] if cluster.is_uniform else [s for n in range(1, len(cluster.groups) + 1) for s in combinations(kinds, n)]
    sizes = sorted({tier.num_devices for subset in subsets for tier in network_among(cluster, subset, library).tiers})
    nodes = [number for number, size in enumerate(g.kind.num_devices for g in cluster.groups for _ in range(g.count)) for _ in range(size)]
    classes: dict[tuple[int, ...], list[int]] = {}
    for device in range(cluster.num_devices):
        units = (
            device // size if device // size * size + 1 < min(device // size * size + size, cluster.num_devices) else -1 for size in sizes
        )
        classes.setdefault((nodes[device], *units), []).append(device)
    return tuple(tuple(devices) for devices in classes.values())


def partitions(problem: Problem, space: ExactSpace, *, blocks: int) -> Iterator[Partition]:
    """Every partition, up to the exchange of devices of one label.

    Devices of a label are dealt to the stages by falling number of them there, ties to the earlier stage.
    """
    labels = device_labels(problem.cluster, library=problem.runtime.collective_library)
    sizes = tuple(len(label) for label in labels)
    for stages in range(1, min(space.max_stages, blocks, sum(sizes)) + 1):
        maps = [_dealt(counts, labels) for counts in _counts(stages, sizes)]
        for inner in combinations(range(1, blocks), stages - 1):
            for devices in maps:
                for microbatches in space.microbatches:
                    if problem.job.global_batch % microbatches == 0:
                        yield Partition(microbatches=microbatches, ends=(*inner, blocks), devices=devices)


def _counts(stages: int, sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """(stages, labels) devices of each label for each stage, at least one a stage."""
    if not stages:
        yield ()
        return
    for first in product(*(range(n + 1) for n in sizes)):
        left = tuple(n - k for n, k in zip(sizes, first, strict=True))
        if sum(first) and sum(left) >= stages - 1:
            for rest in _counts(stages - 1, left):
                yield first, *rest


def _dealt(counts: tuple[tuple[int, ...], ...], labels: tuple[tuple[int, ...], ...]) -> tuple[tuple[tuple[int, ...], ...], ...]:
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
