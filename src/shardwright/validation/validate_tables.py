"""The verb `validate`: predicted against measured, over tables of training or of serving.

It is apart from `api`, which every plan loads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from shardwright.errors import UsageError
from shardwright.validation.errors.judged_rows import Validation
from shardwright.validation.errors.measured_run import Progress
from shardwright.validation.reader import Reader, Study
from shardwright.validation.serving.measured_rows import is_serving_table
from shardwright.validation.serving.serving_reader import SERVED
from shardwright.validation.tables.table_facts import Facts
from shardwright.validation.training.training_reader import TRAINING

MAX_WORKERS: Final = 8


def validate(
    *paths: Path | str,
    fold: str = "none",
    facts: Path | str | None = None,
    runtime: str = "",
    progress: Progress | None = None,
) -> Validation[Any, Any]:
    """Prediction errors of every row with a full configuration, of all tables together.

    Args:
        fold: ``none`` predicts with the shipped constants. Other kinds of fold predict each row
            with constants fitted to the rows outside its fold: ``model``, ``source``,
            ``other base`` and ``accelerator`` for training, ``model`` and ``version`` for serving.
        facts: folder of facts about the tables; the folders ``facts`` beside them if not given.
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


def reader_of(paths: Iterable[Path | str]) -> Reader[Any, Any, Any]:
    """The reader for tables of training, or for tables of serving, by their headers.

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
    reader: Reader[Any, Any, Any],
    *paths: Path | str,
    facts: Facts,
    folds: Iterable[str] = (),
    stored: Any = None,
    default: str = "",
    progress: Progress | None = None,
) -> Study[Any, Any, Any]:
    """Validations in several kinds of fold (all for none), on several processes.

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
