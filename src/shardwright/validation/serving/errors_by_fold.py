"""All rows in all kinds of fold: each predicted with constants that have not seen the rows held out
with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from shardwright.errors import ShardwrightError
from shardwright.hardware.catalog.serving_constants import SERVING, ServingConstants
from shardwright.lazy_dataclass import dataclass
from shardwright.validation.serving.fit_constants import ServingSlopes
from shardwright.validation.serving.measured_deployment import ServingCase, ServingSkip
from shardwright.validation.serving.parallel_predictions import predictions_of
from shardwright.validation.serving.prediction_errors import (
    FOLDS,
    Progress,
    ServingValidation,
    fold_key,
    judge_serving,
)
from shardwright.validation.serving.predictor_protocol import ServingEvaluator, ServingPrediction


class ServingFit(Protocol):
    """Constants from measured cases."""

    def __call__(self, cases: Sequence[ServingCase], /) -> ServingConstants: ...  # noqa: D102 - see the class


def shipped(cases: Sequence[ServingCase]) -> ServingConstants:
    """No constant is fitted to rows: whatever is left out, they are the shipped ones."""
    del cases
    return SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStudy:
    """Predictions of all rows, one validation a kind of fold.

    Args:
        slopes: what the constants of folds were fitted with; None where nothing was.
    """

    validations: tuple[ServingValidation, ...]
    slopes: ServingSlopes | None = None

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
        folds: kinds of fold; ``none`` predicts with the shipped constants.
        workers: processes; `evaluate` must then be a function of a module.

    Raises:
        UsageError: unknown fold.
    """
    usable = [case for case in cases if isinstance(case, ServingCase)]
    constants = {fold: _held_out(usable, fold=fold, fit=fit) for fold in folds}
    tasks = {
        (id(case), one[fold_key(case, fold=fold)]): case
        for fold, one in constants.items()
        for case in usable
    }
    outcomes = predictions_of(
        [(case, key[1]) for key, case in tasks.items()],
        evaluate=evaluate,
        workers=workers,
        progress=progress,
    )
    known = dict(zip(tasks, outcomes, strict=True))

    def predict(case: ServingCase, *, fold: str) -> ServingPrediction:
        found = known[id(case), constants[fold][fold_key(case, fold=fold)]]
        if isinstance(found, ShardwrightError):
            raise found
        return found

    return ServingStudy(
        validations=tuple(
            judge_serving(cases, predict=partial(predict, fold=fold), fold=fold) for fold in folds
        )
    )


def _held_out(
    cases: Sequence[ServingCase], *, fold: str, fit: ServingFit
) -> dict[str, ServingConstants]:
    """Key of each fold -> constants fitted without its rows."""
    keys = dict.fromkeys(fold_key(case, fold=fold) for case in cases)
    if fold == "none":
        return dict.fromkeys(keys, SERVING)
    return {key: fit([case for case in cases if fold_key(case, fold=fold) != key]) for key in keys}
