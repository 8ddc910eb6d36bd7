"""Fit the constants of the serving model to measured TPOT, TTFT and throughput.

Slopes are taken once, at the shipped constants, by finite differences. The constants fitted to all
rows, and those fitted without each fold, follow from them as if logarithms of times were linear in
logarithms of constants. Slopes are stored beside the tables, so that a fold needs no simulation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.errors import DataError, ShardwrightError
from shardwright.hardware.catalog.fitted_serving_constants import (
    DECLARED_SERVING,
    SERVING,
    ServingConstants,
    serving_constant_names,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import Fold, Progress
from shardwright.validation.fits.cached_parallel_predictions import predictor
from shardwright.validation.fits.robust_least_squares import fitted_values
from shardwright.validation.serving.measured_deployment import Category, ServingRun, ServingValues
from shardwright.validation.serving.predict_deployment import predict_serving
from shardwright.validation.serving.serving_errors import FOLDS, is_near_capacity
from shardwright.validation.serving.serving_table_columns import ServingMetric
from shardwright.validation.table_reader_and_fold_validation import Fitted
from shardwright.validation.tables.table_facts_from_toml import TableFacts

NOISE: Final = {ServingMetric.TPOT: 0.05, ServingMetric.TTFT: 0.2, ServingMetric.THROUGHPUT: 0.15}
"""Spread of ln(measured) that no constant explains, such as that between versions of an engine."""
STEP: Final = 0.1
"""Step of a constant's logarithm; smaller steps show the noise of simulated decisions."""
Evaluate = Callable[[ServingRun, ServingConstants], ServingValues]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingSlopes:
    """Residuals of measured metrics and their slopes in the logarithm of each constant.

    Args:
        at: the constants where residuals and slopes were computed.
        rows: (n,) source, line in the table, and metric.
        residual: (n,) ln(predicted / measured).
        slope: (n, constants) d residual / d ln constant.
    """

    at: ServingConstants
    rows: tuple[tuple[str, int, ServingMetric], ...]
    residual: FloatArray
    slope: FloatArray


def is_fitted_to(run: ServingRun) -> bool:
    """True if constants are fitted to a run: fully described, equal workers, no draft tokens."""
    known = run.category is Category.KNOWN
    return known and not run.is_disaggregated and not run.is_speculative


def slopes_of(
    runs: Sequence[ServingRun],
    *,
    evaluate: Evaluate = predict_serving,
    at: ServingConstants = SERVING,
    workers: int = 1,
    progress: Progress | None = None,
) -> ServingSlopes:
    """Log residuals at `at` and slopes by log constant, by finite differences, of fitted runs.

    Runs that cannot be predicted and times to first tokens near capacity are left out.
    """
    stepped = [
        replace(at, **{name: getattr(at, name) * np.exp(STEP)}) for name in serving_constant_names()
    ]
    points = [at, *stepped]
    used = [run for run in runs if is_fitted_to(run)]
    with predictor(evaluate, workers=workers) as predictions:
        tasks = [(run, constants) for run in used for constants in points]
        outcomes = predictions.outcomes(tasks, progress=progress, phase="slopes")
    rows: list[tuple[str, int, ServingMetric]] = []
    logs: list[list[float]] = []
    for index, run in enumerate(used):
        of_run = outcomes[index * len(points) : (index + 1) * len(points)]
        values = [found for found in of_run if not isinstance(found, ShardwrightError)]
        if len(values) < len(points):
            continue
        for metric in _fitted_metrics(run, near_capacity=is_near_capacity(values[0])):
            measured = run.measured(metric)
            predicted = [run.predicted(found, metric) or 0.0 for found in values]
            if measured and all(predicted):
                rows.append((*_row_key(run), metric))
                logs.append([float(np.log(value / measured)) for value in predicted])
    table = np.array(logs).reshape(len(logs), len(points))
    return ServingSlopes(
        at=at, rows=tuple(rows), residual=table[:, 0], slope=(table[:, 1:] - table[:, :1]) / STEP
    )


def _row_key(run: ServingRun) -> tuple[str, int]:
    """(source, line) of a run's table row."""
    return run.measurement.source_id, run.measurement.line


def _fitted_metrics(run: ServingRun, *, near_capacity: bool) -> Iterator[ServingMetric]:
    """Yield the run's metrics in the fit: TPOT, TTFT below capacity, maximum throughput."""
    if run.values.tpot_s:
        yield ServingMetric.TPOT
    if run.values.ttft_s and not near_capacity:
        yield ServingMetric.TTFT
    if run.measurement.protocol == "maximum":
        yield ServingMetric.THROUGHPUT


def linear_fit(slopes: ServingSlopes, runs: Sequence[ServingRun]) -> ServingConstants:
    """Fit constants, with equal row weights, to those runs that have rows in `slopes`.

    Rows weigh the same; a run without slopes does not count.
    """
    keys = {_row_key(run) for run in runs}
    noise = np.array([NOISE[metric] for _, _, metric in slopes.rows])
    return ServingConstants(
        **fitted_values(
            DECLARED_SERVING,
            [getattr(slopes.at, name) for name in serving_constant_names()],
            residual=slopes.residual / noise,
            slope=slopes.slope / noise[:, None],
            weights=np.array([float((source, line) in keys) for source, line, _ in slopes.rows]),
            noise=1.0,
        )
    )


def fit_without_each_fold(
    slopes: ServingSlopes, runs: Sequence[ServingRun], *, fold: Fold[ServingRun]
) -> Mapping[str, ServingConstants]:
    """Fold key -> constants fitted to the rows of all other folds."""
    keys = dict.fromkeys(map(fold.key, runs))
    return {key: linear_fit(slopes, [run for run in runs if fold.key(run) != key]) for key in keys}


def fit_kinds_of_fold(
    runs: Sequence[ServingRun],
    *,
    folds: Sequence[str],
    facts: TableFacts,
    stored: ServingSlopes | None,
    workers: int,
    progress: Progress | None,
) -> Fitted[ServingConstants]:
    """Constants fitted without each fold, by kind and key, from slopes `stored` or new ones."""
    del facts
    slopes = stored
    if slopes is None and folds:
        slopes = slopes_of(runs, workers=workers, progress=progress)
    if slopes is None:
        return Fitted()
    return Fitted(
        constants={name: fit_without_each_fold(slopes, runs, fold=FOLDS[name]) for name in folds},
        report=slopes,
    )


def slopes_text(fitted: Fitted[ServingConstants]) -> str:
    """JSON text of a fit's point, residuals and slopes, one table row a line."""
    slopes: ServingSlopes = fitted.report
    lines = [
        json.dumps(
            [
                source,
                line,
                metric.value,
                round(float(residual), 5),
                [round(float(value), 4) for value in slope],
            ]
        )
        for (source, line, metric), residual, slope in zip(
            slopes.rows, slopes.residual, slopes.slope, strict=True
        )
    ]
    rows = ",\n".join(lines)
    return f'{{\n"at": {json.dumps(asdict(slopes.at))},\n"rows": [\n{rows}\n]\n}}\n'


def read_slopes(path: Path) -> ServingSlopes:
    """Read the slopes from a file that `slopes_text` made.

    Raises:
        DataError: the file has another form.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        names = serving_constant_names()
        rows = document["rows"]
        slope = np.array([[float(value) for value in row[4]] for row in rows])
        return ServingSlopes(
            at=ServingConstants(**{name: float(document["at"][name]) for name in names}),
            rows=tuple((str(row[0]), int(row[1]), ServingMetric(row[2])) for row in rows),
            residual=np.array([float(row[3]) for row in rows]),
            slope=slope.reshape(len(rows), len(names)),
        )
    except (OSError, ValueError, AttributeError, TypeError, KeyError, IndexError) as error:
        raise DataError(
            f"{path.name}: not a file of slopes of serving ({type(error).__name__})",
            hint="make accuracy writes one",
        ) from None
