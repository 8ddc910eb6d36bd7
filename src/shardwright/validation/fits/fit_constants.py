"""Fitted constants from measured step times: a robust least-squares fit of logarithms with priors.

    minimise  sum_i w_i rho(ln(predicted_i / measured_i) / 0.03)
              + sum_k (ln(c_k / prior_k) / spread_k)^2

rho(z) = 2 (sqrt(1 + z^2) - 1) grows linearly for rows far off, so that a mechanism that is missing
bends no constant; 0.03 is the spread between published measurements of one configuration; w_i = 1 /
sqrt(rows of the source), so a source weighs as the root of its rows; a constant that no row informs
stays at its prior. Gauss-Newton with a Jacobian by finite differences, held between iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.hardware.catalog.constants import DECLARED, Constants
from shardwright.lazy_dataclass import dataclass
from shardwright.validation.fits.predict_run import Evaluator
from shardwright.validation.fits.robust_least_squares import optimum
from shardwright.validation.tables.measured_run import Case

Progress = Callable[[str, int, int], None]

NOISE: Final = 0.03
STEP: Final = 0.03
TOLERANCE: Final = 1e-3
MAX_ITERATIONS: Final = 6
HALF_WIDTH_80: Final = 1.2816
_TOGETHER: Final = 64

PRIOR: Final = Constants(**{d.name: d.prior for d in DECLARED})
"""Every constant as it is before any run was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Residuals and their slopes at one point.

    Args:
        at: the constants.
        residual: (rows,) ln(predicted / measured).
        slope: (rows, constants) d residual / d ln constant.
    """

    at: Constants
    residual: FloatArray
    slope: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants from rows.

    Args:
        constants: the values.
        low, high: 80 % intervals, name -> bound, from the curvature at the optimum.
        informed: name -> number of rows whose prediction moves by more than 2 % of the constant's
            change.
        sensitivity: at the last point where slopes were taken.
    """

    constants: Constants
    low: dict[str, float]
    high: dict[str, float]
    informed: dict[str, int]
    sensitivity: Sensitivity


def row_weights(cases: Sequence[Case]) -> FloatArray:
    """(rows,) 1 / sqrt(rows of the same source)."""
    counts = Counter(case.measurement.source_id for case in cases)
    return np.array([counts[case.measurement.source_id] ** -0.5 for case in cases])


def sensitivity(
    cases: Sequence[Case], *, at: Constants, evaluator: Evaluator, progress: Progress | None = None
) -> Sensitivity:
    """Residuals and slopes at `at`;
    a constant that leaves a row's time as it is has slope 0 there.
    """
    points = [at, *(replace(at, **{d.name: getattr(at, d.name) * (1 + STEP)}) for d in DECLARED)]
    seconds: list[float] = []
    # A case is simulated with all constants in a row: its plan is laid once.
    for first in range(0, len(cases), _TOGETHER):
        if progress is not None:
            progress("slopes", first, len(cases))
        seconds += evaluator.seconds(
            [(case, constants) for case in cases[first : first + _TOGETHER] for constants in points]
        )
    logs = np.log(
        np.array(seconds).reshape(len(cases), len(points))
        / np.array([[case.measured_s] for case in cases])
    )
    slope = (logs[:, 1:] - logs[:, :1]) / np.log1p(STEP)
    return Sensitivity(at=at, residual=logs[:, 0], slope=slope)


def fit(
    cases: Sequence[Case],
    *,
    evaluator: Evaluator,
    start: Constants = PRIOR,
    rounds: int = 2,
    progress: Progress | None = None,
) -> Fit:
    """Fit all constants to `cases` (each with a measured time).

    Args:
        start: where slopes are first taken.
        rounds: how often slopes are taken anew.
    """
    weights = row_weights(cases)
    constants = start
    for _ in range(rounds):
        point = sensitivity(cases, at=constants, evaluator=evaluator, progress=progress)
        constants = refine(cases, point, weights=weights, evaluator=evaluator)
    return _with_confidence(cases, point, constants=constants, weights=weights, evaluator=evaluator)


def refine(
    cases: Sequence[Case],
    point: Sensitivity,
    *,
    weights: FloatArray,
    evaluator: Evaluator,
    simulations: int = MAX_ITERATIONS,
) -> Constants:
    """The optimum by Gauss-Newton with the slopes of `point` and residuals simulated anew at most
    `simulations` times.

    Args:
        weights: (rows,); rows of weight 0 are left out and never simulated.
    """
    used = [index for index, weight in enumerate(weights) if weight > 0]
    here, residual = point.at, point.residual[used]
    for count in range(simulations + 1):
        following = _solve(here, residual=residual, slope=point.slope[used], weights=weights[used])
        change = max(
            abs(np.log(getattr(following, d.name) / getattr(here, d.name))) for d in DECLARED
        )
        here = following
        if change < TOLERANCE or count == simulations:
            break
        seconds = evaluator.seconds([(cases[index], here) for index in used])
        residual = np.log(np.array(seconds) / np.array([cases[index].measured_s for index in used]))
    return here


def _solve(
    here: Constants, *, residual: FloatArray, slope: FloatArray, weights: FloatArray
) -> Constants:
    """The optimum of the linearised problem."""
    at = [getattr(here, one.name) for one in DECLARED]
    return Constants(
        **optimum(DECLARED, at, residual=residual, slope=slope, weights=weights, noise=NOISE)
    )


def _with_confidence(
    cases: Sequence[Case],
    point: Sensitivity,
    *,
    constants: Constants,
    weights: FloatArray,
    evaluator: Evaluator,
) -> Fit:
    """80 % intervals from the curvature of the minimised function."""
    seconds = evaluator.seconds([(case, constants) for case in cases])
    residual = np.log(np.array(seconds) / np.array([case.measured_s for case in cases]))
    each = weights / np.sqrt(1.0 + (residual / NOISE) ** 2) / NOISE**2
    tight = np.diag([d.spread**-2.0 for d in DECLARED])
    spread = np.sqrt(np.diag(np.linalg.inv(point.slope.T @ (each[:, None] * point.slope) + tight)))
    width = {
        d.name: float(np.exp(HALF_WIDTH_80 * s)) for d, s in zip(DECLARED, spread, strict=True)
    }
    informed = (np.abs(point.slope) > 0.02).sum(axis=0)
    return Fit(
        constants=constants,
        low={name: getattr(constants, name) / w for name, w in width.items()},
        high={name: getattr(constants, name) * w for name, w in width.items()},
        informed={d.name: int(n) for d, n in zip(DECLARED, informed, strict=True)},
        sensitivity=point,
    )
