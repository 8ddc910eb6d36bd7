"""The fit of constants: what it recovers, what it leaves at its prior, what a fold may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from shardwright.errors import DataError, UsageError
from shardwright.hardware.catalog.fitted_training_constants import DECLARED, SHIPPED, Constants
from shardwright.validation.fits.cached_parallel_predictions import Predictor, predictor
from shardwright.validation.table_reader_and_fold_validation import Fitted
from shardwright.validation.training.fit_constants import (
    PRIOR,
    Fit,
    fit,
    fit_without_each_fold,
    folds_text,
    read_folds,
    refine,
    row_weights,
)
from shardwright.validation.training.kinds_of_cross_validation_folds import FOLDS
from shardwright.validation.training.measured_training_run import TrainingRun, identity_of
from shardwright.validation.training.predict_run import step_seconds
from shardwright.validation.training.training_table_reader_and_json import TRAINING
from tests.tiers import in_both, in_proof, many
from tests.validation.published import case_of, rows

TRUE = replace(PRIOR, clock_ampere=1.13, clock_hopper_fp8=1.02, passes_fused=1.3)


DEEPEST = many(4, 128)
"""Stages of the runs that are fitted: a step of the deepest takes as long to simulate as all the
others."""


@cache
def _cases() -> tuple[TrainingRun, ...]:
    chosen = ("korthikanti", "mlm_sc21", "nemo_launcher")
    cases = (case_of(row) for row in rows("training.csv") if row.source_id in chosen)
    fitted = tuple(case for case in cases if case.grid.pp * case.grid.vpp <= DEEPEST)
    return tuple(
        case
        for number, case in enumerate(fitted)
        if in_proof() or number % 3 == 0 or case.laboratory == "nvidia-nemo"
    )


def _as_measured(constants: Constants) -> list[TrainingRun]:
    """The same runs, with times as if `constants` were the truth."""
    return [replace(case, measured_s=step_seconds(case, constants=constants)) for case in _cases()]


@pytest.fixture(name="simulate", scope="module")
def _simulate() -> Iterator[Predictor[float]]:
    with predictor(step_seconds, identity=identity_of) as found:
        yield found


@pytest.fixture(name="cases", scope="module")
def _measured() -> list[TrainingRun]:
    return _as_measured(TRUE)


@pytest.fixture(name="whole", scope="module")
def _whole(cases: list[TrainingRun], simulate: Predictor[float]) -> Fit:
    return fit(cases, simulate=simulate)


@in_both
def test_constants_that_rows_inform_are_recovered_and_others_stay(whole: Fit) -> None:
    found = whole
    assert found.constants.clock_ampere == pytest.approx(TRUE.clock_ampere, rel=0.02)
    assert found.constants.clock_hopper_fp8 == pytest.approx(TRUE.clock_hopper_fp8, rel=0.02)
    assert found.constants.passes_fused == pytest.approx(TRUE.passes_fused, rel=0.05)
    assert found.informed["clock_blackwell"] == 0
    assert found.constants.clock_blackwell == pytest.approx(PRIOR.clock_blackwell)
    assert found.low["clock_ampere"] < found.constants.clock_ampere < found.high["clock_ampere"]
    assert (
        found.high["clock_blackwell"] / found.constants.clock_blackwell
        > found.high["clock_ampere"] / found.constants.clock_ampere
    )


@in_both
def test_a_row_far_off_bends_little(cases: list[TrainingRun], simulate: Predictor[float]) -> None:
    spoiled = [replace(cases[0], measured_s=3 * (cases[0].measured_s or 0.0)), *cases[1:]]
    found = fit(spoiled, simulate=simulate, rounds=1)
    assert found.constants.clock_ampere == pytest.approx(TRUE.clock_ampere, rel=0.03)


@in_both
def test_rows_that_are_left_out_cannot_be_seen(
    cases: list[TrainingRun], whole: Fit, simulate: Predictor[float]
) -> None:
    held = [case.laboratory == "megatron-papers" for case in cases]
    spoiled = [
        replace(c, measured_s=2 * (c.measured_s or 0.0)) if out else c
        for c, out in zip(cases, held, strict=True)
    ]
    weights = row_weights(cases) * ~np.array(held)
    point = replace(
        whole.sensitivity, residual=whole.sensitivity.residual - np.log(2) * np.array(held)
    )
    assert refine(spoiled, point, weights=weights, simulate=simulate) == refine(
        cases, whole.sensitivity, weights=weights, simulate=simulate
    )


@in_both
def test_a_fold_without_rows_of_a_device_returns_the_prior(
    cases: list[TrainingRun], whole: Fit, simulate: Predictor[float]
) -> None:
    folds = fit_without_each_fold(cases, whole, fold=FOLDS["accelerator"], simulate=simulate)
    without = folds
    assert without["h100-sxm"].clock_hopper_fp8 == pytest.approx(PRIOR.clock_hopper_fp8)
    assert without["h100-sxm"].clock_ampere == pytest.approx(TRUE.clock_ampere, rel=0.02)
    hopper = next(case for case in cases if case.laboratory == "nvidia-nemo")
    assert FOLDS["accelerator"].key(hopper) == "h100-sxm"


def test_fold_keys() -> None:
    case = _cases()[0]
    assert FOLDS["none"].key(case) == ""
    assert {fold for fold in FOLDS if FOLDS[fold].key(case)} == {
        "model",
        "source",
        "other base",
        "accelerator",
    }
    with pytest.raises(UsageError, match="did you mean model"):
        TRAINING.fold_named("modl")


def test_folds_round_trip_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "folds.json"
    constants = {"source": {"a": TRUE, "b": SHIPPED}, "model": {"m": PRIOR}}
    path.write_text(folds_text(Fitted(constants=constants)), encoding="utf-8")
    assert read_folds(path) == constants
    for text in (
        "",
        "[]",
        '{"source": 1}',
        '{"source": {"a": {}}}',
        '{"source": {"a": {"clock_ampere": "x"}}}',
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match="not a file of fitted folds"):
            read_folds(path)


def test_every_constant_is_declared_once_with_owner_and_bounds() -> None:
    assert [d.name for d in DECLARED] == [*Constants.__dataclass_fields__]
    assert len(DECLARED) <= 16
    for d in DECLARED:
        assert d.low <= d.prior <= d.high
        assert d.low <= getattr(SHIPPED, d.name) <= d.high
        assert d.owner.split(":")[0] in ("accelerator", "fabric", "kernels", "host")
        assert d.spread > 0
        assert d.meaning
        assert d.source
