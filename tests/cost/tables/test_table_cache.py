"""Tables that are kept by their rows' numbers: the same object for the same numbers, and no
other's."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.tables import table_cache as row_cache
from shardwright.cost.tables.table_cache import MOST_ROWS, cached_table
from shardwright.program.training_problem import Problem
from tests.search.problems import real_problem

PROBLEM = real_problem("llama-3.1-8b", "h100-sxm:64", seq_len=4096, global_batch=64)


@dataclass(slots=True)
class Made:
    """A table that knows what it was made of."""

    rows: DegreeRows
    given: dict[str, object] = field(default_factory=dict)


def make(problem: Problem, rows: DegreeRows, **given: object) -> Made:
    assert problem is not None
    return Made(rows, given)


def rows_with(*, tp: tuple[int, ...], name: str = "dp") -> DegreeRows:
    return DegreeRows(columns={"tp": np.array(tp), name: np.ones(len(tp), dtype=np.int64)})


def test_equal_rows_have_one_table() -> None:
    shard = np.array([1, 2])
    first = cached_table(make, PROBLEM, rows_with(tp=(3, 5)), shard=shard, modules=("a",))
    assert (
        cached_table(make, PROBLEM, rows_with(tp=(3, 5)), shard=shard.copy(), modules=("a",))
        is first
    )
    assert first.given == {"shard": shard, "modules": ("a",)}


def test_whatever_differs_has_a_table_of_its_own() -> None:
    shard = np.array([1, 2])
    first = cached_table(make, PROBLEM, rows_with(tp=(3, 5)), shard=shard, modules=("a",))
    others = (
        cached_table(make, PROBLEM, rows_with(tp=(5, 3)), shard=shard, modules=("a",)),
        cached_table(make, PROBLEM, rows_with(tp=(3, 5), name="pp"), shard=shard, modules=("a",)),
        cached_table(make, PROBLEM, rows_with(tp=(3, 5)), shard=shard[::-1], modules=("a",)),
        cached_table(make, PROBLEM, rows_with(tp=(3, 5)), shard=shard, modules=("b",)),
        cached_table(
            make,
            real_problem("llama-3.1-8b", "h100-sxm:32", seq_len=4096, global_batch=64),
            rows_with(tp=(3, 5)),
            shard=shard,
        ),
    )
    assert all(other is not first for other in others)


def test_a_large_table_is_made_each_time() -> None:
    rows = rows_with(tp=tuple(range(8)))
    assert cached_table(make, PROBLEM, rows, sets=MOST_ROWS // 8) is cached_table(
        make, PROBLEM, rows, sets=MOST_ROWS // 8
    )
    assert cached_table(make, PROBLEM, rows, sets=MOST_ROWS) is not cached_table(
        make, PROBLEM, rows, sets=MOST_ROWS
    )


def test_those_asked_for_longest_ago_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "_cache", row_cache._TableCache())
    monkeypatch.setattr(row_cache, "_MOST_ROWS_IN_ALL", 4)
    old, new = (cached_table(make, PROBLEM, rows_with(tp=(size, 1))) for size in (11, 12))
    assert cached_table(make, PROBLEM, rows_with(tp=(11, 1))) is old
    cached_table(make, PROBLEM, rows_with(tp=(13, 1)))
    assert cached_table(make, PROBLEM, rows_with(tp=(11, 1))) is old
    assert cached_table(make, PROBLEM, rows_with(tp=(12, 1))) is not new
