"""Every row that is far off has a sentence that says why, and every sentence is about rows of the
copy."""

from __future__ import annotations

from functools import cache, partial

import pytest

from shardwright.validation.errors.markdown_sections_shared_by_accuracy_pages import remark_of
from shardwright.validation.errors.prediction_errors import judge
from shardwright.validation.tables.table_facts_from_toml import Remark
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.predict_run import predict_fitting_run
from shardwright.validation.training.row_to_training_run import to_training_run
from shardwright.validation.training.sweep_and_scaling_checks import TrainingRow
from shardwright.validation.training.training_table_columns import TrainingMetric
from tests.tiers import in_both, in_proof
from tests.validation.published import case_of, facts, predicted, rows, some

FAR = 0.15
REMARKS = facts().remarks


@cache
def _cases() -> tuple[TrainingRun, ...]:
    return tuple(
        case_of(row) for row in rows("training.csv", "heterogeneous.csv", "megatron_ci.csv")
    )


@cache
def _judged() -> tuple[TrainingRow, ...]:
    return judge(some(_cases()), predict=partial(predicted, fold="model"), fold="model").rows


@in_both
def test_no_run_of_the_tables_is_called_too_large() -> None:
    """They ran, so they fit; of what is predicted and not judged too."""
    others = [to_training_run(row, facts=facts()) for row in rows("predicted/rows.csv")]
    found = (*_judged(), *judge(some(others), predict=predict_fitting_run).rows)
    assert len(found) > (1100 if in_proof() else 400)
    assert [
        f"{r.run.measurement.source_id} {r.run.measurement.table_or_row}: {r.infeasible}"
        for r in found
        if r.infeasible
    ] == []


@in_both
def test_rows_far_off_have_a_sentence() -> None:
    judged = _judged()
    far = [row for row in judged if row.largest_error(TrainingMetric) > FAR]
    assert far
    assert [
        f"{r.run.measurement.source_id} {r.run.measurement.table_or_row}"
        for r in far
        if not remark_of(r.run, REMARKS)
    ] == []


@pytest.mark.parametrize("remark", REMARKS, ids=lambda r: f"{REMARKS.index(r)}")
def test_a_remark_is_about_some_row(remark: Remark) -> None:
    assert any(remark_of(case, REMARKS) == remark.sentence for case in _cases())
