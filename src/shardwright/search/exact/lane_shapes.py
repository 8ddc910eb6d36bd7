"""Shapes of a lane among others (the lane without its order), each with lower bounds that hold for
any other lanes.

Stages are priced alone. What a microbatch takes forward and backward is so in every plan; sums of
gradients, the update and memory depend on the other lanes. Two stages are alike if they cost the
same alone, and each of their devices contributes the same to the same gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from shardwright.arrays import IntArray
from shardwright.hardware.device_topology import with_working_devices
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.program.stages.held_parameters import parameter_places, shares_of
from shardwright.program.stages.stage_segments import StageParts
from shardwright.search.exact.exact_space import ExactSpace, Partition, lane_partitions, stage_trees
from shardwright.search.exact.stage_options import Illegal, StageOption
from shardwright.search.exact.stage_prices import (
    StageChoices,
    member_counts,
    price_tree,
    shape_bounds,
)
from shardwright.search.exact.stage_split_trees import Node

Devices = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShape:
    """A lane without its order: its stages, and its number of microbatches."""

    options: tuple[StageOption, ...]
    microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneShapes:
    """All shapes of a lane on some devices, one of each set of equal ones.

    Args:
        enumerated, illegal: members, orders among them; see `Certificate`.
        bounds: (shapes,) picoseconds that no order of a shape is below, whatever the other lanes
            are.
        orders: (shapes,) that do not deadlock.
        parts: partitions and their stages' choices, in the order of the shapes;
        first: (parts,) their first shapes.
    """

    enumerated: int
    illegal: int
    bounds: IntArray
    orders: IntArray
    parts: tuple[tuple[Partition, tuple[StageChoices, ...]], ...]
    first: IntArray

    @property
    def kept(self) -> int:
        """Number of members that are neither illegal nor duplicates."""
        return int(self.orders.sum())

    def shape(self, number: int) -> LaneShape:
        """One shape."""
        part = int(np.searchsorted(self.first, number, side="right")) - 1
        partition, choices = self.parts[part]
        places = np.unravel_index(
            number - int(self.first[part]), tuple(len(c.options) for c in choices)
        )
        options = tuple(c.options[int(i)] for c, i in zip(choices, places, strict=True))
        return LaneShape(options=options, microbatches=partition.microbatches)


@dataclass(slots=True)
class LanePrices:
    """Lanes and their stages that were priced so far."""

    problem: Problem
    space: ExactSpace
    blocks: int
    lanes: dict[object, LaneShapes] = field(default_factory=dict)
    stages: dict[object, StageChoices] = field(default_factory=dict)
    unlike: dict[object, tuple[int, int, tuple[Node | int, ...]]] = field(default_factory=dict)

    def of(self, devices: Devices, *, microbatches: int, samples: int) -> LaneShapes:
        """Shapes of a lane that uses all of these devices (by label), with microbatches of
        `samples` samples.
        """
        key = devices, microbatches, samples
        if key not in self.lanes:
            self.lanes[key] = self._shapes(devices, microbatches=microbatches, samples=samples)
        return self.lanes[key]

    def _shapes(self, devices: Devices, *, microbatches: int, samples: int) -> LaneShapes:
        enumerated, illegal = 0, 0
        parts, bounds, orders, first = [], [np.zeros(0, dtype=np.int64)], [], []
        most = self.space.max_stages
        for partition in lane_partitions(
            devices, (microbatches,), blocks=self.blocks, max_stages=most, idle=False
        ):
            starts = (0, *partition.ends)
            stages = zip(starts, partition.ends, partition.devices, strict=False)
            choices = tuple(
                self._choices(start, end, some, samples=samples) for start, end, some in stages
            )
            counts = member_counts(choices, microbatches)
            enumerated += counts.enumerated
            illegal += counts.illegal
            first.append(sum(map(len, bounds)))
            parts.append((partition, choices))
            bounds.append(
                shape_bounds(
                    choices, microbatches, context=True, shards=bool(self.space.shards)
                ).ravel()
            )
            orders.append(np.full_like(bounds[-1], counts.live))
        return LaneShapes(
            enumerated=enumerated,
            illegal=illegal,
            bounds=np.concatenate(bounds),
            orders=np.concatenate([np.zeros(0, dtype=np.int64), *orders]),
            parts=tuple(parts),
            first=np.array(first, dtype=np.int64),
        )

    def _choices(self, start: int, end: int, devices: Devices, *, samples: int) -> StageChoices:
        key = start, end, devices, samples
        if key not in self.stages:
            self.stages[key] = self._priced(start, end, devices, samples=samples)
        return self.stages[key]

    def _priced(self, start: int, end: int, devices: Devices, *, samples: int) -> StageChoices:
        """Trees of a stage, the first of each set of equal ones; on other devices of the same
        labels the same ones are kept.
        """
        alone = replace(self.problem, job=replace(self.problem.job, global_batch=samples))
        working = tuple(sorted(d for some in devices for d in some))
        here = {"first": start, "end": end, "microbatches": 1}

        def priced(tree: Node | int, working: Sequence[int] = working) -> StageOption | Illegal:
            return price_tree(alone, self.space, tree, devices, working=tuple(working), **here)

        # What other lanes leave of cards and links tells trees apart, too.
        every = range(alone.cluster.num_devices)
        lonely = with_working_devices(alone.cluster, working) is not alone.cluster

        def beside(tree: Node | int) -> object:
            return isinstance(crowded := priced(tree, every), StageOption) and crowded.alike

        like = start, end, tuple(map(len, devices)), samples
        found: dict[Node | int, StageOption] = {}
        if like not in self.unlike:
            trees = tuple(stage_trees(devices, self.space))
            found = {
                tree: option for tree in trees if isinstance(option := priced(tree), StageOption)
            }
            kept = {
                (option.alike, lonely and beside(tree), contributions(alone, option.parts)): tree
                for tree, option in reversed(found.items())
            }
            self.unlike[like] = len(trees), len(found), tuple(reversed(kept.values()))
        trees_of, legal, unlike = self.unlike[like]
        options = tuple(
            option
            for tree in unlike
            if isinstance(option := found.get(tree) or priced(tree), StageOption)
        )
        assert len(options) == len(unlike), "devices of one label are alike"
        return StageChoices(trees=trees_of, legal=legal, options=options)


def contributions(problem: Problem, parts: StageParts) -> object:
    """Contribution of each device of a stage to the gradient of each parameter, which decides
    all reductions over lanes.
    """
    places = parameter_places(((parts,),), model=problem.model)
    length = problem.job.sequence_length
    return tuple(
        (key, tuple(tuple(shares_of(place, base=parts.base, length=length)) for place in some))
        for key, some in places.items()
    )
