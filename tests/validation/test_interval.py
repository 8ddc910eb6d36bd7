"""Intervals: coefficients that hold the asked share of rows, and what a doubt does."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from shardwright.simulator.prediction import Doubt
from shardwright.simulator.step_time_interval import COEFFICIENTS, interval
from shardwright.validation.errors.prediction_errors import JudgedRow
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.predict_run import predict_run
from shardwright.validation.training.sweep_and_scaling_checks import TrainingRow, coverage
from tests.cli.answers import PREDICTION
from tests.validation.published import case_of, rows
from tools.interval_fit import interval_coefficients

ANY, EXPERTS = Doubt(name="any", share=1.0), Doubt(name="experts", share=1.0)


def _case() -> TrainingRun:
    return next(case_of(row) for row in rows("training.csv") if row.source_id == "korthikanti")


def _rows(generator: np.random.Generator, *, n: int) -> list[TrainingRow]:
    """Rows whose residuals are normal: 3 % wide, and 12 % wide where there are experts."""
    run, rows = _case(), []
    for index in range(n):
        doubts = (ANY, EXPERTS) if index % 2 else (ANY,)
        residual = generator.normal(0.0, 0.12 if index % 2 else 0.03)
        rows.append(
            JudgedRow(
                run=replace(run, measured_s=1.0),
                prediction=replace(
                    PREDICTION, step_time_s=exp(residual), interval_s=(1.0, 1.0), doubts=doubts
                ),
            )
        )
    return rows


def _slower(row: TrainingRow) -> TrainingRow:
    assert row.prediction is not None
    slow = replace(row.prediction, step_time_s=1.3 * row.prediction.step_time_s)
    return replace(row, prediction=slow)


def test_coefficients_hold_their_share_of_the_rows_in_each_group() -> None:
    rows = _rows(np.random.default_rng(7), n=2000)
    found = interval_coefficients(rows, quantile=0.8)
    assert found["any"] == pytest.approx(1.2816 * 0.03, rel=0.1)
    assert found["any"] + found["experts"] == pytest.approx(1.2816 * 0.12, rel=0.1)
    assert all(value >= 0 for value in found.values())
    assert interval_coefficients(rows, quantile=0.5)["any"] < found["any"]


def test_a_device_without_runs_is_known_from_held_out_devices() -> None:
    generator = np.random.default_rng(8)
    seen, unseen = _rows(generator, n=1000), _rows(generator, n=1000)
    far = [_slower(row) for row in unseen]
    assert interval_coefficients(seen, far)["device without runs"] > 0.15
    assert interval_coefficients(seen, seen)["device without runs"] < 0.01


def test_an_interval_is_as_far_up_as_down_and_widens_with_doubt() -> None:
    low, high = interval(2.0, (ANY,))
    assert log(high / 2.0) == pytest.approx(log(2.0 / low)) == pytest.approx(COEFFICIENTS["any"])
    wider = interval(2.0, (ANY, EXPERTS))
    assert wider[0] <= low
    assert wider[1] >= high


def test_a_prediction_says_what_its_interval_is_made_of() -> None:
    prediction = predict_run(_case())
    assert prediction.interval_s == pytest.approx(
        interval(prediction.step_time_s, prediction.doubts)
    )
    assert {d.name for d in prediction.doubts} <= set(COEFFICIENTS)
    assert all(0 < d.share <= 1 for d in prediction.doubts)


def test_coverage_counts_rows_inside() -> None:
    (row,) = _rows(np.random.default_rng(1), n=1)
    assert row.prediction is not None
    inside, outside = (
        replace(row, prediction=replace(row.prediction, interval_s=bounds))
        for bounds in ((0.9, 1.1), (1.05, 1.2))
    )
    assert coverage([inside, outside]).inside == 0.5
    assert coverage([]).n == 0
