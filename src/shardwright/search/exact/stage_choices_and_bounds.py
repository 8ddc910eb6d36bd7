"""Priced stages of a small plan: distinct split trees of each stage, and bounds of their shapes."""

from __future__ import annotations

from dataclasses import field, replace
from functools import reduce
from math import prod

import numpy as np

from shardwright.arrays import IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.exact.enumerate_forward_backward_orders import num_orders, pipeline_orders
from shardwright.search.exact.enumerate_tensor_split_trees import CutNode, split_on
from shardwright.search.exact.exact_space import ExactSpace, Partition, stage_trees
from shardwright.search.exact.price_one_stage_under_split_tree import (
    Illegal,
    StageOption,
    price_stage,
)
from shardwright.search.exact.stage_of_block_range import stage_of_blocks

NEVER = np.iinfo(np.int64).max
"""Picoseconds of a shape that does not fit in memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageChoices:
    """Split trees of one stage on its devices: counts, and one option of each set of equal ones.

    Args:
        trees, legal: numbers of all and of legal trees.
        options: one legal option of each set with equal costs.
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
    """Cache of priced stages, by blocks, devices, microbatches and all working devices."""

    problem: Problem
    space: ExactSpace
    known: dict[object, StageChoices] = field(default_factory=dict)

    def choices(self, partition: Partition) -> tuple[StageChoices, ...]:
        """Choices of each stage of a partition: priced legal split trees, one a distinct cost."""
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
        """Cached choices, distinct in cost, of the stage with blocks `start` to `end` - 1."""
        key = start, end, devices, microbatches, working
        if key not in self.known:
            trees, legal = 0, 0
            distinct: dict[object, StageOption] = {}
            for tree in stage_trees(devices, self.space):
                trees += 1
                option = price_tree(
                    self.problem,
                    self.space,
                    tree,
                    devices,
                    first=start,
                    end=end,
                    microbatches=microbatches,
                    working=working,
                )
                if isinstance(option, StageOption):
                    legal += 1
                    distinct.setdefault(option.alike, option)
            self.known[key] = StageChoices(
                trees=trees, legal=legal, options=tuple(distinct.values())
            )
        return self.known[key]


def price_tree(
    problem: Problem,
    space: ExactSpace,
    tree: CutNode | int,
    devices: tuple[tuple[int, ...], ...],
    *,
    first: int,
    end: int,
    microbatches: int,
    working: tuple[int, ...],
) -> StageOption | Illegal:
    """Price the stage with blocks first .. end - 1 under `tree` on devices grouped by label.

    See `price_stage`.
    """
    base = min(device for label_devices in devices for device in label_devices)
    stage = stage_of_blocks(
        problem, first=first, end=end, tree=split_on(tree, devices), first_device=base
    )
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
    """Numbers of members of a partition by fate.

    Args:
        enumerated, illegal, duplicates: numbers of members, with their orders.
        live: number of orders of a shape without deadlock.
    """

    enumerated: int
    illegal: int
    duplicates: int
    live: int


def member_counts(choices: tuple[StageChoices, ...], microbatches: int) -> PartitionCounts:
    """Count the members of a partition whose stages have these choices, under all orders."""
    orders = num_orders(len(choices), microbatches)
    live = len(pipeline_orders(len(choices), microbatches)[0])
    trees, legal = prod(c.trees for c in choices), prod(c.legal for c in choices)
    distinct = prod(len(c.options) for c in choices)
    return PartitionCounts(
        enumerated=trees * orders,
        illegal=(trees - legal) * orders + distinct * (orders - live),
        duplicates=(legal - distinct) * orders,
        live=live,
    )


def shape_bounds(
    choices: tuple[StageChoices, ...],
    microbatches: int,
    *,
    multilane: bool = False,
    shards: bool = False,
) -> IntArray:
    """Lower bound of each shape in picoseconds, one axis a stage; NEVER where memory cannot fit.

    max over stages of head + m (forward + backward) + max(last bucket, tail), where head and tail
    are the forwards and backwards of the stages before it on their fastest family; then the slowest
    update. With replicated compute the tail follows the fastest copy. Messages are left out.

    Args:
        multilane: other lanes exist, which may leave their islands. Then gradient reductions, the
            norm and memory depend on them, and are left out; with `shards` the update is too.
    """
    shape = tuple(len(c.options) for c in choices)
    if 0 in shape:
        return np.zeros(shape, dtype=np.int64)
    bounds = _option_bounds(choices, microbatches, multilane=multilane, shards=shards)
    if not any(option.plain for c in choices for option in c.options):
        return bounds
    plain = _option_bounds(
        tuple(c.plain for c in choices), microbatches, multilane=multilane, shards=shards
    )
    leaves = reduce(
        np.logical_or.outer, [np.array([option.leaves for option in c.options]) for c in choices]
    )
    return np.where(leaves, plain, np.minimum(bounds, plain) if multilane else bounds)


def _option_bounds(
    choices: tuple[StageChoices, ...], microbatches: int, *, multilane: bool, shards: bool
) -> IntArray:
    """Lower bounds of shapes in picoseconds for the given options; see `shape_bounds`."""
    stages, shape = len(choices), tuple(len(c.options) for c in choices)

    def along(stage: int, values: list[int]) -> IntArray:
        """The values of one stage, shaped to broadcast along the stage's axis."""
        return np.array(values, dtype=np.int64).reshape(
            tuple(-1 if axis == stage else 1 for axis in range(stages))
        )

    head, tail, bound, update = (np.zeros(shape, dtype=np.int64) for _ in range(4))
    fits = np.ones(shape, dtype=np.bool_)
    for stage, stage_choices in enumerate(choices):
        compute = [microbatches * (o.forward + o.backward) for o in stage_choices.options]
        reduced = along(
            stage,
            [
                int((w + (0 if multilane else o.reduced)).max())
                for w, o in zip(compute, stage_choices.options, strict=True)
            ],
        )
        # A replicated result is available as soon as one copy has it.
        busy = along(
            stage,
            [
                int(w.min() if o.copies else w.max())
                for w, o in zip(compute, stage_choices.options, strict=True)
            ],
        )
        bound = np.maximum(bound, head + np.maximum(reduced, busy + tail))
        head = head + along(stage, [int(o.forward.min()) for o in stage_choices.options])
        tail = tail + along(stage, [int(o.backward.min()) for o in stage_choices.options])
        updates = [
            o.update if not multilane else 0 if shards else o.own_update
            for o in stage_choices.options
        ]
        update = np.maximum(update, along(stage, updates))
        fits &= multilane | (along(stage, [o.room for o in stage_choices.options]) > 0)
    return np.where(fits, bound + update, NEVER)
