"""Checks of predicted training times: order of plans, sweeps, weak scaling and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any, Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.simulator.prediction import Prediction
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import has_routed_experts
from shardwright.validation.errors.prediction_errors import (
    JudgedRow,
    Validation,
    grouped,
    source_of,
)
from shardwright.validation.tables.row_conditions import cells_of
from shardwright.validation.tables.table_facts_from_toml import ScalingCheck
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.training_table_columns import TrainingMetric

MIN_SWEEP: Final = 3
"""Smallest number of plans in a sweep."""
TrainingRow = JudgedRow[TrainingRun, Prediction]
TrainingValidation = Validation[TrainingRun, Prediction]


def timed(rows: Iterable[TrainingRow]) -> Iterator[tuple[TrainingRow, float, float]]:
    """Yield (row, predicted seconds, measured seconds) of rows that have both step times."""
    for row in rows:
        predicted, measured = row.predicted(TrainingMetric.TIME), row.run.measured_s
        if predicted and measured:
            yield row, predicted, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCorrelation:
    """Spearman's rank correlation of predicted and measured step times, with its 80 % interval."""

    n: int
    value: float
    low: float
    high: float


def rank_correlation(
    rows: Iterable[TrainingRow], *, generator: np.random.Generator, draws: int = 1000
) -> RankCorrelation:
    """Spearman's correlation of predicted and measured step times, with an 80 % bootstrap interval.

    Args:
        generator: random numbers of the bootstrap.
        draws: number of resamples.
    """
    pairs = np.array([seconds for _, *seconds in timed(rows)])
    resampled = np.stack([generator.integers(0, len(pairs), len(pairs)) for _ in range(draws)])
    low, high = np.quantile(spearman(pairs, resampled), (0.1, 0.9))
    return RankCorrelation(
        n=len(pairs), value=float(spearman(pairs)[0]), low=float(low), high=float(high)
    )


def spearman(pairs: FloatArray, picks: IntArray | None = None) -> FloatArray:
    """(resamples,) Spearman's correlation of the pairs at the indices `picks`; None = all, once.

    Args:
        pairs: (n, 2).
        picks: (resamples, n) indices of pairs; None = one sample of all pairs.
    """
    picks = np.arange(len(pairs))[np.newaxis] if picks is None else picks
    x, y = (
        ranks - ranks.mean(axis=1, keepdims=True)
        for ranks in (_ranks(column, picks) for column in pairs.T)
    )
    correlation: FloatArray = (x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return correlation


def _ranks(values: FloatArray, picks: IntArray) -> FloatArray:
    """(resamples, n) ranks of the picked values within each resample; ties get their mean rank."""
    number = np.unique(values, return_inverse=True)[1][picks]
    counts = np.zeros((len(picks), len(values)))
    np.add.at(counts, (np.arange(len(picks))[:, np.newaxis], number), 1)
    return np.take_along_axis(counts.cumsum(axis=1) - (counts - 1) / 2, number, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """Mean absolute error of step times over models with, or without, routed experts.

    Args:
        sources: number of sources.
        by_row: mean over all n rows.
        by_source: mean over sources of the mean of each.
    """

    experts: bool
    n: int
    sources: int
    by_row: float
    by_source: float


def errors_by_model_kind(validation: TrainingValidation, *, experts: bool) -> ModelKind:
    """Mean |error| of step times by row and by source, with or without experts; 0 without rows."""
    rows = [row for row in validation.rows if has_routed_experts(row.run.model) is experts]
    errors = [
        [abs(error) for row in members if (error := row.error(TrainingMetric.TIME)) is not None]
        for members in grouped(rows, source_of).values()
    ]
    errors = [members for members in errors if members]
    every = [error for members in errors for error in members]
    return ModelKind(
        experts=experts,
        n=len(every),
        sources=len(errors),
        by_row=fmean(every) if every else 0.0,
        by_source=fmean(map(fmean, errors)) if errors else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A group of different plans of one model on one cluster.

    Args:
        plans: number of different plans, three or more.
        regret: measured time of the plan predicted to be fastest, over the shortest one, less 1.
    """

    name: str
    plans: int
    regret: float


def sweeps(validation: TrainingValidation) -> tuple[Sweep, ...]:
    """Regret (predicted best / best - 1, as measured) of groups of `MIN_SWEEP` plans of a job."""
    groups: dict[Any, list[tuple[TrainingRow, float, float]]] = {}
    for row, predicted, measured in timed(validation.rows):
        run = row.run
        gpu, devices = run.measurement.gpu, run.cluster.num_devices
        key = (source_of(row), run.model.name, gpu, devices, run.job, run.runtime)
        groups.setdefault(key, []).append((row, predicted, measured))
    found_sweeps = []
    for (source, model, gpu, devices, *_), members in groups.items():
        plans = len({row.run.grid for row, _, _ in members})
        if plans >= MIN_SWEEP:
            _, _, chosen = min(members, key=lambda member: member[1])
            best = min(measured for _, _, measured in members)
            name = f"{source} {model} {devices} x {gpu}"
            found_sweeps.append(Sweep(name=name, plans=plans, regret=chosen / best - 1))
    return tuple(found_sweeps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of measured times inside the predicted 80 % intervals, and the intervals' width.

    Args:
        inside: share of rows whose measured time is in the interval.
        width: mean half-width, over the mean |error|.
    """

    n: int
    inside: float
    width: float


def coverage(rows: Iterable[TrainingRow]) -> Coverage:
    """Share of measured step times inside predicted intervals, and half-width over mean error."""
    judged = [
        (row.prediction.interval_s, predicted, measured)
        for row, predicted, measured in timed(rows)
        if row.prediction is not None and row.prediction.interval_s
    ]
    if not judged:
        return Coverage(n=0, inside=0.0, width=0.0)
    half = fmean((high - low) / 2 / predicted for (low, high), predicted, _ in judged)
    error = fmean(abs(predicted / measured - 1) for _, predicted, measured in judged)
    return Coverage(
        n=len(judged),
        inside=fmean(float(low <= measured <= high) for (low, high), _, measured in judged),
        width=half / max(error, 1e-9),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakScaling:
    """Predicted and measured ratio of step times on most and on fewest devices."""

    name: str
    fewest: int
    most: int
    predicted: float
    measured: float


def weak_scaling(validation: TrainingValidation, scaling: ScalingCheck) -> WeakScaling | None:
    """Step time on most over fewest devices, predicted and measured; None without rows of both."""
    times: dict[int, list[tuple[float, float]]] = {scaling.fewest: [], scaling.most: []}
    for row, predicted, measured in timed(validation.rows):
        devices = row.run.cluster.num_devices
        if devices in times and scaling.where.matches(cells_of(row.run.measurement)):
            times[devices].append((predicted, measured))
    if not all(times.values()):
        return None
    predicted, measured = (
        fmean(pair[place] for pair in times[scaling.most])
        / fmean(pair[place] for pair in times[scaling.fewest])
        for place in (0, 1)
    )
    return WeakScaling(
        name=scaling.name,
        fewest=scaling.fewest,
        most=scaling.most,
        predicted=predicted,
        measured=measured,
    )
