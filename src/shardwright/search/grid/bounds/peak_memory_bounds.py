"""Lower bounds of the peak memory of members under their orders, with shared parts cached."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import allocated_bytes
from shardwright.cost.step.strategy_rank_bytes import (
    StepBytes,
    bytes_beside_states,
    held_bytes,
    rank_cuts,
    state_bytes,
)
from shardwright.cost.tables.grid_rows_and_memory_settings import grid_choices
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.member_price_tables import Prepared
from shardwright.search.grid.members.enumerate_members import member_grid


class _StatelessBytes(NamedTuple):
    """Bytes of a step without model states, and (ranks,) bytes allocated of these at its peak."""

    kept: StepBytes
    allocated: IntArray


class Peaks:
    """Peak memory of members, from cached states (by ZeRO, offload) and the rest (by recompute)."""

    def __init__(self, problem: Problem, prepared: Prepared) -> None:
        self._problem, self._prepared = problem, prepared
        self._states: dict[tuple[int, int, int], IntArray] = {}
        self._beside: dict[tuple[int, int], _StatelessBytes] = {}

    def of(self, place: int) -> int:
        """Lower bound in bytes of the fullest rank of the member at `place`.

        The value is that of `rank_memory_bound.reserved_bytes`.
        """
        outer, zero, redo, offload = self._prepared.members.chosen(place)
        states_key, rest_key = (outer, zero, offload), (outer, redo)
        if states_key not in self._states or rest_key not in self._beside:
            self._cache_bytes(place, states_key, rest_key)
        beside = self._beside[rest_key]
        return int(
            held_bytes(self._problem, beside.kept, beside.allocated + self._states[states_key])[
                1
            ].max()
        )

    def _cache_bytes(
        self, place: int, states_key: tuple[int, int, int], rest_key: tuple[int, int]
    ) -> None:
        """Compute and cache a member's state bytes and other allocated bytes, each by rank."""
        problem, priced, grid = (
            self._problem,
            self._prepared.priced(place),
            member_grid(self._prepared.members, place),
        )
        choices = grid_choices(grid, priced.layout)
        if states_key not in self._states:
            items = state_bytes(problem, choices, priced, rank_cuts(choices, priced))
            self._states[states_key] = np.sum([values for _, values in items], axis=0)
        if rest_key not in self._beside:
            step_bytes = bytes_beside_states(problem, choices, priced)
            table = order_table(grid, microbatches=microbatches_of(problem, grid))
            self._beside[rest_key] = _StatelessBytes(step_bytes, allocated_bytes(table, step_bytes))
