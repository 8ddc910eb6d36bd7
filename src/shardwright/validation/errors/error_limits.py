"""How good predictions are beyond single rows: bars on groups of rows, the order of plans, sweeps,
scaling, intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazy_dataclass import dataclass
from shardwright.validation.errors.prediction_errors import RowResult, Validation
from shardwright.validation.tables.measured_rows import Measurement
from shardwright.validation.tables.row_conditions import Selector, cells_of
from shardwright.validation.tables.table_facts import Bar, Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class BarResult:
    """A bar's mean error over n rows in one fold; bias with sign; worst."""

    bar: Bar
    fold: str
    n: int
    mean: float
    bias: float
    worst: float
    limit: float

    @property
    def holds(self) -> bool:
        """Enough rows, and the mean error within the limit."""
        return self.n > 0 and self.mean <= self.limit


def selected(row: Measurement, *where: Selector) -> bool:
    """Whether any of the selectors picks a row as it was published."""
    cells = cells_of(row)
    return any(selector.matches(cells) for selector in where)


def judge_bar(bar: Bar, validation: Validation) -> BarResult:
    """The bar over the rows of one validation; a run that is called infeasible counts as 100 %."""
    rows = [row for row in validation.rows if selected(row.case.measurement, *bar.where)]
    errors = [
        e
        for e in ((row.memory_error if bar.memory else row.error) for row in rows)
        if e is not None
    ]
    return BarResult(
        bar=bar,
        fold=validation.fold,
        n=len(errors),
        mean=fmean(map(abs, errors)) if errors else 0.0,
        bias=fmean(errors) if errors else 0.0,
        worst=max(map(abs, errors), default=0.0),
        limit=bar.limits.get(validation.fold, float("inf")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCorrelation:
    """Spearman's correlation of predicted and measured times over n plans, with an 80 % bootstrap
    interval.
    """

    n: int
    value: float
    low: float
    high: float


def rank_correlation(
    rows: Sequence[RowResult], *, generator: np.random.Generator, draws: int = 1000
) -> RankCorrelation:
    """How well predictions order the plans of one sweep.

    Args:
        generator: of the bootstrap.
        draws: resamples.
    """
    pairs = np.array(
        [(r.predicted_s, r.case.measured_s) for r in rows if r.predicted_s and r.case.measured_s]
    )
    resampled = np.stack([generator.integers(0, len(pairs), len(pairs)) for _ in range(draws)])
    low, high = np.quantile(spearman(pairs, resampled), (0.1, 0.9))
    return RankCorrelation(
        n=len(pairs), value=float(spearman(pairs)[0]), low=float(low), high=float(high)
    )


def spearman(pairs: FloatArray, picks: IntArray | None = None) -> FloatArray:
    """Spearman's correlation of the pairs that each row of `picks` names; of all of them where none
    are picked.
    """
    picks = np.arange(len(pairs))[np.newaxis] if picks is None else picks
    one, other = (
        ranks - ranks.mean(axis=1, keepdims=True)
        for ranks in (_ranks(column, picks) for column in pairs.T)
    )
    found: FloatArray = (one * other).sum(axis=1) / np.sqrt(
        (one**2).sum(axis=1) * (other**2).sum(axis=1)
    )
    return found


def _ranks(values: FloatArray, picks: IntArray) -> FloatArray:
    """Ranks of the values that each row of `picks` names among these; equal ones share the mean of
    theirs.
    """
    number = np.unique(values, return_inverse=True)[1][picks]
    counts = np.zeros((len(picks), len(values)))
    np.add.at(counts, (np.arange(len(picks))[:, np.newaxis], number), 1)
    return np.take_along_axis(counts.cumsum(axis=1) - (counts - 1) / 2, number, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Timed rows of dense models, or of models with experts: n rows of a number of sources.

    Args:
        by_row: mean error of rows.
        by_source: mean over sources of the mean error of each.
    """

    experts: bool
    n: int
    sources: int
    by_row: float
    by_source: float


def by_kind(validation: Validation, *, experts: bool) -> Kind:
    """All timed rows of one kind of model in one fold; a run that is called infeasible counts as
    100 %.
    """
    found: dict[str, list[float]] = {}
    for row in validation.rows:
        routed = any(o.experts is not None for b in row.case.model.blocks for o in b.operators)
        if routed is experts and row.error is not None:
            found.setdefault(row.case.measurement.source_id, []).append(abs(row.error))
    errors = [error for some in found.values() for error in some]
    return Kind(
        experts=experts,
        n=len(errors),
        sources=len(found),
        by_row=fmean(errors) if errors else 0.0,
        by_source=fmean(map(fmean, found.values())) if found else 0.0,
    )


MIN_SWEEP: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Plans of one model on one cluster: how much slower the plan predicted best was measured than
    the plan measured best.
    """

    name: str
    plans: int
    regret: float


def sweeps(validation: Validation) -> tuple[Sweep, ...]:
    """Every sweep of three plans or more: same source, model, cluster, job and runtime."""
    groups: dict[tuple[object, ...], list[RowResult]] = {}
    for row in validation.rows:
        if row.predicted_s and row.case.measured_s:
            m, case = row.case.measurement, row.case
            key: tuple[object, ...] = (
                m.source_id,
                case.model.name,
                m.gpu,
                case.cluster.num_devices,
                case.job,
                case.runtime,
            )
            groups.setdefault(key, []).append(row)
    found = []
    for key, rows in groups.items():
        plans = len({row.case.grid for row in rows})
        if plans < MIN_SWEEP:
            continue
        chosen = min(rows, key=lambda r: r.predicted_s or 0.0).case.measured_s or 0.0
        best = min(r.case.measured_s or 0.0 for r in rows)
        found.append(
            Sweep(
                name=f"{key[0]} {key[1]} {key[3]} x {key[2]}", plans=plans, regret=chosen / best - 1
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of n rows inside their 80 % interval, and the mean half-width over the mean error."""

    n: int
    inside: float
    width: float


def coverage(rows: Sequence[RowResult]) -> Coverage:
    """How honest the intervals are over `rows` with a measured and a predicted time."""
    judged = [
        (r.interval_s, r.predicted_s, r.case.measured_s, r.error)
        for r in rows
        if r.interval_s and r.predicted_s and r.case.measured_s
    ]
    if not judged:
        return Coverage(n=0, inside=0.0, width=0.0)
    inside = fmean(
        float(interval[0] <= measured <= interval[1]) for interval, _, measured, _ in judged
    )
    half = fmean(
        (interval[1] - interval[0]) / 2 / predicted for interval, predicted, _, _ in judged
    )
    return Coverage(
        n=len(judged),
        inside=inside,
        width=half / max(fmean(abs(error or 0.0) for *_, error in judged), 1e-9),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakScaling:
    """Step time on the most devices over that on the fewest, same work a device: predicted, and as
    measured.
    """

    name: str
    fewest: int
    most: int
    predicted: float
    measured: float


def weak_scaling(validation: Validation, scaling: Scaling) -> WeakScaling | None:
    """Mean over the rows of a scaling; None without rows at both ends."""
    at: dict[int, list[tuple[float, float]]] = {scaling.fewest: [], scaling.most: []}
    for row in validation.rows:
        count = row.case.cluster.num_devices
        if (
            count in at
            and row.predicted_s
            and row.case.measured_s
            and selected(row.case.measurement, scaling.where)
        ):
            at[count].append((row.predicted_s, row.case.measured_s))
    if not all(at.values()):
        return None
    few, many = (
        (fmean(p for p, _ in pairs), fmean(q for _, q in pairs))
        for pairs in (at[scaling.fewest], at[scaling.most])
    )
    return WeakScaling(
        name=scaling.name,
        fewest=scaling.fewest,
        most=scaling.most,
        predicted=many[0] / few[0],
        measured=many[1] / few[1],
    )
