"""Lower bounds of the peak memory of a set's members through their actual orders, with shared
parts computed once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import allocated_bytes
from shardwright.cost.step.grid_bytes import (
    StepBytes,
    bytes_beside_states,
    held_bytes,
    rank_cuts,
    state_bytes,
)
from shardwright.cost.tables.grid_rows import grid_choices
from shardwright.program.problem import Problem
from shardwright.search.grid.bounds.bound_arrays import Prepared
from shardwright.search.grid.members.member_arrays import member_grid


class _Beside(NamedTuple):
    """Bytes of a step without its states, and (r,) bytes allocated of these at its peak."""

    kept: StepBytes
    allocated: IntArray


class Peaks:
    """Peak memory of members: states differ by ZeRO and offload, all else by recompute."""

    def __init__(self, problem: Problem, prepared: Prepared) -> None:
        self._problem, self._prepared = problem, prepared
        self._states: dict[tuple[int, int, int], IntArray] = {}
        self._beside: dict[tuple[int, int], _Beside] = {}

    def of(self, place: int) -> int:
        """Lower bound in bytes of the fullest rank of a member, as
        `rank_memory_bound.reserved_bytes` has it.
        """
        outer, zero, redo, offload = self._prepared.members.chosen(place)
        with_states, without = (outer, zero, offload), (outer, redo)
        if with_states not in self._states or without not in self._beside:
            self._count(place, with_states, without)
        beside = self._beside[without]
        return int(
            held_bytes(self._problem, beside.kept, beside.allocated + self._states[with_states])[
                1
            ].max()
        )

    def _count(
        self, place: int, with_states: tuple[int, int, int], without: tuple[int, int]
    ) -> None:
        problem, priced, grid = (
            self._problem,
            self._prepared.priced(place),
            member_grid(self._prepared.members, place),
        )
        choices = grid_choices(grid, priced.layout)
        if with_states not in self._states:
            items = state_bytes(problem, choices, priced, rank_cuts(choices, priced))
            self._states[with_states] = np.sum([values for _, values in items], axis=0)
        if without not in self._beside:
            kept = bytes_beside_states(problem, choices, priced)
            table = order_table(grid, microbatches=microbatches_of(problem, grid))
            self._beside[without] = _Beside(kept, allocated_bytes(table, kept))
