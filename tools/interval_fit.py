"""Coefficients of the interval by quantile regression on held-out residuals.

    minimise  sum_i [ q max(e_i - h_i, 0) + (1 - q) max(h_i - e_i, 0) ],  h_i = sum_k c_k x_ik,  c >= 0

e_i = |ln(measured / predicted)| of row i under the constants of its fold, x_ik its share of doubt k: the c for which a share q of the rows
lie inside, as narrow as can be. A linear program. Rows are judged twice: each model held out, and each accelerator held out, which counts
as a device without runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

import numpy as np
from scipy.optimize import linprog

from shardwright.simulator.interval import COEFFICIENTS, UNSEEN
from shardwright.validation.judge import RowResult

QUANTILE: Final = 0.78
"""A little under the 80 % that an interval is named for: the width is set by few far rows there, and doubles to hold some of them."""
DIGITS: Final = 4


def interval_coefficients(seen: Sequence[RowResult], unseen: Sequence[RowResult] = (), *, quantile: float = QUANTILE) -> dict[str, float]:
    """Coefficient of each doubt, from rows with a measured and a predicted time.

    Args:
        seen: rows whose model is held out. unseen: rows whose accelerator is held out.
    """
    rows = [(r, 0.0) for r in seen] + [(r, 1.0) for r in unseen]
    used = [(r, more) for r, more in rows if r.predicted_s and r.case.measured_s and r.doubts]
    names = tuple(COEFFICIENTS)
    found = [{d.name: d.share for d in r.doubts} | ({UNSEEN: 1.0} if more else {}) for r, more in used]
    shares = np.array([[row.get(name, 0.0) for name in names] for row in found])
    errors = np.array([abs(log((r.predicted_s or 1.0) / (r.case.measured_s or 1.0))) for r, _ in used])
    n, k = shares.shape
    # variables: coefficients, shortfall of h, excess of h
    cost = np.concatenate([np.zeros(k), np.full(n, quantile), np.full(n, 1 - quantile)])
    equal = np.hstack([shares, np.eye(n), -np.eye(n)])
    solved = linprog(cost, A_eq=equal, b_eq=errors, bounds=(0, None), method="highs")
    return {name: round(float(c), DIGITS) for name, c in zip(names, solved.x[:k], strict=True)}
