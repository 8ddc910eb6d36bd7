"""Constants that fit residuals best where these are linear in their logarithms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.hardware.catalog.constants import Declared


def optimum(
    declared: Sequence[Declared],
    at: Sequence[float],
    *,
    residual: FloatArray,
    slope: FloatArray,
    weights: FloatArray,
    noise: float,
) -> dict[str, float]:
    """Name -> value of the constants that minimise

        sum_i w_i rho(z_i / noise) + sum_k (ln(c_k / prior_k) / spread_k)^2,
        where z_i = residual_i + slope_i . ln(c / at),

    with rho(z) = 2 (sqrt(1 + z^2) - 1): by least squares that are weighed anew, then each value
    inside its bounds.

    Args:
        declared: the constants.
        at: their values where residuals and slopes were taken.
        residual: (rows,) ln(predicted / measured).
        slope: (rows, constants) d residual / d ln constant.
        weights: (rows,).
        noise: spread of a residual that no constant explains.
    """
    logs = np.log(np.array(at, dtype=np.float64))
    centre, tight = (
        np.log([one.prior for one in declared]),
        np.array([one.spread for one in declared]) ** -2.0,
    )
    low, high = np.log([one.low for one in declared]), np.log([one.high for one in declared])
    values = logs.copy()
    for _ in range(50):
        away = (residual + slope @ (values - logs)) / noise
        each = weights / np.sqrt(1.0 + away**2) / noise**2
        normal = slope.T @ (each[:, None] * slope) + np.diag(tight)
        wanted = slope.T @ (each * (slope @ logs - residual)) + tight * centre
        following = np.clip(np.linalg.solve(normal, wanted), low, high)
        if np.abs(following - values).max() < 1e-6:
            break
        values = following
    return {
        one.name: float(f"{np.exp(value):.5g}") for one, value in zip(declared, values, strict=True)
    }
