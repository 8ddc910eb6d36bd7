"""Gradient sums and gathers of stages of mixed plans, by how many members there are at least and
how many share a node at most.

Dense parameters are summed by all data-parallel members of all replicas, those of an expert by one
device of each replica.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.degree_columns import Rows
from shardwright.cost.network.grid_groups import Axes
from shardwright.cost.network.plan_groups import group_problem
from shardwright.program.problem import Problem
from shardwright.search.mixed.stages.layer_cuts import parts_of
from shardwright.search.mixed.stages.stage_rows import filled, reductions_table, stage_rows
from shardwright.search.mixed.stages.stage_tables import StageTable
from shardwright.search.mixed_certificate import Frame

GATHER, REDUCE = range(2)


@dataclass(frozen=True, kw_only=True, eq=False)
class StageReductions:
    """Seconds of a gather and of a gradient sum of one of each part.

    Args:
        strides: that members stand apart, ascending.
        dense: (2, pairs, strides, members, parts), from one member on.
        experts: the same of the holders of experts, one a replica; of models without experts
            nothing.
        dp: (pairs,) members of a replica.
    """

    table: StageTable
    strides: tuple[int, ...]
    dense: FloatArray
    experts: FloatArray
    dp: IntArray

    @staticmethod
    def of(problem: Problem, table: StageTable, *, replicas: int) -> StageReductions:
        """Seconds of gathers and reductions of up to `replicas` replicas."""
        dp = np.array([mesh.dp for _, mesh in table.meshes], dtype=np.int64)
        strides = tuple(sorted({one for _, mesh in table.meshes for one in (mesh.tp, mesh.size)}))
        of_pairs = range(len(table.meshes))
        dense = [
            _dense(problem, table, pair, strides, replicas * int(dp.max())) for pair in of_pairs
        ]
        copied = of_pairs if table.experts.any() else ()
        experts = [_experts(problem, table, pair, strides, replicas) for pair in copied]
        return StageReductions(
            table=table,
            strides=strides,
            dense=np.stack(dense, axis=1),
            experts=np.stack(experts, axis=1) if experts else np.zeros(0),
            dp=dp,
        )

    def members(self, frame: Frame, rows: BoolArray) -> tuple[IntArray, IntArray]:
        """(pairs,) least and most members of plans of a frame that have a stage of the pair, whose
        other stages are of some rows.
        """
        some = self.dp[self.table.pairs[rows]]
        low, high = (count - 1 for count in frame.replicas)
        return self.dp + low * some.min(initial=self.dp.max()), self.dp + high * some.max(initial=1)

    def least(self, frame: Frame, rows: BoolArray) -> FloatArray:
        """(2, pairs, parts) seconds at least in plans of a frame whose stages are of some rows;
        members may stand as near as any's.
        """
        low, high = self.members(frame, rows)
        tp, size = (
            self._stride(column[rows].min(initial=column.max()))
            for column in (self.table.tp, self.table.size)
        )
        found = np.stack(
            [
                self.dense[:, pair, tp, low[pair] - 1 : high[pair]].min(axis=1)
                for pair in range(len(low))
            ],
            axis=1,
        )
        if self.experts.size:
            found = found + self.experts[:, :, size, frame.replicas[0] - 1 : frame.replicas[1]].min(
                axis=2
            )
        return np.asarray(found)

    def of_row(self, row: int, *, members: int, replicas: int) -> FloatArray:
        """(2, parts) seconds with so many members and replicas of the row's own mesh."""
        pair, mesh = int(self.table.pairs[row]), self.table.mesh(row)
        found = self.dense[:, pair, self._stride(mesh.tp), members - 1]
        if self.experts.size:
            found = found + self.experts[:, pair, self._stride(mesh.size), replicas - 1]
        return np.asarray(found)

    def _stride(self, devices: int) -> int:
        return self.strides.index(int(devices))


def _dense(
    problem: Problem, table: StageTable, pair: int, strides: tuple[int, ...], most: int
) -> FloatArray:
    """(2, strides, members, parts) of all parameters but those of experts."""
    members = np.arange(1, most + 1, dtype=np.int64)
    tp = np.full(most, table.meshes[pair][1].tp)
    rows = [
        stage_rows(tp, np.ones_like(tp), sp=True, dp=members, stride=stride) for stride in strides
    ]
    return np.stack(
        [_priced(problem, table, pair, some, members, parts=("dense",)) for some in rows], axis=1
    )


def _experts(
    problem: Problem, table: StageTable, pair: int, strides: tuple[int, ...], most: int
) -> FloatArray:
    """(2, strides, replicas, parts) of the parameters of experts."""
    mesh, replicas = table.meshes[pair][1], np.arange(1, most + 1, dtype=np.int64)
    ones = np.ones_like(replicas)
    rows = stage_rows(
        mesh.tp * ones, ones, sp=True, dp=mesh.dp * replicas, ep=mesh.ep, stride=mesh.tp
    )
    along = [((ones, ones), (replicas, stride * ones)) for stride in strides]
    return np.stack(
        [
            _priced(problem, table, pair, rows, mesh.dp * replicas, parts=("experts",), copies=one)
            for one in along
        ],
        axis=1,
    )


def _priced(
    problem: Problem,
    table: StageTable,
    pair: int,
    rows: Rows,
    shard: IntArray,
    *,
    parts: tuple[str, ...],
    copies: Axes | None = None,
) -> FloatArray:
    """(2, rows, parts of the model) seconds of gathers and gradient sums."""
    pool, mesh = table.meshes[pair]
    own = filled(
        group_problem(problem, table.pools[pool].group),
        by=mesh.size if "experts" in parts else mesh.tp,
    )
    counts = parts_of(problem.model)
    found = reductions_table(own, rows, shard, parts=parts, copies=copies)
    return np.stack(
        [np.einsum("pb,bn->np", counts, seconds) for seconds in (found.gather, found.reduce)]
    )
