"""Fit the constants of the step-time model to measured times by robust least squares with priors.

    minimise  sum_i w_i rho(ln(predicted_i / measured_i) / 0.03)
              + sum_k (ln(c_k / prior_k) / spread_k)^2

rho(z) = 2 (sqrt(1 + z^2) - 1) grows linearly, so that rows far off, for which the model lacks a
mechanism, hardly move a constant. 0.03 is the spread between published measurements of one
configuration. w_i = 1 / sqrt(rows of the source), so that a source weighs as the root of its number
of rows. A constant that no row informs stays at its prior. Gauss-Newton, with a Jacobian by finite
differences that is kept between iterations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.errors import DataError, ShardwrightError
from shardwright.hardware.catalog.fitted_training_constants import (
    DECLARED,
    SHIPPED,
    Constants,
    constant_names,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import Fold, Progress
from shardwright.validation.fits.cached_parallel_predictions import Predictor, predictor
from shardwright.validation.fits.robust_least_squares import fitted_values, row_curvature
from shardwright.validation.table_reader_and_fold_validation import Fitted
from shardwright.validation.tables.row_conditions import cells_of, selected
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.training.kinds_of_cross_validation_folds import FOLDS
from shardwright.validation.training.measured_training_run import TrainingRun, identity_of
from shardwright.validation.training.predict_run import step_seconds

NOISE: Final = 0.03
STEP: Final = 0.03
"""Relative step of a constant in finite differences."""
TOLERANCE: Final = 1e-3
MAX_ITERATIONS: Final = 6
HALF_WIDTH_80: Final = 1.2816
"""Half-width of an 80 % interval of a normal distribution, in standard deviations."""
INFORMS: Final = 0.02
"""Least slope at which a row counts as informing a constant."""
_TOGETHER: Final = 64
"""Number of runs simulated between two reports of progress."""
_SIMULATIONS: Final = {"model": 0, "source": 3, "accelerator": 3}
"""Kind of fold -> number of times that residuals are simulated anew in each fold's fit."""

PRIOR: Final = Constants(**{d.name: d.prior for d in DECLARED})
"""Every constant at its prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSlopes:
    """Residuals of step times and their slopes in the logarithm of each constant.

    Args:
        at: the constants where residuals and slopes were computed.
        residual: (rows,) ln(predicted / measured).
        slope: (rows, constants) d residual / d ln constant.
    """

    at: Constants
    residual: FloatArray
    slope: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants fitted to rows, with 80 % intervals and the number of rows that inform each.

    Args:
        low, high: name -> bound of the 80 % interval, from the curvature at the optimum.
        informed: name -> number of rows whose prediction moves by more than 2 % of the constant's
            change.
        sensitivity: the residuals and slopes of the last round.
    """

    constants: Constants
    low: dict[str, float]
    high: dict[str, float]
    informed: dict[str, int]
    sensitivity: FitSlopes


def row_weights(runs: Sequence[TrainingRun]) -> FloatArray:
    """(rows,) weight of each row: 1 / sqrt(number of rows of its source)."""
    counts = Counter(run.measurement.source_id for run in runs)
    return np.array([counts[run.measurement.source_id] ** -0.5 for run in runs])


def fit_slopes(
    runs: Sequence[TrainingRun],
    *,
    at: Constants,
    simulate: Predictor[float],
    progress: Progress | None = None,
) -> FitSlopes:
    """Log residuals ln(predicted / measured) at `at`, and slopes by finite differences."""
    points = [at, *(replace(at, **{d.name: getattr(at, d.name) * (1 + STEP)}) for d in DECLARED)]
    logs = [np.zeros((0, len(points)))]
    for start in range(0, len(runs), _TOGETHER):
        if progress is not None:
            progress("slopes", start, len(runs))
        logs.append(_log_ratios(runs[start : start + _TOGETHER], points, simulate=simulate))
    table = np.concatenate(logs)
    slope = (table[:, 1:] - table[:, :1]) / np.log1p(STEP)
    return FitSlopes(at=at, residual=table[:, 0], slope=slope)


def _log_ratios(
    runs: Sequence[TrainingRun], points: Sequence[Constants], *, simulate: Predictor[float]
) -> FloatArray:
    """(runs, points) ln(predicted / measured) of each run under the constants of each point."""
    # All constants of a run in a row: its plan is laid out once.
    seconds = simulate.results([(run, point) for run in runs for point in points])
    measured = np.array([run.measured_s for run in runs], dtype=np.float64)[:, np.newaxis]
    ratios: FloatArray = np.log(np.array(seconds).reshape(len(runs), len(points)) / measured)
    return ratios


def fit(
    runs: Sequence[TrainingRun],
    *,
    simulate: Predictor[float],
    start: Constants = PRIOR,
    rounds: int = 2,
    progress: Progress | None = None,
) -> Fit:
    """Fit all constants to measured times: `rounds` of slopes and Gauss-Newton from `start`.

    Args:
        start: constants at which slopes are first taken.
        rounds: number of times that slopes are taken.
    """
    weights = row_weights(runs)
    constants = start
    for _ in range(rounds):
        point = fit_slopes(runs, at=constants, simulate=simulate, progress=progress)
        constants = refine(runs, point, weights=weights, simulate=simulate)
    return _fit_with_intervals(runs, point, constants=constants, weights=weights, simulate=simulate)


def refine(
    runs: Sequence[TrainingRun],
    point: FitSlopes,
    *,
    weights: FloatArray,
    simulate: Predictor[float],
    simulations: int = MAX_ITERATIONS,
) -> Constants:
    """Constants that minimise the robust loss by Gauss-Newton steps with fixed slopes of `point`.

    Args:
        weights: (rows,); rows of weight 0 are left out and never simulated.
        simulations: most times that residuals are simulated anew.
    """
    used = [index for index, weight in enumerate(weights) if weight > 0]
    constants, residual = point.at, point.residual[used]
    for count in range(simulations + 1):
        following = Constants(
            **fitted_values(
                DECLARED,
                [getattr(constants, d.name) for d in DECLARED],
                residual=residual,
                slope=point.slope[used],
                weights=weights[used],
                noise=NOISE,
            )
        )
        change = max(
            abs(np.log(getattr(following, d.name) / getattr(constants, d.name))) for d in DECLARED
        )
        constants = following
        if change < TOLERANCE or count == simulations:
            break
        kept = [runs[index] for index in used]
        residual = _log_ratios(kept, [constants], simulate=simulate)[:, 0]
    return constants


def _fit_with_intervals(
    runs: Sequence[TrainingRun],
    point: FitSlopes,
    *,
    constants: Constants,
    weights: FloatArray,
    simulate: Predictor[float],
) -> Fit:
    """Fit of `constants`, each with its 80 % interval from the curvature at the optimum."""
    residual = _log_ratios(runs, [constants], simulate=simulate)[:, 0]
    curvature = row_curvature(residual, weights, noise=NOISE)
    tight = np.diag([d.spread**-2.0 for d in DECLARED])
    covariance = np.linalg.inv(point.slope.T @ (curvature[:, None] * point.slope) + tight)
    factors = np.exp(HALF_WIDTH_80 * np.sqrt(np.diag(covariance)))
    informed = (np.abs(point.slope) > INFORMS).sum(axis=0)
    width = {d.name: float(factor) for d, factor in zip(DECLARED, factors, strict=True)}
    return Fit(
        constants=constants,
        low={name: getattr(constants, name) / factor for name, factor in width.items()},
        high={name: getattr(constants, name) * factor for name, factor in width.items()},
        informed={d.name: int(n) for d, n in zip(DECLARED, informed, strict=True)},
        sensitivity=point,
    )


def fit_without_each_fold(
    runs: Sequence[TrainingRun],
    fit_to_all: Fit,
    *,
    fold: Fold[TrainingRun],
    simulate: Predictor[float],
    progress: Progress | None = None,
) -> dict[str, Constants]:
    """Fold key -> constants fitted to the runs of all other folds, with slopes of `fit_to_all`.

    Slopes are those of the fit to all rows, and each search for an optimum begins at its end.
    Residuals of ``source`` and ``accelerator`` folds, whose optimum may be far off, are simulated
    anew on the way; those of ``model`` folds are taken as linear.

    Args:
        runs: the runs of the fit `fit_to_all`, in its order.
    """
    keys = [fold.key(run) for run in runs]
    weights = row_weights(runs)
    constants = {}
    distinct = sorted(set(keys))
    for index, held_out in enumerate(distinct):
        if progress is not None:
            progress(f"{fold.name} folds", index, len(distinct))
        constants[held_out] = refine(
            runs,
            fit_to_all.sensitivity,
            weights=weights * np.array([key != held_out for key in keys]),
            simulate=simulate,
            simulations=_SIMULATIONS[fold.name],
        )
    return constants


def fitted_runs(
    runs: Sequence[TrainingRun], *, facts: TableFacts, simulate: Predictor[float]
) -> list[TrainingRun]:
    """Runs used in the fit: measured, predictable, and not excluded by facts."""
    unfitted = [rows.where for rows in facts.unfitted]
    timed = [
        run
        for run in runs
        if run.ran
        and run.measured_s is not None
        and not selected(cells_of(run.measurement), unfitted)
    ]
    seconds = simulate.outcomes([(run, SHIPPED) for run in timed])
    return [
        run
        for run, found in zip(timed, seconds, strict=True)
        if not isinstance(found, ShardwrightError)
    ]


def fit_kinds_of_fold(
    runs: Sequence[TrainingRun],
    *,
    folds: Sequence[str],
    facts: TableFacts,
    stored: Mapping[str, Mapping[str, Constants]] | None,
    workers: int,
    progress: Progress | None,
) -> Fitted[Constants]:
    """Constants of all rows, and by kind of fold and key without each fold; `stored` ones if given.

    Raises:
        DataError: a kind of fold is not in `stored`.
    """
    kinds = [*dict.fromkeys(FOLDS[name].fitted_as or name for name in folds)]
    if stored is not None:
        missing = next((kind for kind in kinds if kind not in stored), "")
        if missing:
            raise DataError(
                f"no constants of {missing} folds were stored",
                hint="validate --save-folds stores all kinds",
            )
        return Fitted(constants={kind: stored[kind] for kind in kinds})
    if not kinds:
        return Fitted()
    with predictor(step_seconds, workers=workers, identity=identity_of) as simulate:
        used = fitted_runs(runs, facts=facts, simulate=simulate)
        whole = fit(used, simulate=simulate, progress=progress)
        held_out = {
            kind: fit_without_each_fold(
                used, whole, fold=FOLDS[kind], simulate=simulate, progress=progress
            )
            for kind in kinds
        }
    return Fitted(constants={"none": {"": whole.constants}, **held_out}, report=whole)


def folds_text(fitted: Fitted[Constants]) -> str:
    """JSON text of the constants of all folds, one set of constants a line."""
    lines = []
    for fold, constants in fitted.constants.items():
        entries = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(asdict(value))}" for key, value in constants.items()
        )
        lines.append(f"{json.dumps(fold)}: {{\n{entries}\n}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_folds(path: Path) -> dict[str, dict[str, Constants]]:
    """Read kind of fold -> key -> constants from a file that `folds_text` made.

    Raises:
        DataError: the file has another form.
    """
    try:
        document: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return {
            fold: {
                key: Constants(**{name: float(value[name]) for name in constant_names()})
                for key, value in constants.items()
            }
            for fold, constants in document.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise DataError(
            f"{path.name}: not a file of fitted folds ({type(error).__name__})",
            hint="make accuracy writes one",
        ) from None
