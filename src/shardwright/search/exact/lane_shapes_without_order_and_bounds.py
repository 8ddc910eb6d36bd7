"""Shapes of one lane (the lane without its order), with bounds that hold beside any other lanes.

Stages are priced alone. The forward and backward seconds of a microbatch are the same in every
plan; gradient reductions, the update and memory depend on the other lanes. Two stages are equal if
they cost the same alone, and each of their devices contributes the same to the same gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from shardwright.arrays import IntArray
from shardwright.hardware.cluster_network_levels import with_working_devices
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.stages.held_parameters import shares_of
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.stages.uses_of_each_parameter import parameter_places
from shardwright.program.training_problem import Problem
from shardwright.search.exact.enumerate_tensor_split_trees import CutNode
from shardwright.search.exact.exact_space import ExactSpace, Partition, lane_partitions, stage_trees
from shardwright.search.exact.price_one_stage_under_split_tree import Illegal, StageOption
from shardwright.search.exact.stage_choices_and_bounds import (
    StageChoices,
    member_counts,
    price_tree,
    shape_bounds,
)

Devices = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShape:
    """A lane without its order: its stage options, and its number of microbatches."""

    options: tuple[StageOption, ...]
    microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneShapes:
    """All distinct shapes of a lane on given devices.

    Args:
        enumerated, illegal: numbers of members, with their orders; see `Certificate`.
        bounds: (shapes,) picoseconds that no order of a shape can beat, for any other lanes.
        orders: (shapes,) numbers of orders without deadlock.
        parts: partitions and the choices of their stages, in the order of the shapes.
        first: (parts,) number of the first shape of each part.
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
        """The lane shape with a number."""
        part = int(np.searchsorted(self.first, number, side="right")) - 1
        partition, choices = self.parts[part]
        places = np.unravel_index(
            number - int(self.first[part]), tuple(len(c.options) for c in choices)
        )
        options = tuple(c.options[int(i)] for c, i in zip(choices, places, strict=True))
        return LaneShape(options=options, microbatches=partition.microbatches)


@dataclass(slots=True)
class LanePrices:
    """Cache of priced lanes and stages of one problem and space."""

    problem: Problem
    space: ExactSpace
    blocks: int
    lanes: dict[object, LaneShapes] = field(default_factory=dict)
    stages: dict[object, StageChoices] = field(default_factory=dict)
    unlike: dict[object, tuple[int, int, tuple[CutNode | int, ...]]] = field(default_factory=dict)

    def of(self, devices: Devices, *, microbatches: int, samples: int) -> LaneShapes:
        """Distinct shapes of a lane that uses all these devices, `samples` a microbatch, cached.

        Devices are grouped by label.
        """
        key = devices, microbatches, samples
        if key not in self.lanes:
            self.lanes[key] = self._shapes(devices, microbatches=microbatches, samples=samples)
        return self.lanes[key]

    def _shapes(self, devices: Devices, *, microbatches: int, samples: int) -> LaneShapes:
        """Price every partition of a lane on these devices."""
        enumerated, illegal = 0, 0
        parts, bounds, orders, first = [], [np.zeros(0, dtype=np.int64)], [], []
        max_stages = self.space.max_stages
        for partition in lane_partitions(
            devices, (microbatches,), blocks=self.blocks, max_stages=max_stages, idle=False
        ):
            starts = (0, *partition.ends)
            stages = zip(starts, partition.ends, partition.devices, strict=False)
            choices = tuple(
                self._choices(start, end, stage_devices, samples=samples)
                for start, end, stage_devices in stages
            )
            counts = member_counts(choices, microbatches)
            enumerated += counts.enumerated
            illegal += counts.illegal
            first.append(sum(map(len, bounds)))
            parts.append((partition, choices))
            bounds.append(
                shape_bounds(
                    choices, microbatches, multilane=True, shards=bool(self.space.shards)
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
        """Cached choices, distinct in cost, of the stage with blocks `start` to `end` - 1."""
        key = start, end, devices, samples
        if key not in self.stages:
            self.stages[key] = self._priced(start, end, devices, samples=samples)
        return self.stages[key]

    def _priced(self, start: int, end: int, devices: Devices, *, samples: int) -> StageChoices:
        """Price all split trees of a stage, and keep one of each set with equal costs.

        The kept trees are the same on other devices with the same labels.
        """
        alone = replace(self.problem, job=replace(self.problem.job, global_batch=samples))
        working = tuple(sorted(d for label in devices for d in label))
        stage_arguments = {"first": start, "end": end, "microbatches": 1}

        def priced(tree: CutNode | int, working: Sequence[int] = working) -> StageOption | Illegal:
            """Price of a tree if only the `working` devices run."""
            return price_tree(
                alone, self.space, tree, devices, working=tuple(working), **stage_arguments
            )

        # Network cards and links shared with other lanes distinguish trees, too.
        all_devices = range(alone.cluster.num_devices)
        shares_nodes = with_working_devices(alone.cluster, working) is not alone.cluster

        def beside(tree: CutNode | int) -> object:
            """Cost key of a tree if all devices of the cluster run, or False if illegal."""
            return isinstance(crowded := priced(tree, all_devices), StageOption) and crowded.alike

        stage_key = start, end, tuple(map(len, devices)), samples
        legal_options: dict[CutNode | int, StageOption] = {}
        if stage_key not in self.unlike:
            trees = tuple(stage_trees(devices, self.space))
            legal_options = {
                tree: option for tree in trees if isinstance(option := priced(tree), StageOption)
            }
            distinct = {
                (
                    option.alike,
                    shares_nodes and beside(tree),
                    contributions(alone, option.parts),
                ): tree
                for tree, option in reversed(legal_options.items())
            }
            self.unlike[stage_key] = (
                len(trees),
                len(legal_options),
                tuple(reversed(distinct.values())),
            )
        trees_of, legal, distinct_trees = self.unlike[stage_key]
        options = tuple(
            option
            for tree in distinct_trees
            if isinstance(option := legal_options.get(tree) or priced(tree), StageOption)
        )
        assert len(options) == len(distinct_trees), "devices of one label are alike"
        return StageChoices(trees=trees_of, legal=legal, options=options)


def contributions(problem: Problem, parts: StageParts) -> object:
    """Key of a stage: each device's contribution to the gradient of each parameter.

    The contributions decide all reductions over lanes.
    """
    parameter_places_ = parameter_places(((parts,),), model=problem.model)
    length = problem.job.sequence_length
    return tuple(
        (
            key,
            tuple(
                tuple(shares_of(place, first_device=parts.base, length=length))
                for place in places_of_key
            ),
        )
        for key, places_of_key in parameter_places_.items()
    )
