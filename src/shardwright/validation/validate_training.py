"""The verb `validate`: predicted against measured, over tables of measured runs. Apart from `api`,
which every plan loads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.runtime.registry import load_runtime
from shardwright.validation.errors.errors_by_fold import Study, study
from shardwright.validation.errors.prediction_errors import Validation
from shardwright.validation.fits.fit_constants import Progress
from shardwright.validation.fits.held_out_folds import FOLDS, FoldConstants
from shardwright.validation.rows.row_to_problem import to_case
from shardwright.validation.tables.measured_rows import read_measurements
from shardwright.validation.tables.measured_run import Case, Skip
from shardwright.validation.tables.table_facts import Facts, facts_beside, read_facts

MAX_WORKERS: Final = 8


def validate(
    *paths: Path | str,
    fold: str = "none",
    facts: Path | str | None = None,
    runtime: str = "",
    progress: Progress | None = None,
) -> Validation:
    """Predicted against measured for every row with a full configuration, of all tables together.

    Args:
        fold: ``none`` predicts with the shipped constants; ``model``, ``source`` and
            ``accelerator`` predict each fold with constants fitted on all other rows of the tables.
        facts: folder of facts on the tables; the folders ``facts`` beside them if not given.
        runtime: of rows for which neither the table nor its facts name one.

    Raises:
        UsageError: unknown `fold`. DataError: a table or a file of facts cannot be read.
        RuntimeModelError: unknown `runtime`.
    """
    if fold not in FOLDS:
        raise UsageError(f"unknown fold {fold[:40]!r}", hint=nearest(fold[:40], FOLDS))
    known = facts_of(*paths, folder=facts)
    return accuracy(
        *paths, facts=known, folds=(fold,), runtime=runtime, progress=progress
    ).validation(fold)


def facts_of(*paths: Path | str, folder: Path | str | None = None) -> Facts:
    """The facts in `folder`, else those beside the tables.
    Raises DataError as `facts.read_facts`.
    """
    return facts_beside(map(Path, paths)) if folder is None else read_facts(Path(folder))


def cases_of(*paths: Path | str, facts: Facts, runtime: str = "") -> tuple[Case | Skip, ...]:
    """The cases of all rows of all tables. Raises DataError, and RuntimeModelError for an unknown
    `runtime`.
    """
    runtime = load_runtime(runtime).name if runtime else ""
    return tuple(
        to_case(row, facts=facts, runtime=runtime)
        for path in paths
        for row in read_measurements(Path(path))
    )


def accuracy(
    *paths: Path | str,
    facts: Facts,
    folds: Sequence[str] = FOLDS,
    known: Mapping[str, FoldConstants] | None = None,
    runtime: str = "",
    progress: Progress | None = None,
) -> Study:
    """`validate` in several kinds of fold at once, with the fit to all rows. For `known` see
    `study`.
    """
    cases = cases_of(*paths, facts=facts, runtime=runtime)
    unfitted = [rows.where for rows in facts.unfitted]
    return study(
        cases,
        folds=folds,
        known=known,
        unfitted=unfitted,
        workers=min(os.cpu_count() or 1, MAX_WORKERS),
        progress=progress,
    )
