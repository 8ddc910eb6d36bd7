"""Predicted against measured, row by row and by source.

The predictor is passed in: this layer reads predictions and makes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
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
from shardwright.simulator.prediction import Doubt, Prediction
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.validation.fits.fit_constants import Progress
from shardwright.validation.fits.held_out_folds import FOLDS, fold_key
from shardwright.validation.tables.measured_rows import MemoryKind
from shardwright.validation.tables.measured_run import Case, MeasuredKind, Skip, SkipReason

INFEASIBLE_ERROR: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One judged row.

    Args:
        fold: label of the fold it is in; empty without folds.
        predicted_s: None if the prediction says that the run does not fit.
        interval_s: of the prediction.
        error: predicted / measured - 1; 1.0 for a run that the prediction calls infeasible; None if
            no time was measured.
        memory_error: the same for memory.
        infeasible: what the prediction says does not fit; empty if it fits.
        doubts: what the interval is made of.
    """

    case: Case
    fold: str
    predicted_s: float | None
    interval_s: tuple[float, float] | None
    error: float | None
    predicted_memory_bytes: int | None
    memory_error: float | None
    infeasible: str = ""
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStatistics:
    """Of n errors: mean, median and worst of their sizes; bias: mean with sign over feasible rows
    (minus = predicted too fast or small).
    """

    n: int
    mean: float
    median: float
    worst: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceResult:
    """All rows of one source; None where nothing of the kind was measured. infeasible: rows that
    ran and were called infeasible.
    """

    source_id: str
    time: ErrorStatistics | None
    memory: ErrorStatistics | None
    infeasible: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureResult:
    """A configuration that did not fit, and whether the prediction says so."""

    case: Case
    predicted_infeasible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """All rows of one kind of fold, judged."""

    fold: str
    rows: tuple[RowResult, ...]
    by_source: tuple[SourceResult, ...]
    skipped: tuple[Skip, ...]
    failures: tuple[FailureResult, ...] = ()


def judge(
    cases: Iterable[Case | Skip],
    *,
    predict: Callable[[Case], Prediction],
    fold: str = "none",
    progress: Progress | None = None,
) -> Validation:
    """Judge every row that is a complete case.

    Args:
        cases: what `rows.to_case` made of the rows of tables.
        predict: a case's prediction; raises InfeasibleError if it does not fit, StrategyError,
            ModelError, ClusterError or RuntimeModelError if it cannot be expressed (the row is
            skipped).
        fold: how rows are labelled, see `folds.FOLDS`; with which constants a fold is predicted is
            the predictor's part.

    Raises:
        UsageError: unknown `fold`.
    """
    if fold not in FOLDS:
        raise UsageError(f"unknown fold {fold[:40]!r}", hint=nearest(fold[:40], FOLDS))
    judged: list[RowResult] = []
    skipped: list[Skip] = []
    failures: list[FailureResult] = []
    listed = list(cases)
    for index, case in enumerate(listed):
        if progress is not None:
            progress("rows", index, len(listed))
        if isinstance(case, Skip):
            skipped.append(case)
            continue
        outcome = _outcome(case, predict=predict)
        if isinstance(outcome, Skip):
            skipped.append(outcome)
        elif not case.ran:
            failures.append(FailureResult(case=case, predicted_infeasible=isinstance(outcome, str)))
        else:
            judged.append(_judge(case, outcome, fold=fold_key(case, fold=fold)))
    return Validation(
        fold=fold,
        rows=tuple(judged),
        by_source=_by_source(judged),
        skipped=tuple(skipped),
        failures=tuple(failures),
    )


def _outcome(case: Case, *, predict: Callable[[Case], Prediction]) -> Prediction | str | Skip:
    """The prediction, or what does not fit, or why the case cannot be expressed."""
    try:
        prediction = predict(case)
    except InfeasibleError as error:
        return error.message
    except StrategyError as error:
        return Skip(
            measurement=case.measurement,
            reason=SkipReason.UNSUPPORTED_STRATEGY,
            detail=error.message,
        )
    except ModelError as error:
        return Skip(
            measurement=case.measurement, reason=SkipReason.UNSUPPORTED_MODEL, detail=error.message
        )
    except (ClusterError, RuntimeModelError) as error:
        return Skip(
            measurement=case.measurement,
            reason=SkipReason.UNSUPPORTED_RUNTIME,
            detail=error.message,
        )
    if prediction.capacity_bytes and prediction.allocated_bytes > prediction.capacity_bytes:
        return f"{prediction.allocated_bytes} bytes on a device of {prediction.capacity_bytes}"
    return prediction


def _judge(case: Case, outcome: Prediction | str, *, fold: str) -> RowResult:
    if isinstance(outcome, str):
        return RowResult(
            case=case,
            fold=fold,
            predicted_s=None,
            interval_s=None,
            error=INFEASIBLE_ERROR if case.measured_s is not None else None,
            predicted_memory_bytes=None,
            memory_error=INFEASIBLE_ERROR if case.memory_bytes is not None else None,
            infeasible=outcome,
        )
    memory = predicted_memory(outcome, kind=case.memory_kind)
    return RowResult(
        case=case,
        fold=fold,
        predicted_s=outcome.step_time_s,
        interval_s=outcome.interval_s,
        doubts=outcome.doubts,
        error=outcome.step_time_s / case.measured_s - 1 if case.measured_s else None,
        predicted_memory_bytes=memory,
        memory_error=(
            memory / case.memory_bytes - 1 if memory is not None and case.memory_bytes else None
        ),
    )


def predicted_memory(prediction: Prediction, *, kind: MemoryKind) -> int | None:
    """The predicted bytes that are like `kind` of measured memory;
    None where nothing was measured.
    """
    if kind is MemoryKind.NONE:
        return None
    if kind is MemoryKind.RESERVED_WORST:
        return max(
            (stage.allocator_bytes for stage in prediction.stages),
            default=prediction.reserved_bytes,
        )
    if kind is MemoryKind.ALLOCATED_WORST or not prediction.stages:
        return prediction.allocated_bytes
    stages = sorted(prediction.stages, key=lambda stage: stage.rank)
    return stages[0 if kind is MemoryKind.ALLOCATED_FIRST_STAGE else -1].allocated


def statistics(errors: list[float], *, feasible: list[float]) -> ErrorStatistics | None:
    """Statistics of relative errors; the bias counts only `feasible` ones. None of none."""
    if not errors:
        return None
    sizes = [abs(e) for e in errors]
    return ErrorStatistics(
        n=len(errors),
        mean=fmean(sizes),
        median=median(sizes),
        worst=max(sizes),
        bias=fmean(feasible) if feasible else 0.0,
    )


def _by_source(rows: list[RowResult]) -> tuple[SourceResult, ...]:
    """Statistics of each source, in order of first appearance."""
    groups: dict[str, list[RowResult]] = {}
    for row in rows:
        groups.setdefault(row.case.measurement.source_id, []).append(row)
    return tuple(
        SourceResult(
            source_id=source_id,
            time=_errors(members, memory=False),
            memory=_errors(members, memory=True),
            infeasible=sum(1 for r in members if r.infeasible),
        )
        for source_id, members in groups.items()
    )


def _errors(rows: list[RowResult], *, memory: bool) -> ErrorStatistics | None:
    pairs = [(r.memory_error if memory else r.error, bool(r.infeasible)) for r in rows]
    errors = [(error, infeasible) for error, infeasible in pairs if error is not None]
    return statistics(
        [e for e, _ in errors], feasible=[e for e, infeasible in errors if not infeasible]
    )


def validation_json(validation: Validation) -> dict[str, Any]:
    """The JSON face of ``validate --json``: rows, by_source, skipped, failures."""
    return {
        "fold": validation.fold,
        "rows": [_row_json(row) for row in validation.rows],
        "by_source": {source.source_id: _source_json(source) for source in validation.by_source},
        "skipped": [
            {
                "source_id": s.measurement.source_id,
                "table_or_row": s.measurement.table_or_row,
                "reason": s.reason.value,
                "detail": s.detail,
            }
            for s in validation.skipped
        ],
        "failures": [
            {
                "source_id": f.case.measurement.source_id,
                "table_or_row": f.case.measurement.table_or_row,
                "strategy": print_grid(f.case.grid),
                "predicted_infeasible": f.predicted_infeasible,
            }
            for f in validation.failures
        ],
    }


def _row_json(row: RowResult) -> dict[str, Any]:
    case, measurement = row.case, row.case.measurement
    return {
        "source_id": measurement.source_id,
        "table_or_row": measurement.table_or_row,
        "model_name": measurement.model_name,
        "gpu": measurement.gpu,
        "gpu_count": case.cluster.num_devices,
        "runtime": case.runtime,
        "strategy": print_grid(case.grid),
        "fold": row.fold,
        "measured_kind": (
            None if case.measured_kind is MeasuredKind.NONE else case.measured_kind.value
        ),
        "measured_s": case.measured_s,
        "predicted_s": row.predicted_s,
        "interval_s": list(row.interval_s) if row.interval_s else None,
        "error": row.error,
        "memory_kind": None if case.memory_kind is MemoryKind.NONE else case.memory_kind.value,
        "measured_memory_bytes": case.memory_bytes,
        "predicted_memory_bytes": row.predicted_memory_bytes,
        "memory_error": row.memory_error,
        "infeasible": row.infeasible or None,
        "assumptions": list(case.assumptions),
    }


def _source_json(source: SourceResult) -> dict[str, Any]:
    return {field: value for field, value in asdict(source).items() if field != "source_id"}
