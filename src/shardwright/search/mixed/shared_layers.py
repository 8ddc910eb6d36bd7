"""Least seconds of the gradient sums and gathers of layers that devices of several classes hold.

A class is the neighbouring node groups of one node kind and zone, whose units are alike. The
simulator prices a sum inside one class by the unit with the most members, and a sum over several
classes by the unit with the fewest members and by the slowest network card. So a layer that several
classes hold is summed more slowly than the frame's other terms say, whatever the algorithm:

    t >= V (1 - c / N) / (c B)

V bytes of a device's part of the layer, N members of the sum, c of them at most in the unit of a
stage that holds the layer, B bytes/s of a member's network card. What a unit sends to the others,
or gets from them, passes the cards of its own members.

The bound holds twice: for a device's own part with its own card, and for the smallest part that
stages of a higher tensor parallel degree cut the layer into, with the slowest card. In a plan each
class that alone holds some layer has a stage of every replica, so a frame of the plans with given
such classes (`Frame.sole`) has fewer pipelines, and layers of all other classes have these sums.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, groupby, pairwise
from math import inf

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.communication import network_of
from shardwright.cost.device_network import group_problem, working_problem
from shardwright.cost.sum_sizes import sum_sizes
from shardwright.hardware.cluster import Cluster
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.mixed.mesh_rows import stage_rows, sums_table
from shardwright.search.mixed.pattern import AFTER, BEFORE, LAYER, parts_of
from shardwright.search.mixed.pools import in_one_zone
from shardwright.search.mixed.tables import StageTable


def classes_of(cluster: Cluster) -> tuple[int, ...]:
    """The class of each node group: a number for neighbouring groups of one node kind and zone."""
    alike = [
        list(some)
        for _, some in groupby(cluster.groups, key=lambda group: (group.kind, group.zone))
    ]
    return tuple(number for number, some in enumerate(alike) for _ in some)


def sole_choices(classes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Each set of classes that may be those that alone hold some layer. Pipelines lie on two pools
    at most, so there are two at most.
    """
    every = sorted(set(classes))
    return (
        tuple(some for count in range(3) for some in combinations(every, count))
        if len(every) > 1
        else ()
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLayers:
    """What the sums of layers that several classes hold take at least.

    Args:
        problem: of one zone.
        classes: of each pool.
        bytes: (2, parts) of a gather and of a gradient sum of one whole part; 0 for parts with tied
            weights.
        nested: each tensor parallel degree divides the next.
    """

    problem: Problem
    table: StageTable
    classes: tuple[int, ...]
    bytes: FloatArray
    nested: bool

    @staticmethod
    def of(problem: Problem, table: StageTable) -> SharedLayers:
        """Those of a table. Sums are bounded as if all zones were one, which is never slower."""
        classes, problem = (
            classes_of(problem.cluster),
            replace(problem, cluster=in_one_zone(problem.cluster)),
        )
        counts, one = parts_of(problem.model), np.ones(1, dtype=np.int64)
        rows = stage_rows(one, one, sp=problem.runtime.sequence_parallel)
        dense = sums_table(group_problem(problem, 0), rows, one, parts=("dense",)).dense[:, 0]
        sizes = sum_sizes(problem.job, problem.runtime)
        kept = np.array(
            [part == LAYER or not table.tied for part in sorted((LAYER, BEFORE, AFTER))]
        )
        whole = (counts @ dense) * kept
        degrees = sorted(set(table.tp.tolist()))
        return SharedLayers(
            problem=problem,
            table=table,
            classes=classes,
            bytes=np.stack(
                [whole * float(min(sizes.stored, sizes.narrow)), whole * float(sizes.wire)]
            ),
            nested=all(high % low == 0 for low, high in pairwise(degrees)),
        )

    def least(self, rows: BoolArray, members: IntArray, sole: tuple[int, ...]) -> FloatArray:
        """(2, pairs, parts) seconds of a gather and of a gradient sum of one of each part, at
        least; 0 for stages of a sole class.

        Args:
            rows: (rows,) that stages of the plans may have.
            members: (pairs,) of a sum at least, where a stage of the pair is a holder.
            sole: classes that alone hold some layer; all layers of the others are shared.
        """
        table, seconds = self.table, np.zeros((2, len(self.table.meshes), self.bytes.shape[1]))
        pairs = sorted(set(table.pairs[rows].tolist()))
        units = {pair: self._unit(pair, pairs) for pair in pairs}
        for pair in pairs:
            tp, own = table.meshes[pair][1].tp, self._class(pair)
            others = [unit.card for other, unit in units.items() if self._class(other) != own]
            if own in sole or not others:
                continue
            # Another class holds the layer too: at best the one with the fastest card.
            slowest, many = min(units[pair].card, max(others)), int(members[pair])
            least = units[pair].seconds_per_byte(many) / tp
            if self.nested:
                finer = [
                    (table.meshes[other][1].tp, unit)
                    for other, unit in units.items()
                    if table.meshes[other][1].tp >= tp
                ]
                least = max(
                    least,
                    min(
                        unit.seconds_per_byte(many, slowest=slowest) / degree
                        for degree, unit in finer
                    ),
                )
            seconds[:, pair] = self.bytes * least
        return seconds

    def _class(self, pair: int) -> int:
        return self.classes[self.table.meshes[pair][0]]

    def _unit(self, pair: int, pairs: list[int]) -> _Unit:
        """The unit of a stage. Args: pairs: of the stages of the plans."""
        pool, mesh = self.table.meshes[pair]
        group = self.table.pools[pool].group
        kind = self.problem.cluster.groups[group].kind
        least_tp = min(
            self.table.meshes[other][1].tp
            for other in pairs
            if self._class(other) == self._class(pair)
        )
        further = (max(kind.inner_levels[-1].num_devices, kind.num_devices) - mesh.size) // least_tp
        return _Unit(
            members=mesh.dp + further,
            rate=self._card(group, mesh.size + further * least_tp),
            card=self._card(group, mesh.size),
        )

    def _card(self, group: int, busy: int) -> float:
        """Bytes/s that a device has on its node's network cards where so many of the node send."""
        own = group_problem(self.problem, group)
        node = own.cluster.node
        working = working_problem(own, range(min(busy, node.num_devices)))
        outside = network_of(working.cluster, library=own.runtime.collective_library).tiers[
            len(node.inner_levels) :
        ]
        return outside[0].bandwidth if outside else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """The unit that a stage lies in.

    Args:
        members: of a sum of the stage's layers in the unit at most.
        rate: bytes/s of each of them then; fewer members have a larger part of shared cards each,
            and all together a smaller one.
        card: bytes/s of each of the stage's devices where no other sends.
    """

    members: int
    rate: float
    card: float

    def seconds_per_byte(self, members: int, *, slowest: float = inf) -> float:
        """Seconds for each byte of a device's part at least.

        Args:
            members: of the sum at least. They lie in several classes, so one of them is outside the
                unit.
            slowest: bytes/s of the slowest member's card.
        """
        if members < 2:
            return 0.0
        count = min(self.members, members - 1)
        return (1.0 - count / members) / (count * min(self.rate, slowest))
