"""Prediction errors of served configurations by category, their kinds of fold, and their JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.serving.deployments.deployment_notation import print_deployment
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import (
    SHIPPED_FOLD,
    Fold,
    by_name,
)
from shardwright.validation.errors.prediction_errors import (
    ErrorStatistics,
    JudgedRow,
    Validation,
    error_statistics,
    grouped,
    median_error_of_all,
)
from shardwright.validation.serving.measured_deployment import Category, ServingRun, ServingValues
from shardwright.validation.serving.serving_table_columns import ServingMetric

ServingRow = JudgedRow[ServingRun, ServingValues]
ServingValidation = Validation[ServingRun, ServingValues]
NEAR: Final = 0.2
"""Largest |cache load - 1| of a row near capacity."""
WAITING: Final = 2.0
"""Requests wait where TTFT is more than this many times TTFT with an endless KV cache."""
FOLDS: Final[Mapping[str, Fold[ServingRun]]] = by_name(
    Fold(name=SHIPPED_FOLD, key=lambda _: ""),
    Fold(name="model", key=lambda run: run.model.name),
    Fold(name="version", key=lambda run: run.version),
)


def is_near_capacity(values: ServingValues | None) -> bool:
    """True if the predicted load of the KV cache is within 20 % of full, above or below."""
    return values is not None and abs(values.cache_load - 1) <= NEAR


def category_of(row: ServingRow, metric: ServingMetric) -> Category:
    """Category of a row in one metric: CAPACITY for waiting times near capacity, else the run's."""
    waits = metric in (ServingMetric.TTFT, ServingMetric.E2E)
    if row.run.category is Category.KNOWN and waits and is_near_capacity(row.prediction):
        return Category.CAPACITY
    return row.run.category


def errors_of(
    rows: Iterable[ServingRow], metric: ServingMetric, category: Category | None = Category.KNOWN
) -> ErrorStatistics | None:
    """Error statistics in one metric of rows in `category` (None = all); None if no row has any.

    Args:
        category: the category of the rows to include; None = all.
    """
    counted = (row for row in rows if category in (None, category_of(row, metric)))
    return error_statistics(counted, metric, bias=median_error_of_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingAgreement:
    """Number of rows near capacity, and number of them with a right prediction of waiting."""

    n: int
    right: int


def waiting_agreement(rows: Iterable[ServingRow]) -> WaitingAgreement:
    """Count rows near capacity, and those where measured and predicted TTFT agree on waiting."""
    agree = []
    for row in rows:
        measured, values = row.run.values.ttft_s, row.prediction
        if values is None or not is_near_capacity(values) or not measured:
            continue
        if values.ttft_s is not None and values.endless_ttft_s:
            limit = WAITING * values.endless_ttft_s
            agree.append((measured > limit) == (values.ttft_s > limit))
    return WaitingAgreement(n=len(agree), right=sum(agree))


def engine_and_device(row: ServingRow) -> str:
    """Name of the engine and of the accelerator: ``sglang, b200-sxm``."""
    return f"{row.run.engine.engine}, {row.run.cluster.node.accelerator.name}"


def serving_json(validation: ServingValidation) -> dict[str, Any]:
    """JSON document of ``validate --json``: rows, groups, skipped rows."""
    return {
        "kind": "serving",
        "fold": validation.fold,
        "rows": [_row_json(row) for row in validation.rows],
        "by_engine_and_device": {
            name: {
                metric.value: asdict(errors) if errors else None
                for metric in ServingMetric
                for errors in (errors_of(rows, metric, None),)
            }
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
    """JSON object of a judged row: its configuration, measured and predicted values, errors."""
    run, measurement = row.run, row.run.measurement
    metrics = {
        metric.value: {
            "measured": run.measured(metric),
            "predicted": row.predicted(metric),
            "error": row.error(metric),
        }
        for metric in ServingMetric
        if run.measured(metric) is not None
    }
    return {
        "source_id": measurement.source_id,
        "table_or_row": measurement.table_or_row,
        "model_name": measurement.model_name,
        "gpu": measurement.gpu,
        "engine": run.engine.name,
        "version": run.version,
        "deployment": print_deployment(run.deployment),
        "isl": measurement.isl,
        "osl": measurement.osl,
        "concurrency": run.concurrency or None,
        "fold": row.fold,
        "column": {metric.value: category_of(row, metric).value for metric in ServingMetric},
        "cache_load": row.prediction.cache_load if row.prediction else None,
        "infeasible": row.infeasible or None,
        **metrics,
        "assumptions": list(run.assumptions),
    }
