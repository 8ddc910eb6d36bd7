"""Gradient reductions and all-gathers of lanes that do not shard, where another lane does.

The members of these lanes reduce first, then send pieces to the owners of the optimizer states. A
group of n members reduces V (1 - 1/n) bytes and sends at least V / n to the owners, who are all N
members (docs/decisions/0019).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import span_of
from shardwright.cost.gradients.gradient_and_parameter_wire_bytes import sum_sizes
from shardwright.cost.gradients.optimizer_state_owner_exchange_seconds import (
    state_owner_exchange_seconds,
)
from shardwright.cost.network.grid_groups_and_collective_seconds import network_of
from shardwright.cost.network.networks_of_plan_devices import group_problem
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.degree_rows_and_gradient_reduction_seconds import (
    reductions_table,
    stage_rows,
    with_full_nodes,
)
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import (
    block_counts_of_parts,
)
from shardwright.search.mixed.stages.stage_gradient_reductions import StageReductions
from shardwright.search.mixed_cluster_certificate import Subspace

FEWEST = 2
"""Fewest replicas of a lane that shards."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UnshardedReductions:
    """Least seconds of reductions and all-gathers of lanes that do not shard, beside lanes that do.

    Args:
        elements: (2, pairs, blocks) parameters of one layer of each block, dense and of experts.
        counts: (parts, blocks) number of times that each block is in each part.
        kept, lanes: caches of (2, pairs, parts) and (2, rows, parts) seconds, by the members.
    """

    problem: Problem
    sums: StageReductions
    elements: FloatArray
    counts: IntArray
    kept: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)
    lanes: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)

    @staticmethod
    def of(problem: Problem, sums: StageReductions) -> UnshardedReductions:
        """Create the reductions for a table of stages.

        Left out: exchanges of tied weights, whose gradients wait for other stages.
        """
        found = []
        for pool, mesh in sums.table.meshes:
            own, tp = group_problem(problem, sums.table.pools[pool].group), np.array([mesh.tp])
            rows = stage_rows(
                tp,
                np.ones_like(tp),
                sp=own.runtime.sequence_parallel,
                dp=mesh.dp,
                ep=mesh.ep,
                stride=tp,
            )
            table = reductions_table(own, rows, np.array([mesh.dp]))
            found.append(np.stack([table.dense[:, 0], table.experts[:, 0]]))
        counts = block_counts_of_parts(problem.model)
        if sums.table.tied:
            counts = counts * np.array([[1], [0], [0]])
        return UnshardedReductions(
            problem=problem,
            sums=sums,
            elements=np.stack(found, axis=1).astype(np.float64),
            counts=counts,
        )

    def least(self, subspace: Subspace, rows: BoolArray) -> FloatArray:
        """(2, pairs, parts) least seconds of all-gather and reduction of lanes that do not shard.

        The least over all numbers of members of the group that leave room for a lane that shards,
        with the exchange of the pieces among all members.

        Args:
            rows: (rows,) True for the table rows that stages of the plans may have.
        """
        table, plain = self.sums.table, rows & ~self.sums.table.sharded
        dp = self.sums.dp[table.pairs[rows]]
        least, most = int(dp.min(initial=self.sums.dp.max())), int(dp.max(initial=1))
        tp, size = (
            int(column[plain].min(initial=column.max())) for column in (table.tp, table.size)
        )
        low, high = subspace.replicas
        many = max(high - FEWEST, 1)
        key = (low, high, least, most, tp, size)
        if key not in self.kept:
            dense = [
                self._least_of_group(
                    pair,
                    int(dp) + (many - 1) * most,
                    max(low * least, int(dp) + FEWEST * least),
                    stride=tp,
                    kind=0,
                )
                for pair, dp in enumerate(self.sums.dp)
            ]
            found = np.stack(dense, axis=1)
            if self.sums.experts.size:
                some = [
                    self._least_of_group(pair, many, max(low, 1 + FEWEST), stride=size, kind=1)
                    for pair in range(len(self.sums.dp))
                ]
                found = found + np.stack(some, axis=1)
            self.kept[key] = found
        return self.kept[key]

    def exchange_seconds_of_sharding_lanes(self, subspace: Subspace, rows: BoolArray) -> FloatArray:
        """(2, rows, parts) least seconds of a sharding lane's exchange of pieces with other lanes.

        Fewer replicas of a lane have larger pieces, so the lane has as many replicas as there may
        be beside another lane.
        """
        table, (low, high) = self.sums.table, subspace.replicas
        most, dp = np.minimum(table.max_replicas, max(high - 1, FEWEST)), self.sums.dp[table.pairs]
        tp, size = (
            int(column[rows].min(initial=column.max())) for column in (table.tp, table.size)
        )
        key = (low, high, tp, size)
        if key not in self.lanes:
            found = np.zeros((2, len(table), len(self.counts)))
            least = int(self.sums.dp.min())
            for pair in range(len(self.sums.dp)):
                which = np.flatnonzero(table.sharded & (table.pairs == pair))
                for kind, many in enumerate((most[which] * dp[which], most[which])):
                    if len(which) and self.elements[kind, pair].any():
                        every = np.full_like(many, max(low, FEWEST + 1) * (1 if kind else least))
                        found[:, which] += self._piece_exchange_seconds(
                            pair, many, every, stride=size if kind else tp, kind=kind
                        )
            self.lanes[key] = found
        return self.lanes[key]

    def _least_of_group(
        self, pair: int, max_members: int, all_members: int, *, stride: int, kind: int
    ) -> FloatArray:
        """(2, parts) least seconds of one group's reduction and exchange, over its member counts.

        The group has up to `max_members` members, beside at least `all_members` in all.

        Args:
            kind: 0 = dense parameters, 1 = expert parameters, with one member a replica.
        """
        seconds_by_members = (self.sums.experts if kind else self.sums.dense)[
            :, pair, self.sums.strides.index(stride)
        ]
        first = 1 if kind else int(self.sums.dp[pair])
        members = np.arange(
            first, min(max_members, seconds_by_members.shape[1]) + 1, dtype=np.int64
        )
        both = seconds_by_members[:, members - 1] + self._piece_exchange_seconds(
            pair, members, np.maximum(all_members, members + 1), stride=stride, kind=kind
        )
        return np.asarray(both.min(axis=1))

    def _piece_exchange_seconds(
        self, pair: int, members: IntArray, all_members: IntArray, *, stride: int, kind: int
    ) -> FloatArray:
        """(2, members, parts) seconds of exchanging pieces with all: new values, and gradients."""
        pool, mesh = self.sums.table.meshes[pair]
        own = with_full_nodes(
            group_problem(self.problem, self.sums.table.pools[pool].group),
            set_size=mesh.size if kind else mesh.tp,
        )
        network, sizes = (
            network_of(own.cluster, library=own.runtime.collective_library),
            sum_sizes(own.job, own.runtime),
        )
        # More members take no less time, but for groups of a size that was measured.
        measured = {
            curve.num_devices
            for curve in network.curves
            if curve.collective == Collective.ALL_TO_ALL.value
        }
        groups = [all_members, *(np.maximum(all_members, count) for count in measured)]
        spans = [span_of(network.tiers, ((some, np.full_like(some, stride)),)) for some in groups]
        found = np.zeros((2, len(members), len(self.counts)))
        for which, width in enumerate((sizes.stored, sizes.wire)):
            for block, elements in enumerate(self.elements[kind, pair].tolist()):
                if elements:
                    spent = [
                        state_owner_exchange_seconds(
                            elements, 1.0 / members, span, network, sizes, element_bytes=width
                        )
                        for span in spans
                    ]
                    found[which] += np.outer(np.min(spent, axis=0), self.counts[:, block])
        return found
