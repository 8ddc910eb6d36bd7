"""Prediction errors: each measured run compared with its prediction, and statistics of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any, Final, Generic

from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import (
    PredictionT,
    Progress,
    RunT,
)
from shardwright.validation.tables.skipped_rows import UNSUPPORTED, SkippedRow, skip_of

_UNSUPPORTED: Final = tuple(UNSUPPORTED)
INFEASIBLE_ERROR: Final = 1.0
"""Error of a run that took place although it is predicted not to fit in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow(Generic[RunT, PredictionT]):
    """A measured run with its prediction, or with the reason why it is predicted not to fit.

    Args:
        fold: key of the fold that the run is in; empty where nothing is held out.
        prediction: None for a run that is predicted not to fit.
        infeasible: the part that does not fit; empty if all fits.
    """

    run: RunT
    fold: str = ""
    prediction: PredictionT | None
    infeasible: str = ""

    def predicted(self, metric: Any) -> float | None:
        """Predicted value of a metric; None for a run that is predicted not to fit."""
        if self.prediction is None:
            return None
        return self.run.predicted(self.prediction, metric)

    def error(self, metric: Any) -> float | None:
        """Relative error predicted / measured - 1; 1.0 if predicted not to fit, None if unmeasured.

        None if the metric was not measured.
        """
        measured = self.run.measured(metric)
        if not measured:
            return None
        if self.prediction is None:
            return INFEASIBLE_ERROR
        predicted = self.predicted(metric)
        return None if predicted is None else predicted / measured - 1

    def largest_error(self, metrics: Iterable[Any]) -> float:
        """Largest |error| of the metrics that were measured; 0 without any."""
        return max((abs(self.error(metric) or 0.0) for metric in metrics), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(Generic[RunT, PredictionT]):
    """All rows of the tables with their predictions in one kind of fold, and the skipped rows.

    Args:
        rows: runs that took place and could be predicted.
        failures: configurations that ran out of memory, predicted.
    """

    fold: str
    rows: tuple[JudgedRow[RunT, PredictionT], ...]
    skipped: tuple[SkippedRow, ...]
    failures: tuple[JudgedRow[RunT, PredictionT], ...] = ()

    @property
    def predicted_failures(self) -> int:
        """Number of runs that ran out of memory and are predicted not to fit."""
        return sum(bool(row.infeasible) for row in self.failures)

    @property
    def summary(self) -> str:
        """Text such as ``5 skipped (3 duplicate, 2 no measurement)``."""
        reasons = Counter(skip.reason.value for skip in self.skipped)
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return f"{len(self.skipped)} skipped{f' ({counts})' if counts else ''}"


def judge(
    runs: Iterable[RunT | SkippedRow],
    *,
    predict: Callable[[RunT], PredictionT],
    key: Callable[[RunT], str] = lambda _: "",
    fold: str = "none",
    progress: Progress | None = None,
) -> Validation[RunT, PredictionT]:
    """Predict runs into compared rows, out-of-memory failures, skipped rows; `key`: a run's fold.

    Args:
        predict: raises InfeasibleError for a run that does not fit; StrategyError, ModelError,
            ClusterError or RuntimeModelError for one that cannot be described, which is skipped.
        key: key of a run's fold.
        fold: name of the kind of fold; `predict` chooses its constants.
    """
    judged: list[JudgedRow[RunT, PredictionT]] = []
    skipped: list[SkippedRow] = []
    listed = list(runs)
    for index, run in enumerate(listed):
        if progress is not None:
            progress("rows", index, len(listed))
        if isinstance(run, SkippedRow):
            skipped.append(run)
            continue
        prediction, infeasible = None, ""
        try:
            prediction = predict(run)
        except InfeasibleError as error:
            infeasible = error.message
        except _UNSUPPORTED as error:
            skipped.append(skip_of(run.measurement, error))
            continue
        judged.append(
            JudgedRow(run=run, fold=key(run), prediction=prediction, infeasible=infeasible)
        )
    return Validation(
        fold=fold,
        rows=tuple(row for row in judged if row.run.ran),
        skipped=tuple(skipped),
        failures=tuple(row for row in judged if not row.run.ran),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStatistics:
    """Mean, median, worst and signed bias of the relative errors of n rows.

    Args:
        mean, median, worst: of |error|.
        bias: of the errors with sign; negative = predicted too fast or too small.
    """

    n: int
    mean: float
    median: float
    worst: float
    bias: float


Bias = Callable[[Sequence[float], Sequence[float]], float]


def mean_error_of_feasible(errors: Sequence[float], feasible: Sequence[float]) -> float:
    """Mean signed error of rows predicted to fit (`errors` is not used); 0 without any."""
    del errors
    return fmean(feasible) if feasible else 0.0


def mean_error_of_all(errors: Sequence[float], feasible: Sequence[float]) -> float:
    """Mean signed error of all rows (`feasible` is not used)."""
    del feasible
    return fmean(errors)


def median_error_of_all(errors: Sequence[float], feasible: Sequence[float]) -> float:
    """Median signed error of all rows (`feasible` is not used)."""
    del feasible
    return median(errors)


def error_statistics(
    rows: Iterable[JudgedRow[RunT, PredictionT]],
    metric: Any,
    *,
    bias: Bias = mean_error_of_feasible,
) -> ErrorStatistics | None:
    """Number, mean, median and worst |error|, and signed bias, in one metric; None without rows.

    Args:
        bias: bias of the errors, which gets those of all rows and those of the rows that are
            predicted to fit.
    """
    pairs = [(error, row) for row in rows if (error := row.error(metric)) is not None]
    if not pairs:
        return None
    errors = [error for error, _ in pairs]
    feasible = [error for error, row in pairs if not row.infeasible]
    sizes = [abs(error) for error in errors]
    return ErrorStatistics(
        n=len(sizes),
        mean=fmean(sizes),
        median=median(sizes),
        worst=max(sizes),
        bias=bias(errors, feasible),
    )


def grouped(
    rows: Iterable[JudgedRow[RunT, PredictionT]],
    key: Callable[[JudgedRow[RunT, PredictionT]], str],
) -> dict[str, Sequence[JudgedRow[RunT, PredictionT]]]:
    """Group rows by key, in the order in which the keys first appear."""
    groups: dict[str, list[JudgedRow[RunT, PredictionT]]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {**groups}


def source_of(row: JudgedRow[RunT, PredictionT]) -> str:
    """Identifier of the source that published a row."""
    return str(row.run.measurement.source_id)
