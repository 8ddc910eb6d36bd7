"""Peaks of members whose parts are counted once are those of each member by itself."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.bounds.rank_memory_bound import reserved_bytes
from shardwright.cost.step.strategy_rank_bytes import step_bytes_before_ordering
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.bounds.peak_memory_bounds import Peaks
from shardwright.search.grid.members.enumerate_members import member_grid
from tests.search.problems import small_case
from tests.tiers import seeds


@pytest.mark.parametrize("seed", seeds(3, 60, first=8100))
def test_peaks_of_members_in_any_order(seed: int) -> None:
    case = small_case(seed)
    bounded = bound_space(case.problem, case.space, case.facts, capacity=10**15)
    count = bounded.members.num_members
    peaks, random = Peaks(case.problem, bounded.prepared), np.random.default_rng(seed)
    for place in random.choice(count, size=min(count, 60), replace=False).tolist() if count else ():
        grid = member_grid(bounded.members, place)
        alone = step_bytes_before_ordering(case.problem, grid, bounded.prepared.priced(place))
        table = order_table(grid, microbatches=microbatches_of(case.problem, grid))
        assert peaks.of(place) == reserved_bytes(case.problem, table, alone).max()
