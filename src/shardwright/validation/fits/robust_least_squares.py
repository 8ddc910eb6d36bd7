"""Robust least squares with priors, for constants whose logarithms act linearly on residuals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.hardware.catalog.fitted_training_constants import DeclaredConstant


def fitted_values(
    declared: Sequence[DeclaredConstant],
    at: Sequence[float],
    *,
    residual: FloatArray,
    slope: FloatArray,
    weights: FloatArray,
    noise: float,
) -> dict[str, float]:
    """Fit constants to log residuals and slopes at `at`: robust least squares with priors, bounds.

    Minimises

        sum_i w_i rho(z_i / noise) + sum_k (ln(c_k / prior_k) / spread_k)^2,
        where z_i = residual_i + slope_i . ln(c / at),

    with rho(z) = 2 (sqrt(1 + z^2) - 1): by iteratively reweighted least squares, with each value
    clipped to its bounds.

    Args:
        declared: the constants.
        at: their values where residuals and slopes were taken.
        residual: (rows,) ln(predicted / measured).
        slope: (rows, constants) d residual / d ln constant.
        weights: (rows,).
        noise: spread of a residual that no constant explains.
    """
    start = np.log(np.array(at, dtype=np.float64))
    prior, low, high = (
        np.log([getattr(constant, name) for constant in declared])
        for name in ("prior", "low", "high")
    )
    tight = np.array([constant.spread for constant in declared]) ** -2.0
    logs = start
    for _ in range(50):
        curvature = row_curvature(residual + slope @ (logs - start), weights, noise=noise)
        normal = slope.T @ (curvature[:, None] * slope) + np.diag(tight)
        right_side = slope.T @ (curvature * (slope @ start - residual)) + tight * prior
        following = np.clip(np.linalg.solve(normal, right_side), low, high)
        if np.abs(following - logs).max() < 1e-6:
            break
        logs = following
    return {
        constant.name: float(f"{np.exp(value):.5g}")
        for constant, value in zip(declared, logs, strict=True)
    }


def row_curvature(residual: FloatArray, weights: FloatArray, *, noise: float) -> FloatArray:
    """(rows,) least-squares weights of rows: weight / sqrt(1 + (residual/noise)^2) / noise^2."""
    curvature: FloatArray = weights / np.sqrt(1.0 + (residual / noise) ** 2) / noise**2
    return curvature
