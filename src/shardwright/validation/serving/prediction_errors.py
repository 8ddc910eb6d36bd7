"""Predicted against measured: errors of times and throughput, row by row and by groups.

Rows whose source leaves something open have columns of their own (`Column`), and so have those
whose requests would fill nearly the whole cache: there a few per cent of memory decide whether
requests wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from statistics import fmean, median
from typing import Any, Final

from shardwright.errors import (
    ClusterError,
    InfeasibleError,
    ModelError,
    RuntimeModelError,
    StrategyError,
    UsageError,
    nearest,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.serving.deployments.deployment_notation import print_deployment
from shardwright.validation.serving.measured_deployment import (
    Doubt,
    Metric,
    ServingCase,
    ServingSkip,
)
from shardwright.validation.serving.predictor_protocol import ServingPrediction
from shardwright.validation.tables.measured_run import SkipReason

Progress = Callable[[str, int, int], None]
INFEASIBLE_ERROR: Final = 1.0
NEAR: Final = 0.2
"""A cache is nearly full where what requests would hold is within this part of it."""
WAITING: Final = 2.0
"""Requests wait where the first token takes more than this many times what it would with an endless
cache."""
FOLDS: Final = ("none", "model", "version")


class Column(StrEnum):
    """Where a row is counted."""

    KNOWN = "known"
    MTP = "mtp unknown"
    DEGREES = "degrees inconsistent"
    PRECISION = "precision unknown"
    CAPACITY = "near capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """A judged row.

    Args:
        fold: key of the rows that were held out with it; empty = none were.
        prediction: None for a run that is called infeasible, which `infeasible` explains.
    """

    case: ServingCase
    fold: str = ""
    prediction: ServingPrediction | None
    infeasible: str = ""

    @property
    def near_capacity(self) -> bool:
        """Whether its requests would fill nearly the whole cache."""
        return self.prediction is not None and abs(self.prediction.cache_load - 1) <= NEAR

    def column(self, metric: Metric) -> Column:
        """Where it is counted; capacity concerns the waiting that times to first tokens have in
        them.
        """
        if self.case.doubt is not Doubt.NONE:
            return Column(self.case.doubt.value)
        return (
            Column.CAPACITY
            if self.near_capacity and metric in (Metric.TTFT, Metric.E2E)
            else Column.KNOWN
        )

    def predicted(self, metric: Metric) -> float | None:
        """Seconds, or tokens a second."""
        return (
            self.prediction.of(metric, outputs=self.case.mean_outputs)
            if self.prediction is not None
            else None
        )

    def error(self, metric: Metric) -> float | None:
        """Predicted over measured, less 1; a run that is called infeasible counts as 100 %; None
        where it was not measured.
        """
        measured = self.case.measured(metric)
        if not measured:
            return None
        predicted = self.predicted(metric)
        return INFEASIBLE_ERROR if predicted is None else predicted / measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of n rows: median and mean of |error|, the worst, and the bias: their median with sign
    (minus: predicted too fast).
    """

    n: int
    median: float
    mean: float
    worst: float
    bias: float


def errors_of(rows: Iterable[ServingRow], metric: Metric) -> Errors | None:
    """Of the rows where it was measured; None of none."""
    found = [error for row in rows if (error := row.error(metric)) is not None]
    if not found:
        return None
    sizes = [abs(error) for error in found]
    return Errors(
        n=len(found), median=median(sizes), mean=fmean(sizes), worst=max(sizes), bias=median(found)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingValidation:
    """All rows in one kind of fold."""

    fold: str
    rows: tuple[ServingRow, ...]
    skipped: tuple[ServingSkip, ...]

    def counted(self, metric: Metric, column: Column = Column.KNOWN) -> tuple[ServingRow, ...]:
        """The rows of one column."""
        return tuple(row for row in self.rows if row.column(metric) is column)


def require_serving_fold(fold: str) -> None:
    """Raises UsageError where `fold` is no kind of fold of serving."""
    if fold not in FOLDS:
        raise UsageError(f"unknown fold {fold[:40]!r} of serving", hint=nearest(fold[:40], FOLDS))


def fold_key(case: ServingCase, *, fold: str) -> str:
    """What is held out together with a case: its model, or its engine's version. Raises as
    `require_serving_fold`.
    """
    require_serving_fold(fold)
    return {"none": "", "model": case.model.name, "version": case.version}[fold]


def judge_serving(
    cases: Sequence[ServingCase | ServingSkip],
    *,
    predict: Callable[[ServingCase], ServingPrediction],
    fold: str = "none",
    progress: Progress | None = None,
) -> ServingValidation:
    """Every case predicted and compared; those that cannot be expressed join the skipped ones.

    Raises:
        UsageError: unknown `fold`.
    """
    rows: list[ServingRow] = []
    skipped: list[ServingSkip] = []
    for index, case in enumerate(cases):
        if progress is not None:
            progress("rows", index, len(cases))
        if isinstance(case, ServingSkip):
            skipped.append(case)
            continue
        key = fold_key(case, fold=fold)
        try:
            rows.append(ServingRow(case=case, fold=key, prediction=predict(case)))
        except InfeasibleError as error:
            rows.append(ServingRow(case=case, fold=key, prediction=None, infeasible=error.message))
        except StrategyError as error:
            skipped.append(
                ServingSkip(
                    measurement=case.measurement,
                    reason=SkipReason.UNSUPPORTED_STRATEGY,
                    detail=error.message,
                )
            )
        except ModelError as error:
            skipped.append(
                ServingSkip(
                    measurement=case.measurement,
                    reason=SkipReason.UNSUPPORTED_MODEL,
                    detail=error.message,
                )
            )
        except (ClusterError, RuntimeModelError) as error:
            skipped.append(
                ServingSkip(
                    measurement=case.measurement,
                    reason=SkipReason.UNSUPPORTED_RUNTIME,
                    detail=error.message,
                )
            )
    return ServingValidation(fold=fold, rows=tuple(rows), skipped=tuple(skipped))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Of the rows near capacity: of how many it is right whether requests wait for the cache."""

    n: int
    right: int


def waiting(rows: Iterable[ServingRow]) -> Waiting:
    """Whether requests wait, measured and predicted, by the time to the first token with an endless
    cache.
    """
    found = []
    for row in rows:
        measured, endless = (
            row.case.ttft_s,
            row.prediction.endless_ttft_s if row.prediction else None,
        )
        if row.prediction is None or not row.near_capacity or not measured or not endless:
            continue
        found.append((measured > WAITING * endless) == (row.prediction.ttft_s > WAITING * endless))
    return Waiting(n=len(found), right=sum(found))


def grouped(
    rows: Iterable[ServingRow], by: Callable[[ServingRow], str]
) -> dict[str, tuple[ServingRow, ...]]:
    """Rows by a word, in the order of the words."""
    found: dict[str, list[ServingRow]] = {}
    for row in rows:
        found.setdefault(by(row), []).append(row)
    return {word: tuple(found[word]) for word in sorted(found)}


def engine_and_device(row: ServingRow) -> str:
    """``sglang, b200-sxm``."""
    return f"{row.case.engine.engine}, {row.case.cluster.node.accelerator.name}"


def serving_json(validation: ServingValidation) -> dict[str, Any]:
    """The JSON face: rows, groups, skipped."""
    return {
        "kind": "serving",
        "fold": validation.fold,
        "rows": [_row_json(row) for row in validation.rows],
        "by_engine_and_device": {
            name: {metric.value: _errors_json(errors_of(rows, metric)) for metric in Metric}
            for name, rows in grouped(validation.rows, engine_and_device).items()
        },
        "skipped": [
            {
                "source_id": skip.measurement.source_id,
                "table_or_row": skip.measurement.table_or_row,
                "line": skip.measurement.line,
                "reason": skip.reason.value,
                "detail": skip.detail,
            }
            for skip in validation.skipped
        ],
    }


def _row_json(row: ServingRow) -> dict[str, Any]:
    case, measurement = row.case, row.case.measurement
    metrics = {
        metric.value: {
            "measured": case.measured(metric),
            "predicted": row.predicted(metric),
            "error": row.error(metric),
        }
        for metric in Metric
        if case.measured(metric) is not None
    }
    return {
        "source_id": measurement.source_id,
        "table_or_row": measurement.table_or_row,
        "model_name": measurement.model_name,
        "gpu": measurement.gpu,
        "engine": case.engine.name,
        "version": case.version,
        "deployment": print_deployment(case.deployment),
        "isl": measurement.isl,
        "osl": measurement.osl,
        "concurrency": case.concurrency or None,
        "fold": row.fold,
        "column": {metric.value: row.column(metric).value for metric in Metric},
        "cache_load": row.prediction.cache_load if row.prediction else None,
        "infeasible": row.infeasible or None,
        **metrics,
        "assumptions": list(case.assumptions),
    }


def _errors_json(errors: Errors | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    return {
        "n": errors.n,
        "median": errors.median,
        "mean": errors.mean,
        "worst": errors.worst,
        "bias": errors.bias,
    }
