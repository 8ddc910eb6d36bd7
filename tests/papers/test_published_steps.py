"""Step times and memory that papers and repositories publish, predicted with nothing tuned for a
row or a source."""

from __future__ import annotations

from functools import cache

import pytest

from shardwright.validation.errors.prediction_errors import ErrorStatistics, error_statistics, judge
from shardwright.validation.training.training_table_columns import TrainingMetric
from tests.validation.published import case_of, predicted, rows


@cache
def _errors(source_id: str, metric: TrainingMetric) -> ErrorStatistics:
    cases = [case_of(row) for row in rows("training.csv") if row.source_id == source_id]
    judged = judge(cases, predict=predicted)
    assert not judged.skipped, "every row of these sources is complete and can be expressed"
    assert not any(row.infeasible for row in judged.rows), "a run that took place fits"
    errors = error_statistics(judged.rows, metric)
    assert errors is not None
    return errors


@pytest.mark.parametrize(
    ("source_id", "num_rows", "limit"),
    [
        # Korthikanti et al. 2022 (arXiv 2205.05198), table 5: 22B to 1T with and without sequence
        # parallelism and selective recompute.
        ("korthikanti", 8, 0.05),
        # Narayanan et al. 2021 (arXiv 2104.04473), table 1: 1.7B to 1T.
        ("mlm_sc21", 10, 0.05),
    ],
)
def test_step_times(source_id: str, num_rows: int, limit: float) -> None:
    time = _errors(source_id, TrainingMetric.TIME)
    assert time.n == num_rows
    assert time.mean < limit
    assert time.worst < 2 * limit


def test_allocated_memory_of_b200_runs() -> None:
    memory = _errors("simumax_b200", TrainingMetric.MEMORY)
    assert memory.n == 22
    assert memory.mean < 0.08
