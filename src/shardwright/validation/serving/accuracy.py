"""`validate` for tables of served configurations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardwright.validation.facts import Facts, facts_beside, read_facts
from shardwright.validation.serving.case import ServingCase, ServingSkip
from shardwright.validation.serving.judge import FOLDS, Progress
from shardwright.validation.serving.measurements import COLUMNS, read_serving
from shardwright.validation.serving.predict import predict_serving
from shardwright.validation.serving.rows import to_serving_case
from shardwright.validation.serving.study import ServingStudy, serving_study

MAX_WORKERS: Final = 8


def serving_facts(*paths: Path | str, folder: Path | str | None = None) -> Facts:
    """The facts in `folder`, else those in the folders ``facts`` beside the tables. Raises DataError as `validation.facts.read_facts`."""
    return facts_beside(map(Path, paths), columns=COLUMNS) if folder is None else read_facts(Path(folder), columns=COLUMNS)


def serving_cases(*paths: Path | str, facts: Facts, engine: str = "") -> tuple[ServingCase | ServingSkip, ...]:
    """The cases of all rows of all tables; `engine`: of rows for which neither they nor their facts name one. Raises DataError."""
    return tuple(to_serving_case(row, facts=facts, engine=engine) for path in paths for row in read_serving(path))


def serving_accuracy(
    *paths: Path | str, facts: Facts, folds: Sequence[str] = FOLDS, engine: str = "", progress: Progress | None = None
) -> ServingStudy:
    """Predicted against measured for every row with a full configuration, of all tables together.

    Raises:
        UsageError: unknown fold. DataError: a table cannot be read.
    """
    cases = serving_cases(*paths, facts=facts, engine=engine)
    return serving_study(cases, evaluate=predict_serving, folds=folds, workers=min(os.cpu_count() or 1, MAX_WORKERS), progress=progress)
