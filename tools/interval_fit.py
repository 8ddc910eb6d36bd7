"""Coefficients of the interval by quantile regression on held-out residuals.

    minimise  sum_i [ q max(e_i - h_i, 0) + (1 - q) max(h_i - e_i, 0) ],
              h_i = sum_k c_k x_ik,  c >= 0

e_i = |ln(measured / predicted)| of row i under the constants of its fold, x_ik its share of doubt
k: the c for which a share q of the rows lie inside, as narrow as can be. A linear program. Rows are
judged four times: each model held out; each accelerator held out, which counts as a device without
runs; each laboratory held out, where what is left tells whether there are runs with the options and
on the device; and so under the nearest base of another framework, which counts as a framework
without runs: what no run has confirmed may be as wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from math import log
from typing import Final

import numpy as np
from scipy.optimize import linprog

from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.step_time_interval import (
    COEFFICIENTS,
    FRAMEWORK,
    UNSEEN,
    FittedRuns,
)
from shardwright.validation.training.sweep_and_scaling_checks import TrainingRow, timed
from shardwright.validation.training.training_table_columns import TrainingMetric

QUANTILE: Final = 0.78
"""A little under the 80 % that an interval is named for: the width is set by few far rows there,
and doubles to hold some of them."""
DIGITS: Final = 4


def interval_coefficients(
    seen: Sequence[TrainingRow],
    unseen: Sequence[TrainingRow] = (),
    strange: Sequence[TrainingRow] = (),
    other: Sequence[TrainingRow] = (),
    *,
    quantile: float = QUANTILE,
) -> dict[str, float]:
    """Coefficient of each doubt, from rows with a measured and a predicted time.

    Args:
        seen: rows whose model is held out.
        unseen: rows whose accelerator is held out.
        strange: rows whose laboratory is held out.
        other: the same under the nearest base of another framework. They tell what that adds, after
            everything else is told by the others.
    """
    errors, shares = [], []
    for rows, known in (
        (seen, _not_held_out),
        (unseen, _without_device),
        (strange, _without_laboratory),
    ):
        timed = _timed(rows)
        errors += [_error(r) for r in timed]
        shares += [_shares(r, known(r, timed)) for r in timed]
    n, k = len(errors), len(COEFFICIENTS)
    # variables: coefficients, shortfall of h, excess of h
    cost = np.concatenate([np.zeros(k), np.full(n, quantile), np.full(n, 1 - quantile)])
    equal = np.hstack([np.array(shares), np.eye(n), -np.eye(n)])
    solved = linprog(cost, A_eq=equal, b_eq=np.array(errors), bounds=(0, None), method="highs").x[
        :k
    ]
    found = dict(zip(COEFFICIENTS, solved.tolist(), strict=True))
    if far := [_error(r) - float(solved @ _shares(r, {FRAMEWORK: 0.0})) for r in _timed(other)]:
        found[FRAMEWORK] = max(float(np.quantile(far, quantile)), 0.0)
    return {name: round(value, DIGITS) for name, value in found.items()}


def _timed(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    return [row for row, _, _ in timed(rows) if row.prediction and row.prediction.doubts]


def _error(row: TrainingRow) -> float:
    return abs(log((row.predicted(TrainingMetric.TIME) or 1.0) / (row.run.measured_s or 1.0)))


def _shares(row: TrainingRow, known: dict[str, float]) -> list[float]:
    assert row.prediction is not None
    held = {doubt.name: doubt.share for doubt in row.prediction.doubts} | known
    return [held.get(name, 0.0) for name in COEFFICIENTS]


def _not_held_out(_row: TrainingRow, _rows: Sequence[TrainingRow]) -> dict[str, float]:
    return {}


def _without_device(_row: TrainingRow, _rows: Sequence[TrainingRow]) -> dict[str, float]:
    return {UNSEEN: 1.0}


def _without_laboratory(row: TrainingRow, rows: Sequence[TrainingRow]) -> dict[str, float]:
    """Knowledge of a row's options and device from the rows of other laboratories.

    A framework that is described from documents counts as known.
    """
    device = row.run.cluster.node.accelerator.name
    return _runs_without(row.run.laboratory, tuple(rows)).doubts(
        load_runtime(row.run.runtime), device
    ) | {FRAMEWORK: 0.0}


@cache
def _runs_without(laboratory: str, rows: tuple[TrainingRow, ...]) -> FittedRuns:
    return runs_of(ran(r) for r in rows if r.run.laboratory != laboratory)


def ran(row: TrainingRow) -> tuple[str, str]:
    """The runtime and the accelerator of a measured run."""
    return row.run.runtime, row.run.cluster.node.accelerator.name


def runs_of(ran: Iterable[tuple[str, str]]) -> FittedRuns:
    """Of (runtime as text, accelerator) pairs."""
    pairs, options = set(), set()
    for text, accelerator in set(ran):
        runtime = load_runtime(text)
        pairs.add((runtime.base, accelerator))
        options |= {*({**dict(runtime.own), **dict(runtime.options)}.items())}
    return FittedRuns(pairs=frozenset(pairs), options=frozenset(options))


def runs_text(ran: Iterable[tuple[str, str]]) -> str:
    """Text of the file that `shipped_runs` reads: the runs, and `runs_of` them.

    With it, a prediction need not import the frameworks of all runs.
    """
    listed = sorted(set(ran))
    found = {
        "ran": listed,
        "pairs": sorted(runs_of(listed).pairs),
        "options": sorted(runs_of(listed).options),
    }
    parts = [
        f' "{name}": [\n' + ",\n".join(f"  {json.dumps(one)}" for one in rows) + "]"
        for name, rows in found.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"
