"""Compare predictions with tables of measured training runs or served configurations.

It is apart from `api`, which every plan loads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from shardwright.errors import UsageError
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import Progress
from shardwright.validation.errors.prediction_errors import Validation
from shardwright.validation.serving.serving_table_columns import is_serving_table
from shardwright.validation.serving.serving_table_reader_with_prediction_and_fit import SERVED
from shardwright.validation.table_reader_and_fold_validation import Study, TableReader
from shardwright.validation.tables.table_facts_from_toml import TableFacts
from shardwright.validation.training.training_table_reader_and_json import TRAINING

MAX_WORKERS: Final = 8


def validate(
    *paths: Path | str,
    fold: str = "none",
    facts: Path | str | None = None,
    runtime: str = "",
    progress: Progress | None = None,
) -> Validation[Any, Any]:
    """Prediction errors of all tables' rows in one kind of `fold`; `runtime`: for rows without one.

    Args:
        fold: ``none`` predicts with the shipped constants. Other kinds of fold predict each row
            with constants fitted to the rows outside its fold: ``model``, ``source``,
            ``other base`` and ``accelerator`` for training, ``model`` and ``version`` for serving.
        facts: folder of facts about the tables; default: the folders ``facts`` beside the tables.
        runtime: runtime, or serving engine, of rows for which neither table nor facts name one.

    Raises:
        UsageError: unknown `fold`, or tables of both kinds. DataError: a table or a file of facts
        cannot be read. RuntimeModelError: unknown `runtime`.
    """
    reader = reader_of(paths)
    reader.fold_named(fold)
    described = reader.facts(*paths, folder=facts)
    study = accuracy(
        reader, *paths, facts=described, folds=(fold,), default=runtime, progress=progress
    )
    return study.validation(fold)


def reader_of(paths: Iterable[Path | str]) -> TableReader[Any, Any, Any]:
    """Reader for tables of training or of serving, chosen by their headers.

    Raises:
        UsageError: tables of both kinds. DataError: a table cannot be read.
    """
    kinds = {is_serving_table(path) for path in paths}
    if len(kinds) > 1:
        raise UsageError(
            "tables of training and of serving in one call", hint="validate each kind by itself"
        )
    return SERVED if True in kinds else TRAINING


def accuracy(
    reader: TableReader[Any, Any, Any],
    *paths: Path | str,
    facts: TableFacts,
    folds: Iterable[str] = (),
    stored: Any = None,
    default: str = "",
    progress: Progress | None = None,
) -> Study[Any, Any, Any]:
    """Study of all tables: fitted constants and predictions in the named (else all) kinds of fold.

    Args:
        stored: constants or slopes that were fitted before; nothing is fitted then.
        default: runtime or engine of rows for which neither table nor facts name one.
    """
    return reader.study(
        reader.runs(*paths, facts=facts, default=default),
        facts=facts,
        folds=tuple(folds),
        stored=stored,
        workers=min(os.cpu_count() or 1, MAX_WORKERS),
        progress=progress,
    )
