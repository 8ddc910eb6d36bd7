"""The table reader of training runs, and the JSON of their validation."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from shardwright.hardware.catalog.fitted_training_constants import SHIPPED, Constants
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.validation.errors.prediction_errors import error_statistics, grouped, source_of
from shardwright.validation.table_reader_and_fold_validation import TableReader
from shardwright.validation.training.accuracy_page import accuracy_page
from shardwright.validation.training.empty_table_columns_with_examples import COLUMNS
from shardwright.validation.training.fit_constants import fit_kinds_of_fold, folds_text, read_folds
from shardwright.validation.training.kinds_of_cross_validation_folds import FOLDS
from shardwright.validation.training.measured_training_run import (
    MeasuredKind,
    TrainingRun,
    identity_of,
)
from shardwright.validation.training.predict_run import predict_fitting_run
from shardwright.validation.training.row_to_training_run import to_training_run
from shardwright.validation.training.sweep_and_scaling_checks import TrainingRow, TrainingValidation
from shardwright.validation.training.training_table_columns import (
    TRAINING_TABLE,
    MemoryKind,
    TrainingMetric,
)


def validation_json(validation: TrainingValidation) -> dict[str, Any]:
    """JSON document of ``validate --json``: rows, sources, skipped rows, failures."""
    return {
        "fold": validation.fold,
        "rows": [_row_json(row) for row in validation.rows],
        "by_source": {
            source: {
                **{
                    metric.value: asdict(errors) if errors else None
                    for metric in TrainingMetric
                    for errors in (error_statistics(rows, metric),)
                },
                "infeasible": sum(bool(row.infeasible) for row in rows),
            }
            for source, rows in grouped(validation.rows, source_of).items()
        },
        "skipped": [
            {
                "source_id": skip.measurement.source_id,
                "table_or_row": skip.measurement.table_or_row,
                "reason": skip.reason.value,
                "detail": skip.detail,
            }
            for skip in validation.skipped
        ],
        "failures": [
            {
                "source_id": row.run.measurement.source_id,
                "table_or_row": row.run.measurement.table_or_row,
                "strategy": print_grid(row.run.grid),
                "predicted_infeasible": bool(row.infeasible),
            }
            for row in validation.failures
        ],
    }


def _row_json(row: TrainingRow) -> dict[str, Any]:
    """JSON object of a judged row: its configuration, measured and predicted values, errors."""
    run, measurement, prediction = row.run, row.run.measurement, row.prediction
    has_time, has_memory = (
        run.measured_kind is not MeasuredKind.NONE,
        run.memory_kind is not MemoryKind.NONE,
    )
    return {
        "source_id": measurement.source_id,
        "table_or_row": measurement.table_or_row,
        "model_name": measurement.model_name,
        "gpu": measurement.gpu,
        "gpu_count": run.cluster.num_devices,
        "runtime": run.runtime,
        "strategy": print_grid(run.grid),
        "fold": row.fold,
        "measured_kind": run.measured_kind.value if has_time else None,
        "measured_s": run.measured_s,
        "predicted_s": row.predicted(TrainingMetric.TIME),
        "interval_s": list(prediction.interval_s) if prediction and prediction.interval_s else None,
        "error": row.error(TrainingMetric.TIME),
        "memory_kind": run.memory_kind.value if has_memory else None,
        "measured_memory_bytes": run.memory_bytes,
        "predicted_memory_bytes": row.predicted(TrainingMetric.MEMORY),
        "memory_error": row.error(TrainingMetric.MEMORY),
        "infeasible": row.infeasible or None,
        "assumptions": list(run.assumptions),
    }


TRAINING: Final[TableReader[TrainingRun, Prediction, Constants]] = TableReader(
    form=TRAINING_TABLE,
    template=COLUMNS,
    folds=FOLDS,
    shipped=SHIPPED,
    to_run=to_training_run,
    require_default=load_runtime,
    predict=predict_fitting_run,
    identity=identity_of,
    fit=fit_kinds_of_fold,
    read_stored=read_folds,
    stored_text=folds_text,
    to_json=validation_json,
    page=accuracy_page,
)
