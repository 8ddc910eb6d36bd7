"""Lower bound in seconds on gradient reductions of layers that several classes of nodes hold.

The same bound holds for the parameter all-gather of such a layer.

A class is a run of neighbouring node groups with the same node kind in the same zone. A unit is a
node, or the domain of the node's widest inner link where that has more devices (such as an NVL72
rack). All units of a class are alike. A member is a rank of the collective's process group.

The simulator prices a collective inside one class by the unit with the most members. It prices a
collective over several classes by the unit with the fewest members and by the slowest network card.
So for a layer that several classes hold, the other terms of the bound are too low. Every algorithm
of the collective takes at least

    t >= V (1 - c / N) / (c B)

- V: bytes of the layer's shard on a device (the layer over its tensor parallel degree). - N:
members of the collective. - c: the most members that the unit of one stage that holds the layer can
contain. - B: bytes/s that a member has on the network cards of its node.

The reason: the bytes that the unit exchanges with other units pass the network cards of its own
members.

The bound is applied twice, and the larger result counts:

- with a device's own shard and the bandwidth of its own card;
- with the smallest shard, that of the stages with the highest tensor parallel degree, and the
  bandwidth of the slowest card.

A class is sole in a plan where it alone holds some layer. Such a class has a stage of every
pipeline replica. `Subspace.sole` restricts a subspace to the plans with given sole classes: they
have fewer pipelines, and the layers of every other class are shared, so this bound holds for them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, groupby, pairwise
from math import inf

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.gradients.gradient_and_parameter_wire_bytes import sum_sizes
from shardwright.cost.network.grid_groups_and_collective_seconds import network_of
from shardwright.cost.network.networks_of_plan_devices import group_problem, working_problem
from shardwright.hardware.cluster import Cluster
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.degree_rows_and_gradient_reduction_seconds import (
    reductions_table,
    stage_rows,
)
from shardwright.search.mixed.stages.device_pools import merge_zones
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import (
    AFTER,
    BEFORE,
    LAYER,
    block_counts_of_parts,
)
from shardwright.search.mixed.stages.stage_cost_table import StageTable


def node_classes(cluster: Cluster) -> tuple[int, ...]:
    """Class number of each node group; neighbours of the same node kind and zone share a number.

    Neighbouring groups of the same node kind and zone have the same number.
    """
    runs = [
        list(groups)
        for _, groups in groupby(cluster.groups, key=lambda group: (group.kind, group.zone))
    ]
    return tuple(number for number, groups in enumerate(runs) for _ in groups)


def sole_choices(classes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every set of 0 to 2 classes that can be the sole classes of a plan; () for a single class.

    A pipeline lies on at most two pools, so at most two classes can be sole. Empty where the
    cluster has a single class.
    """
    class_numbers = sorted(set(classes))
    return (
        tuple(
            classes_subset
            for count in range(3)
            for classes_subset in combinations(class_numbers, count)
        )
        if len(class_numbers) > 1
        else ()
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLayers:
    """The lower bound of this module for the stages of one table.

    Args:
        problem: the problem with all zones of its cluster joined into one.
        table: the stages that plans can have.
        classes: the class number of each pool.
        bytes: (2, parts) bytes of the parameter all-gather and of the gradient reduction of one
            whole part (the layers, what is before them, what is after them); 0 for a part whose
            weights are tied.
        nested: True where each tensor parallel degree in the table divides the next larger one.
    """

    problem: Problem
    table: StageTable
    classes: tuple[int, ...]
    bytes: FloatArray
    nested: bool

    @staticmethod
    def of(problem: Problem, table: StageTable) -> SharedLayers:
        """Create the bound for a table of stages.

        Collectives are priced as if all zones were one zone. That is never slower, so the bound
        stays valid.
        """
        classes, problem = (
            node_classes(problem.cluster),
            replace(problem, cluster=merge_zones(problem.cluster)),
        )
        counts, one = block_counts_of_parts(problem.model), np.ones(1, dtype=np.int64)
        rows = stage_rows(one, one, sp=problem.runtime.sequence_parallel)
        dense = reductions_table(group_problem(problem, 0), rows, one, parts=("dense",)).dense[:, 0]
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
        """(2, pairs, parts) lower bound in seconds on all-gather and reduction of one of each part.

        0 for stages of a sole class. A pair is a (pool, mesh) of `table.meshes`.

        Args:
            rows: (rows,) boolean: the rows of the table that stages of the plans may have.
            members: (pairs,) the fewest members of a collective in which a stage of the pair is.
            sole: the sole classes; every layer of another class is shared with some class.
        """
        table, seconds = self.table, np.zeros((2, len(self.table.meshes), self.bytes.shape[1]))
        pairs = sorted(set(table.pairs[rows].tolist()))
        units = {pair: self._unit(pair, pairs) for pair in pairs}
        for pair in pairs:
            tp, own = table.meshes[pair][1].tp, self._class(pair)
            others = [unit.card for other, unit in units.items() if self._class(other) != own]
            if own in sole or not others:
                continue
            # Another class holds the layer too; at best it is the class with the fastest card.
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
        """Class number of a pair's pool."""
        return self.classes[self.table.meshes[pair][0]]

    def _unit(self, pair: int, pairs: list[int]) -> _Unit:
        """Most members in the node of a pair's stage, and a device's bytes/s on its network cards.

        Args:
            pairs: all pairs that stages of the plans may have.
        """
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
            rate=self._card_bandwidth(group, mesh.size + further * least_tp),
            card=self._card_bandwidth(group, mesh.size),
        )

    def _card_bandwidth(self, group: int, busy: int) -> float:
        """Bytes/s that a device has on its node's network cards while `busy` devices send.

        Infinite where no network leaves the node.
        """
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
        members: the most members that a collective of the stage's layers can have in the unit.
        rate: bytes/s on network cards of each member, with that many members. With fewer members,
            each can get more of the shared cards, but all of them together get no more.
        card: bytes/s on network cards of each device of the stage, where no other device sends.
    """

    members: int
    rate: float
    card: float

    def seconds_per_byte(self, members: int, *, slowest: float = inf) -> float:
        """Least collective seconds for each byte of a device's shard; 0 for one member.

        Args:
            members: the fewest members of the collective. They lie in several classes, so at least
                one of them is outside the unit.
            slowest: bytes/s on network cards of the slowest member.
        """
        if members < 2:
            return 0.0
        count = min(self.members, members - 1)
        return (1.0 - count / members) / (count * min(self.rate, slowest))
