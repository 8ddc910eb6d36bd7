"""Seconds of gradient reductions and parameter all-gathers of stages of mixed plans.

They depend on the fewest members and on the most members that share a node. Dense parameters are
reduced by all data-parallel members of all replicas, those of an expert by one device of each
replica.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.network.grid_groups_and_collective_seconds import Axes
from shardwright.cost.network.networks_of_plan_devices import group_problem
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.program.training_problem import Problem
from shardwright.search.mixed.stages.degree_rows_and_gradient_reduction_seconds import (
    reductions_table,
    stage_rows,
    with_full_nodes,
)
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import (
    block_counts_of_parts,
)
from shardwright.search.mixed.stages.stage_cost_table import StageTable
from shardwright.search.mixed_cluster_certificate import Subspace

GATHER, REDUCE = range(2)


@dataclass(frozen=True, kw_only=True, eq=False)
class StageReductions:
    """Seconds of an all-gather and of a gradient reduction of one of each part.

    Args:
        strides: distances in devices between neighbouring members, ascending.
        dense: (2, pairs, strides, members, parts) seconds of dense parameters, from one member on.
        experts: the same of expert parameters, with one member a replica; empty for models without
            experts.
        dp: (pairs,) data-parallel members of a replica.
    """

    table: StageTable
    strides: tuple[int, ...]
    dense: FloatArray
    experts: FloatArray
    dp: IntArray

    @staticmethod
    def of(problem: Problem, table: StageTable, *, replicas: int) -> StageReductions:
        """Price all-gathers and reductions of up to `replicas` replicas."""
        dp = np.array([mesh.dp for _, mesh in table.meshes], dtype=np.int64)
        strides = tuple(sorted({one for _, mesh in table.meshes for one in (mesh.tp, mesh.size)}))
        of_pairs = range(len(table.meshes))
        dense = [
            _dense_seconds(problem, table, pair, strides, replicas * int(dp.max()))
            for pair in of_pairs
        ]
        copied = of_pairs if table.experts.any() else ()
        experts = [_expert_seconds(problem, table, pair, strides, replicas) for pair in copied]
        return StageReductions(
            table=table,
            strides=strides,
            dense=np.stack(dense, axis=1),
            experts=np.stack(experts, axis=1) if experts else np.zeros(0),
            dp=dp,
        )

    def members(self, subspace: Subspace, rows: BoolArray) -> tuple[IntArray, IntArray]:
        """(pairs,) fewest and most members of a collective in the plans of a subspace.

        Args:
            rows: (rows,) True for the table rows that the other stages may have.
        """
        dp_of_rows = self.dp[self.table.pairs[rows]]
        low, high = (count - 1 for count in subspace.replicas)
        return self.dp + low * dp_of_rows.min(
            initial=self.dp.max()
        ), self.dp + high * dp_of_rows.max(initial=1)

    def least(self, subspace: Subspace, rows: BoolArray) -> FloatArray:
        """(2, pairs, parts) least seconds of all-gathers and reductions over a subspace's plans.

        Members may be as near to each other as those of any of the rows.

        Args:
            rows: (rows,) True for the table rows that stages of the plans may have.
        """
        low, high = self.members(subspace, rows)
        tp, size = (
            self._stride_index(column[rows].min(initial=column.max()))
            for column in (self.table.tp, self.table.size)
        )
        seconds = np.stack(
            [
                self.dense[:, pair, tp, low[pair] - 1 : high[pair]].min(axis=1)
                for pair in range(len(low))
            ],
            axis=1,
        )
        if self.experts.size:
            seconds = seconds + self.experts[
                :, :, size, subspace.replicas[0] - 1 : subspace.replicas[1]
            ].min(axis=2)
        return np.asarray(seconds)

    def row_seconds(self, row: int, *, members: int, replicas: int) -> FloatArray:
        """(2, parts) all-gather and reduction seconds of stage row `row` at given group sizes."""
        pair, mesh = int(self.table.pairs[row]), self.table.mesh(row)
        seconds = self.dense[:, pair, self._stride_index(mesh.tp), members - 1]
        if self.experts.size:
            seconds = seconds + self.experts[:, pair, self._stride_index(mesh.size), replicas - 1]
        return np.asarray(seconds)

    def _stride_index(self, devices: int) -> int:
        """Index of a distance in devices in `strides`."""
        return self.strides.index(int(devices))


def _dense_seconds(
    problem: Problem, table: StageTable, pair: int, strides: tuple[int, ...], max_members: int
) -> FloatArray:
    """(2, strides, members, parts) seconds of all-gathers and reductions of dense parameters."""
    members = np.arange(1, max_members + 1, dtype=np.int64)
    tp = np.full(max_members, table.meshes[pair][1].tp)
    rows = [
        stage_rows(tp, np.ones_like(tp), sp=True, dp=members, stride=stride) for stride in strides
    ]
    return np.stack(
        [_part_seconds(problem, table, pair, some, members, parts=("dense",)) for some in rows],
        axis=1,
    )


def _expert_seconds(
    problem: Problem, table: StageTable, pair: int, strides: tuple[int, ...], max_replicas: int
) -> FloatArray:
    """(2, strides, replicas, parts) seconds of all-gathers and reductions of experts alone."""
    mesh, replicas = table.meshes[pair][1], np.arange(1, max_replicas + 1, dtype=np.int64)
    ones = np.ones_like(replicas)
    rows = stage_rows(
        mesh.tp * ones, ones, sp=True, dp=mesh.dp * replicas, ep=mesh.ep, stride=mesh.tp
    )
    along = [((ones, ones), (replicas, stride * ones)) for stride in strides]
    return np.stack(
        [
            _part_seconds(
                problem, table, pair, rows, mesh.dp * replicas, parts=("experts",), copies=one
            )
            for one in along
        ],
        axis=1,
    )


def _part_seconds(
    problem: Problem,
    table: StageTable,
    pair: int,
    rows: DegreeRows,
    shard: IntArray,
    *,
    parts: tuple[str, ...],
    copies: Axes | None = None,
) -> FloatArray:
    """(2, rows, parts) seconds of all-gathers, reductions: of one layer unit, before, after all."""
    pool, mesh = table.meshes[pair]
    own = with_full_nodes(
        group_problem(problem, table.pools[pool].group),
        set_size=mesh.size if "experts" in parts else mesh.tp,
    )
    counts = block_counts_of_parts(problem.model)
    found = reductions_table(own, rows, shard, parts=parts, copies=copies)
    return np.stack(
        [np.einsum("pb,bn->np", counts, seconds) for seconds in (found.gather, found.reduce)]
    )
