"""The table reader of served configurations: its columns, folds, prediction, fit and page."""

from __future__ import annotations

from typing import Final

from shardwright.hardware.catalog.fitted_serving_constants import SERVING, ServingConstants
from shardwright.validation.serving.accuracy_page import serving_page
from shardwright.validation.serving.empty_serving_table_with_examples import COLUMNS
from shardwright.validation.serving.fit_constants import fit_kinds_of_fold, read_slopes, slopes_text
from shardwright.validation.serving.measured_deployment import ServingRun, ServingValues
from shardwright.validation.serving.predict_deployment import predict_serving
from shardwright.validation.serving.row_to_serving_run import to_serving_run
from shardwright.validation.serving.serving_errors import FOLDS, serving_json
from shardwright.validation.serving.serving_table_columns import SERVING_TABLE
from shardwright.validation.table_reader_and_fold_validation import TableReader

SERVED: Final[TableReader[ServingRun, ServingValues, ServingConstants]] = TableReader(
    form=SERVING_TABLE,
    template=COLUMNS,
    folds=FOLDS,
    of=" of serving",
    shipped=SERVING,
    to_run=to_serving_run,
    predict=predict_serving,
    fit=fit_kinds_of_fold,
    read_stored=read_slopes,
    stored_text=slopes_text,
    to_json=serving_json,
    page=serving_page,
)
