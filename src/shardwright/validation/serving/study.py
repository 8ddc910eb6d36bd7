"""All rows in all kinds of fold: each predicted with constants that have not seen the rows held out with it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from shardwright.errors import ShardwrightError
from shardwright.hardware.catalog.serving_constants import SERVING, ServingConstants
from shardwright.validation.serving.case import ServingCase, ServingSkip
from shardwright.validation.serving.evaluator import ServingEvaluator, ServingPrediction
from shardwright.validation.serving.judge import FOLDS, Progress, ServingValidation, fold_key, judge_serving

Outcome = ServingPrediction | ShardwrightError
MIN_TASKS = 16
"""Fewer predictions than this are not worth starting processes for."""


class ServingFit(Protocol):
    """Constants from measured cases."""

    def __call__(self, cases: Sequence[ServingCase], /) -> ServingConstants: ...  # noqa: D102 - see the class


def shipped(cases: Sequence[ServingCase]) -> ServingConstants:
    """No constant is fitted to rows: whatever is left out, they are the shipped ones."""
    del cases
    return SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStudy:
    """Predictions of all rows, one validation a kind of fold."""

    validations: tuple[ServingValidation, ...]

    def validation(self, fold: str) -> ServingValidation:
        """The validation of one kind of fold."""
        return next(v for v in self.validations if v.fold == fold)


def serving_study(
    cases: Sequence[ServingCase | ServingSkip],
    *,
    evaluate: ServingEvaluator,
    fit: ServingFit = shipped,
    folds: Sequence[str] = FOLDS,
    workers: int = 1,
    progress: Progress | None = None,
) -> ServingStudy:
    """Each kind of fold, with constants that `fit` finds in the rows that are not held out.

    Args:
        folds: kinds of fold; ``none`` predicts with the shipped constants. workers: processes; `evaluate` must then be a function of a
            module.

    Raises:
        UsageError: unknown fold.
    """
    usable = [case for case in cases if isinstance(case, ServingCase)]
    constants = {fold: _held_out(usable, fold=fold, fit=fit) for fold in folds}
    tasks = {(id(case), one[fold_key(case, fold=fold)]): case for fold, one in constants.items() for case in usable}
    known = _predicted(tasks, evaluate=evaluate, workers=workers, progress=progress)

    def predict(case: ServingCase, *, fold: str) -> ServingPrediction:
        found = known[id(case), constants[fold][fold_key(case, fold=fold)]]
        if isinstance(found, ShardwrightError):
            raise found
        return found

    return ServingStudy(validations=tuple(judge_serving(cases, predict=partial(predict, fold=fold), fold=fold) for fold in folds))


def _held_out(cases: Sequence[ServingCase], *, fold: str, fit: ServingFit) -> dict[str, ServingConstants]:
    """Key of each fold -> constants fitted without its rows."""
    keys = dict.fromkeys(fold_key(case, fold=fold) for case in cases)
    if fold == "none":
        return dict.fromkeys(keys, SERVING)
    return {key: fit([case for case in cases if fold_key(case, fold=fold) != key]) for key in keys}


def _predicted(
    tasks: dict[tuple[int, ServingConstants], ServingCase], *, evaluate: ServingEvaluator, workers: int, progress: Progress | None
) -> dict[tuple[int, ServingConstants], Outcome]:
    found: dict[tuple[int, ServingConstants], Outcome] = {}
    work = [(case, constants) for (_, constants), case in tasks.items()]
    if workers <= 1 or len(work) < MIN_TASKS:
        outcomes = map(partial(_outcome, evaluate), work)
        for index, (key, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
            if progress is not None:
                progress("rows", index, len(tasks))
            found[key] = outcome
        return found
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for index, (key, outcome) in enumerate(zip(tasks, pool.map(partial(_outcome, evaluate), work, chunksize=4), strict=True)):
            if progress is not None:
                progress("rows", index, len(tasks))
            found[key] = outcome
    return found


def _outcome(evaluate: ServingEvaluator, task: tuple[ServingCase, ServingConstants]) -> Outcome:
    try:
        return evaluate(*task)
    except ShardwrightError as error:
        return error
