"""The verb `validate`: predicted against measured, over tables of measured runs. Apart from `api`, which every plan loads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardwright.calibrate.fit import Progress
from shardwright.calibrate.folds import FOLDS
from shardwright.calibrate.measurements import Measurement, read_measurements
from shardwright.calibrate.study import Study, study
from shardwright.calibrate.validate import Validation
from shardwright.errors import UsageError, nearest

MAX_WORKERS: Final = 8


def validate(*paths: Path | str, fold: str = "none", progress: Progress | None = None) -> Validation:
    """Predicted against measured for every row with a full configuration, of all tables together.

    Args:
        fold: ``none`` predicts with the shipped constants; ``model``, ``source`` and ``accelerator`` predict each fold with constants
            fitted on all other rows of the tables.

    Raises:
        UsageError: unknown `fold`. DataError: a table cannot be read.
    """
    if fold not in FOLDS:
        raise UsageError(f"unknown fold {fold[:40]!r}", hint=nearest(fold[:40], FOLDS))
    return accuracy(*paths, folds=(fold,), progress=progress).validation(fold)


def accuracy(*paths: Path | str, folds: Sequence[str] = FOLDS, progress: Progress | None = None) -> Study:
    """`validate` in several kinds of fold at once, with the fit to all rows."""
    rows: tuple[Measurement, ...] = tuple(row for path in paths for row in read_measurements(Path(path)))
    return study(rows, folds=folds, workers=min(os.cpu_count() or 1, MAX_WORKERS), progress=progress)
