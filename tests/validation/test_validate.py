"""Judging rows: errors, statistics by source, the JSON face and the page."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shardwright.errors import InfeasibleError, StrategyError, UsageError
from shardwright.simulator.prediction import Counted, Prediction, StageMemory
from shardwright.validation.errors.prediction_errors import (
    error_statistics,
    grouped,
    judge,
    source_of,
)
from shardwright.validation.table_reader_and_fold_validation import Fitted, Study
from shardwright.validation.tables.skipped_rows import SkippedRow, SkipReason
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.training.accuracy_page import accuracy_page
from shardwright.validation.training.kinds_of_cross_validation_folds import FOLDS
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.predict_run import require_fits
from shardwright.validation.training.row_to_training_run import to_training_run
from shardwright.validation.training.sweep_and_scaling_checks import TrainingValidation
from shardwright.validation.training.training_table_columns import TrainingMetric
from shardwright.validation.training.training_table_reader_and_json import TRAINING, validation_json
from tests.validation.published import case_of, facts, rows

TIME, MEMORY = TrainingMetric
ROW_KEYS = {
    "source_id",
    "table_or_row",
    "model_name",
    "gpu",
    "gpu_count",
    "runtime",
    "strategy",
    "fold",
    "measured_kind",
    "measured_s",
    "predicted_s",
    "interval_s",
    "error",
    "memory_kind",
    "measured_memory_bytes",
    "predicted_memory_bytes",
    "memory_error",
}


def _cases(*sources: str) -> tuple[TrainingRun, ...]:
    return tuple(case_of(r) for r in rows("training.csv") if r.source_id in sources)


def _skipped() -> tuple[TrainingRun | SkippedRow, ...]:
    return tuple(to_training_run(r, facts=facts()) for r in rows("skipped_training.csv"))


def _stage(rank: int, allocated: int) -> StageMemory:
    return StageMemory(
        rank=rank, devices=1, layers="1 layer", items=(), allocated=allocated, reserved=allocated
    )


def _prediction(*, seconds: float, allocated: int = 10, capacity: int = 0) -> Prediction:
    return Prediction(
        devices=8,
        idle_devices=0,
        model=Counted(name="m", parameters=1, active=1, trainable=1),
        cluster="a node",
        step_time_s=seconds,
        interval_s=(0.9 * seconds, 1.1 * seconds),
        tokens_per_s=1.0,
        tokens_per_s_per_device=1.0,
        mfu_causal=0.5,
        mfu_full=0.5,
        allocated_bytes=allocated,
        reserved_bytes=allocated,
        capacity_bytes=capacity,
        full_bytes=0,
        fits=allocated <= capacity,
        stages=(_stage(1, allocated // 2), _stage(0, allocated)),
        breakdown_s=(),
    )


def _slow(case: TrainingRun) -> Prediction:
    """Ten percent too slow; first stages right, last stages half."""
    return _prediction(seconds=1.1 * (case.measured_s or 1.0), allocated=case.memory_bytes or 10)


def test_errors_and_statistics() -> None:
    validation = judge(_cases("korthikanti", "mlm_sc21"), predict=_slow)
    assert len(validation.rows) == 18
    assert all(row.error(TIME) == pytest.approx(0.1) for row in validation.rows)
    groups = grouped(validation.rows, source_of)
    assert [*groups] == ["mlm_sc21", "korthikanti"]
    time = error_statistics(groups["korthikanti"], TIME)
    assert time is not None
    assert (time.n, error_statistics(groups["korthikanti"], MEMORY)) == (8, None)
    for figure in (time.mean, time.median, time.worst, time.bias):
        assert figure == pytest.approx(0.1)


def test_infeasible_counts_as_a_hundred_percent_and_not_in_the_bias() -> None:
    rows = _cases("korthikanti")

    def predict(case: TrainingRun) -> Prediction:
        if case.measurement.model_name == "megatron-1T":
            raise InfeasibleError("90 GiB on 80 GiB")
        if case.measurement.model_name == "turing-530B":
            require_fits(_prediction(seconds=1.0, allocated=11, capacity=10))
        return _slow(case)

    validation = judge(rows, predict=predict)
    assert sum(bool(row.infeasible) for row in validation.rows) == 4
    time = error_statistics(validation.rows, TIME)
    assert time is not None
    assert time.mean == pytest.approx((4 * 1.0 + 4 * 0.1) / 8)
    assert time.bias == pytest.approx(0.1)
    assert {row.infeasible for row in validation.rows if row.infeasible} == {
        "90 GiB on 80 GiB",
        "11 bytes on a device of 10",
    }
    assert all(row.predicted(TIME) is None for row in validation.rows if row.infeasible)


def test_what_a_predictor_cannot_express_is_skipped() -> None:
    def predict(case: TrainingRun) -> Prediction:
        raise StrategyError("no such schedule", rule="schedule")

    validation = judge(_cases("korthikanti"), predict=predict)
    assert not validation.rows
    assert {(skip.reason, skip.detail) for skip in validation.skipped} == {
        (SkipReason.UNSUPPORTED_STRATEGY, "no such schedule [schedule]")
    }


def test_memory_is_compared_like_with_like() -> None:
    validation = judge(_cases("simumax_b200", "torchtitan"), predict=_slow)
    errors = {row.run.memory_kind.value: row.error(MEMORY) for row in validation.rows}
    assert errors["allocated-first-stage"] == pytest.approx(0.0)
    assert errors["reserved-worst"] == pytest.approx(0.0)
    golden = judge([case_of(r) for r in rows("megatron_ci.csv")[:5]], predict=_slow)
    assert all(row.error(MEMORY) == pytest.approx(-0.5, abs=1e-6) for row in golden.rows)
    assert all(row.error(TIME) is None for row in golden.rows)


def test_folds_label_cases() -> None:
    rows = _cases("korthikanti", "mosaic")

    def labels(fold: str) -> set[str]:
        return {row.fold for row in judge(rows, predict=_slow, key=FOLDS[fold].key).rows}

    assert labels("none") == {""}
    assert labels("source") == {"megatron-papers", "mosaic"}
    assert labels("accelerator") == {"a100-sxm-80gb", "a100-sxm-40gb", "h100-sxm"}
    with pytest.raises(UsageError, match="did you mean source"):
        TRAINING.study(rows, facts=TableFacts(), folds=("sorce",))


def test_failures_are_judged_apart() -> None:
    row = replace(_cases("korthikanti")[0], ran=False, measured_s=None)

    def refuse(case: TrainingRun) -> Prediction:
        raise InfeasibleError("too large")

    right, wrong = judge([row], predict=refuse), judge([row], predict=_slow)
    assert [bool(f.infeasible) for f in (*right.failures, *wrong.failures)] == [True, False]
    assert (right.predicted_failures, wrong.predicted_failures) == (1, 0)
    assert not right.rows


def _everything() -> TrainingValidation:
    skipped = _skipped()
    return judge((*_cases("korthikanti", "simumax_b200"), *skipped), predict=_slow)


def test_json_face() -> None:
    face = json.loads(json.dumps(validation_json(_everything()), allow_nan=False))
    assert set(face) >= {"rows", "by_source", "skipped"}
    assert all(set(row) >= ROW_KEYS for row in face["rows"])
    assert all(set(skip) >= {"source_id", "table_or_row", "reason"} for skip in face["skipped"])
    assert face["by_source"]["korthikanti"]["time"]["n"] == 8
    paper = next(row for row in face["rows"] if row["source_id"] == "korthikanti")
    assert paper["strategy"].startswith("tp8")
    assert paper["memory_kind"] is None


def test_page_lists_sources_far_rows_and_skips() -> None:
    def predict(case: TrainingRun) -> Prediction:
        factor = 1.5 if case.measurement.model_name == "gpt3-175B" else 1.0
        return _prediction(
            seconds=factor * (case.measured_s or 1.0), allocated=case.memory_bytes or 10
        )

    skipped = _skipped()
    judged = judge((*_cases("korthikanti", "simumax_b200"), *skipped), predict=predict)
    page = accuracy_page(Study(fitted=Fitted(), validations=(judged,)), facts=facts())
    assert "| korthikanti | 8 | 12.5 % | 0.0 % | 50.0 % | +12.5 % | 75.0 % | 0 |" in page
    assert page.count("| korthikanti | Table5 gpt3-175B") == 2
    assert "+50.0 %" in page
    assert "## Memory by source" in page
    assert "| low-quality |" in page
    widths = {
        line.count("|") - line.count("\\|")
        for line in page.splitlines()
        if line.startswith("| korthikanti | T")
    }
    assert widths == {10}


def test_page_of_nothing() -> None:
    page = accuracy_page(
        Study(fitted=Fitted(), validations=(judge([], predict=_slow),)), facts=TableFacts()
    )
    assert "None." in page
