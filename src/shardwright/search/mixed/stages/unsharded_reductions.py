"""Gradient reductions and parameter gathers of lanes that do not shard, where another lane does:
among the members of these lanes, then pieces to the owners of states.

A group of n members sums V (1 - 1/n) and sends V / n, at least, to the owners, who are all N
members (docs/decisions/0019).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.collectives.groups.tier_counts import span_of
from shardwright.cost.gradients.optimizer_owner_exchange import exchange_seconds
from shardwright.cost.gradients.wire_bytes import sum_sizes
from shardwright.cost.network.grid_groups import network_of
from shardwright.cost.network.plan_groups import group_problem
from shardwright.program.problem import Problem
from shardwright.search.mixed.stages.layer_cuts import parts_of
from shardwright.search.mixed.stages.stage_reductions import StageReductions
from shardwright.search.mixed.stages.stage_rows import filled, reductions_table, stage_rows
from shardwright.search.mixed_certificate import Frame

FEWEST = 2
"""Replicas of a lane that shards."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UnshardedReductions:
    """Gradient reductions and parameter gathers of lanes that do not shard, beside lanes that do.

    Args:
        elements: (2, pairs, blocks) of one layer of each block, dense and of experts.
        counts: (parts, blocks) how often each is in each part.
        kept: (2, pairs, parts), lanes: (2, rows, parts) as they were asked for, by what is known of
            members.
    """

    problem: Problem
    sums: StageReductions
    elements: FloatArray
    counts: IntArray
    kept: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)
    lanes: dict[tuple[int, ...], FloatArray] = field(default_factory=dict)

    @staticmethod
    def of(problem: Problem, sums: StageReductions) -> UnshardedReductions:
        """The reductions of a table of stages. Left out: exchanges of tied weights, whose gradients
        wait for other stages'.
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
        counts = parts_of(problem.model)
        if sums.table.tied:
            counts = counts * np.array([[1], [0], [0]])
        return UnshardedReductions(
            problem=problem,
            sums=sums,
            elements=np.stack(found, axis=1).astype(np.float64),
            counts=counts,
        )

    def least(self, frame: Frame, rows: BoolArray) -> FloatArray:
        """(2, pairs, parts) seconds at least in plans of a frame whose stages are of some rows: of
        any number of members of the group, of lanes that leave room for one that shards, and the
        exchange of its pieces among all.
        """
        table, plain = self.sums.table, rows & ~self.sums.table.sharded
        dp = self.sums.dp[table.pairs[rows]]
        least, most = int(dp.min(initial=self.sums.dp.max())), int(dp.max(initial=1))
        tp, size = (
            int(column[plain].min(initial=column.max())) for column in (table.tp, table.size)
        )
        low, high = frame.replicas
        many = max(high - FEWEST, 1)
        key = (low, high, least, most, tp, size)
        if key not in self.kept:
            dense = [
                self._of_members(
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
                    self._of_members(pair, many, max(low, 1 + FEWEST), stride=size, kind=1)
                    for pair in range(len(self.sums.dp))
                ]
                found = found + np.stack(some, axis=1)
            self.kept[key] = found
        return self.kept[key]

    def beside(self, frame: Frame, rows: BoolArray) -> FloatArray:
        """(2, rows, parts) seconds at least in which a lane that shards exchanges its pieces with
        those of others.

        Fewer replicas of a lane have larger pieces, so it has as many as there may be beside
        another.
        """
        table, (low, high) = self.sums.table, frame.replicas
        most, dp = np.minimum(table.room, max(high - 1, FEWEST)), self.sums.dp[table.pairs]
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
                        found[:, which] += self._exchanged(
                            pair, many, every, stride=size if kind else tp, kind=kind
                        )
            self.lanes[key] = found
        return self.lanes[key]

    def _of_members(
        self, pair: int, most: int, every: int, *, stride: int, kind: int
    ) -> FloatArray:
        """(2, parts) the least of a group of up to `most` members, at least `every` of all: those
        of experts are one a replica.
        """
        known = (self.sums.experts if kind else self.sums.dense)[
            :, pair, self.sums.strides.index(stride)
        ]
        first = 1 if kind else int(self.sums.dp[pair])
        members = np.arange(first, min(most, known.shape[1]) + 1, dtype=np.int64)
        both = known[:, members - 1] + self._exchanged(
            pair, members, np.maximum(every, members + 1), stride=stride, kind=kind
        )
        return np.asarray(both.min(axis=1))

    def _exchanged(
        self, pair: int, members: IntArray, every: IntArray, *, stride: int, kind: int
    ) -> FloatArray:
        """(2, members, parts) seconds in which a group's members exchange their pieces with all: of
        new values, and of gradients.
        """
        pool, mesh = self.sums.table.meshes[pair]
        own = filled(
            group_problem(self.problem, self.sums.table.pools[pool].group),
            by=mesh.size if kind else mesh.tp,
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
        groups = [every, *(np.maximum(every, count) for count in measured)]
        spans = [span_of(network.tiers, ((some, np.full_like(some, stride)),)) for some in groups]
        found = np.zeros((2, len(members), len(self.counts)))
        for which, width in enumerate((sizes.stored, sizes.wire)):
            for block, elements in enumerate(self.elements[kind, pair].tolist()):
                if elements:
                    spent = [
                        exchange_seconds(elements, 1.0 / members, span, network, sizes, width=width)
                        for span in spans
                    ]
                    found[which] += np.outer(np.min(spent, axis=0), self.counts[:, block])
        return found
