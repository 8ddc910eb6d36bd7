"""Constants of serving from measured configurations: the fit of `validation.fit`, to times a token,
to the first token, and throughput.

Slopes are taken once, at the constants that are shipped, by finite differences; what is fitted to
all rows and to those of each fold comes out of them as if logarithms of times were linear in
logarithms of constants. They are stored beside the tables, so that a fold costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.errors import DataError, ShardwrightError
from shardwright.hardware.catalog.serving_constants import (
    DECLARED_SERVING,
    SERVING,
    ServingConstants,
    serving_names,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.validation.fits.robust_least_squares import optimum
from shardwright.validation.serving.measured_deployment import Doubt, Metric, ServingCase
from shardwright.validation.serving.parallel_predictions import predictions_of
from shardwright.validation.serving.prediction_errors import NEAR, Progress
from shardwright.validation.serving.predictor_protocol import ServingEvaluator

NOISE: Final = {Metric.TPOT: 0.05, Metric.TTFT: 0.2, Metric.THROUGHPUT: 0.15}
"""Spread of the logarithm of what is measured that no constant explains: what one configuration
differs by between engines' versions."""
STEP: Final = 0.1
"""Of a constant's logarithm: a simulation is a chain of decisions, which smaller steps would see as
noise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingSlopes:
    """Residuals and their slopes at one point.

    Args:
        at: the constants.
        rows: (n,) source, line of its table, and metric.
        residual: (n,) ln(predicted / measured).
        slope: (n, constants) d residual / d ln constant.
    """

    at: ServingConstants
    rows: tuple[tuple[str, int, Metric], ...]
    residual: FloatArray
    slope: FloatArray


def is_fitted_to(case: ServingCase) -> bool:
    """Whether constants are fitted to a case: its source leaves nothing open, and it is served by
    workers of one role without guesses.
    """
    return case.doubt is Doubt.NONE and not case.disaggregated and not case.guessed


def slopes_of(
    cases: Sequence[ServingCase],
    *,
    evaluate: ServingEvaluator,
    at: ServingConstants = SERVING,
    workers: int = 1,
    progress: Progress | None = None,
) -> ServingSlopes:
    """Residuals and slopes of all that `is_fitted_to` and can be predicted; times to first tokens
    near capacity are left out.
    """
    steps = [replace(at, **{name: getattr(at, name) * np.exp(STEP)}) for name in serving_names()]
    used = [case for case in cases if is_fitted_to(case)]
    tasks = [(case, constants) for case in used for constants in (at, *steps)]
    found = predictions_of(
        tasks, evaluate=evaluate, workers=workers, progress=progress, label="slopes"
    )
    rows: list[tuple[str, int, Metric]] = []
    logs: list[list[float]] = []
    for index, case in enumerate(used):
        outcomes = found[index * (1 + len(steps)) : (index + 1) * (1 + len(steps))]
        known = [one for one in outcomes if not isinstance(one, ShardwrightError)]
        if len(known) < len(outcomes):
            continue
        for metric in _metrics(case, near=abs(known[0].cache_load - 1) <= NEAR):
            measured = case.measured(metric)
            predicted = [one.of(metric, outputs=case.mean_outputs) for one in known]
            if measured and all(predicted):
                rows.append((*_key(case), metric))
                logs.append([float(np.log(float(value or 0) / measured)) for value in predicted])
    table = np.array(logs).reshape(len(logs), 1 + len(steps))
    return ServingSlopes(
        at=at, rows=tuple(rows), residual=table[:, 0], slope=(table[:, 1:] - table[:, :1]) / STEP
    )


def _key(case: ServingCase) -> tuple[str, int]:
    return case.measurement.source_id, case.measurement.line


def _metrics(case: ServingCase, *, near: bool) -> Iterable[Metric]:
    if case.tpot_s:
        yield Metric.TPOT
    if case.ttft_s and not near:
        yield Metric.TTFT
    if case.measurement.protocol == "maximum":
        yield Metric.THROUGHPUT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearFit:
    """A `study.ServingFit`: the optimum over the rows of the cases that it is given, of slopes that
    were taken of all.
    """

    slopes: ServingSlopes

    def __call__(self, cases: Sequence[ServingCase], /) -> ServingConstants:
        """Every row weighs as much; those without slopes do not count."""
        given = {_key(case) for case in cases}
        metrics = [metric for _, _, metric in self.slopes.rows]
        weights = np.array([float((source, line) in given) for source, line, _ in self.slopes.rows])
        noise = np.array([NOISE[metric] for metric in metrics])
        at = [getattr(self.slopes.at, name) for name in serving_names()]
        residual, slope = self.slopes.residual / noise, self.slopes.slope / noise[:, None]
        return ServingConstants(
            **optimum(
                DECLARED_SERVING, at, residual=residual, slope=slope, weights=weights, noise=1.0
            )
        )


def slopes_text(slopes: ServingSlopes) -> str:
    """JSON text, a row a line."""
    lines = [
        json.dumps(
            [
                source,
                line,
                metric.value,
                round(float(residual), 5),
                [round(float(one), 4) for one in slope],
            ]
        )
        for (source, line, metric), residual, slope in zip(
            slopes.rows, slopes.residual, slopes.slope, strict=True
        )
    ]
    rows = ",\n".join(lines)
    return f'{{\n"at": {json.dumps(asdict(slopes.at))},\n"rows": [\n{rows}\n]\n}}\n'


def read_slopes(path: Path) -> ServingSlopes:
    """What `slopes_text` wrote.

    Raises:
        DataError: it is no such file.
    """
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
        names = serving_names()
        rows = text["rows"]
        slope = np.array([[float(one) for one in row[4]] for row in rows]).reshape(
            len(rows), len(names)
        )
        return ServingSlopes(
            at=ServingConstants(**{name: float(text["at"][name]) for name in names}),
            rows=tuple((str(row[0]), int(row[1]), Metric(row[2])) for row in rows),
            residual=np.array([float(row[3]) for row in rows]),
            slope=slope,
        )
    except (OSError, ValueError, AttributeError, TypeError, KeyError, IndexError) as error:
        raise DataError(
            f"{path.name}: not a file of slopes of serving ({type(error).__name__})",
            hint="make accuracy writes one",
        ) from None
