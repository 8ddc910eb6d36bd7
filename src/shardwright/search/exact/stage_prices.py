"""Stages of a small plan on their devices: all trees priced, one of each set with equal costs;
and lower bounds of shapes of such stages.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import reduce
from math import prod

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.exact.exact_space import ExactSpace, Partition, stage_trees
from shardwright.search.exact.stage_options import (
    Illegal,
    StageOption,
    price_stage,
    stage_of_blocks,
)
from shardwright.search.exact.stage_split_trees import Node, split_on
from shardwright.search.exact.static_orders import num_orders, pipeline_orders

NEVER = np.iinfo(np.int64).max
"""Picoseconds of what does not fit in memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageChoices:
    """Trees of one stage on its devices: numbers of all and of legal ones, and one of each set
    of equal legal ones.
    """

    trees: int
    legal: int
    options: tuple[StageOption, ...]

    @property
    def plain(self) -> StageChoices:
        """The same choices in a plan without fused overlap."""
        return replace(self, options=tuple(option.plain or option for option in self.options))


@dataclass(slots=True)
class StagePrices:
    """Stages priced so far, by blocks, devices, microbatches and all devices that work."""

    problem: Problem
    space: ExactSpace
    known: dict[object, StageChoices] = field(default_factory=dict)

    def choices(self, partition: Partition) -> tuple[StageChoices, ...]:
        """Choices of each stage of a partition."""
        working, starts = partition.working, (0, *partition.ends)
        return tuple(
            self._of(start, end, devices, microbatches=partition.microbatches, working=working)
            for start, end, devices in zip(starts, partition.ends, partition.devices, strict=False)
        )

    def _of(
        self,
        start: int,
        end: int,
        devices: tuple[tuple[int, ...], ...],
        *,
        microbatches: int,
        working: tuple[int, ...],
    ) -> StageChoices:
        key = start, end, devices, microbatches, working
        if key not in self.known:
            trees, legal = 0, 0
            unlike: dict[object, StageOption] = {}
            for tree in stage_trees(devices, self.space):
                trees += 1
                found = price_tree(
                    self.problem,
                    self.space,
                    tree,
                    devices,
                    first=start,
                    end=end,
                    microbatches=microbatches,
                    working=working,
                )
                if isinstance(found, StageOption):
                    legal += 1
                    unlike.setdefault(found.alike, found)
            self.known[key] = StageChoices(trees=trees, legal=legal, options=tuple(unlike.values()))
        return self.known[key]


def price_tree(
    problem: Problem,
    space: ExactSpace,
    tree: Node | int,
    devices: tuple[tuple[int, ...], ...],
    *,
    first: int,
    end: int,
    microbatches: int,
    working: tuple[int, ...],
) -> StageOption | Illegal:
    """Price of the stage with blocks first to end - 1 under `tree` on these devices (by label);
    see `price_stage`.
    """
    base = min(device for some in devices for device in some)
    stage = stage_of_blocks(problem, first=first, end=end, tree=split_on(tree, devices), base=base)
    return price_stage(
        problem,
        stage,
        first=first,
        end=end,
        microbatches=microbatches,
        working=working,
        shards=space.shards,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCounts:
    """Numbers of members of a partition: all, illegal ones, duplicates, and orders of a shape that
    do not deadlock.
    """

    enumerated: int
    illegal: int
    duplicates: int
    live: int


def member_counts(choices: tuple[StageChoices, ...], microbatches: int) -> PartitionCounts:
    """The members of the partition whose stages have these choices, under all orders."""
    orders = num_orders(len(choices), microbatches)
    live = len(pipeline_orders(len(choices), microbatches)[0])
    trees, legal = prod(c.trees for c in choices), prod(c.legal for c in choices)
    unlike = prod(len(c.options) for c in choices)
    return PartitionCounts(
        enumerated=trees * orders,
        illegal=(trees - legal) * orders + unlike * (orders - live),
        duplicates=(legal - unlike) * orders,
        live=live,
    )


def shape_bounds(
    choices: tuple[StageChoices, ...],
    microbatches: int,
    *,
    context: bool = False,
    shards: bool = False,
) -> IntArray:
    """A lower bound of each shape, picoseconds, one axis a stage.

    max over stages of head + m (forward + backward) + max(last bucket, tail), head and tail being
    the forwards and backwards of the stages before it on their fastest family; then the slowest
    update. Of copies the tail follows the fastest. Left out: messages.

    Args:
        context: there are other lanes, which may leave their islands too. Then sums, the norm and
            memory depend on them, and are left out; with `shards` the update is too.
    """
    shape = tuple(len(c.options) for c in choices)
    if 0 in shape:
        return np.zeros(shape, dtype=np.int64)
    found = _bounds(choices, microbatches, context=context, shards=shards)
    if not any(option.plain for c in choices for option in c.options):
        return found
    plain = _bounds(tuple(c.plain for c in choices), microbatches, context=context, shards=shards)
    leaves = reduce(
        np.logical_or.outer, [np.array([option.leaves for option in c.options]) for c in choices]
    )
    return np.where(leaves, plain, np.minimum(found, plain) if context else found)


def _bounds(
    choices: tuple[StageChoices, ...], microbatches: int, *, context: bool, shards: bool
) -> IntArray:
    """Lower bounds of shapes with the options as they are; see `shape_bounds`."""
    stages, shape = len(choices), tuple(len(c.options) for c in choices)

    def along(stage: int, values: list[int]) -> IntArray:
        return np.array(values, dtype=np.int64).reshape(
            tuple(-1 if axis == stage else 1 for axis in range(stages))
        )

    head, tail, bound, update = (np.zeros(shape, dtype=np.int64) for _ in range(4))
    fits = np.ones(shape, dtype=np.bool_)
    for stage, chosen in enumerate(choices):
        own = [microbatches * (o.forward + o.backward) for o in chosen.options]
        reduced = along(
            stage,
            [
                int((w + (0 if context else o.reduced)).max())
                for w, o in zip(own, chosen.options, strict=True)
            ],
        )
        # What copies compute is there as soon as one of them has it.
        busy = along(
            stage,
            [
                int(w.min() if o.copies else w.max())
                for w, o in zip(own, chosen.options, strict=True)
            ],
        )
        bound = np.maximum(bound, head + np.maximum(reduced, busy + tail))
        head = head + along(stage, [int(o.forward.min()) for o in chosen.options])
        tail = tail + along(stage, [int(o.backward.min()) for o in chosen.options])
        ends = [o.update if not context else 0 if shards else o.own_update for o in chosen.options]
        update = np.maximum(update, along(stage, ends))
        fits &= context | (along(stage, [o.room for o in chosen.options]) > 0)
    return np.where(fits, bound + update, NEVER)
