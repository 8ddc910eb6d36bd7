"""`validate` for tables of served configurations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.validation.serving.errors_by_fold import ServingStudy, serving_study, shipped
from shardwright.validation.serving.fit_constants import LinearFit, ServingSlopes, slopes_of
from shardwright.validation.serving.measured_deployment import ServingCase, ServingSkip
from shardwright.validation.serving.measured_rows import COLUMNS, read_serving
from shardwright.validation.serving.predict_deployment import predict_serving
from shardwright.validation.serving.prediction_errors import FOLDS, Progress, require_serving_fold
from shardwright.validation.serving.row_to_deployment import to_serving_case
from shardwright.validation.tables.table_facts import Facts, facts_beside, read_facts

MAX_WORKERS: Final = 8


def serving_facts(*paths: Path | str, folder: Path | str | None = None) -> Facts:
    """The facts in `folder`, else those in the folders ``facts`` beside the tables. Raises
    DataError as `validation.facts.read_facts`.
    """
    return (
        facts_beside(map(Path, paths), columns=COLUMNS)
        if folder is None
        else read_facts(Path(folder), columns=COLUMNS)
    )


def serving_cases(
    *paths: Path | str, facts: Facts, engine: str = ""
) -> tuple[ServingCase | ServingSkip, ...]:
    """The cases of all rows of all tables; `engine`: of rows for which neither they nor their facts
    name one. Raises DataError.
    """
    return tuple(
        to_serving_case(row, facts=facts, engine=engine)
        for path in paths
        for row in read_serving(path)
    )


def serving_accuracy(
    *paths: Path | str,
    facts: Facts,
    folds: Sequence[str] = FOLDS,
    engine: str = "",
    known: ServingSlopes | None = None,
    progress: Progress | None = None,
) -> ServingStudy:
    """Predicted against measured for every row with a full configuration, of all tables together.

    Args:
        known: slopes to fit the constants of folds with; without, they are taken anew where a fold
            holds rows out.

    Raises:
        UsageError: unknown fold. DataError: a table cannot be read.
    """
    for fold in folds:
        require_serving_fold(fold)
    cases, workers = (
        serving_cases(*paths, facts=facts, engine=engine),
        min(os.cpu_count() or 1, MAX_WORKERS),
    )
    slopes = known
    if slopes is None and any(fold != "none" for fold in folds):
        usable = [case for case in cases if isinstance(case, ServingCase)]
        slopes = slopes_of(usable, evaluate=predict_serving, workers=workers, progress=progress)
    fit = shipped if slopes is None else LinearFit(slopes=slopes)
    study = serving_study(
        cases, evaluate=predict_serving, fit=fit, folds=folds, workers=workers, progress=progress
    )
    return replace(study, slopes=slopes)
