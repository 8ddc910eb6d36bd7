"""All rows, all folds: the fit to everything, the constants of each fold, and what each predicts for the rows it has not seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from shardwright.calibrate.case import Case, Skip
from shardwright.calibrate.fit import Fit, Progress, fit
from shardwright.calibrate.folds import FOLDS, FoldConstants, leave_out
from shardwright.calibrate.measurements import Measurement
from shardwright.calibrate.predict import Evaluator, evaluator, predict_case
from shardwright.calibrate.rows import to_case
from shardwright.calibrate.validate import Validation, validate
from shardwright.errors import ShardwrightError
from shardwright.hardware.constants import SHIPPED
from shardwright.simulator.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Predictions of all rows in all folds.

    Args:
        fit: to all rows; None if nothing was fitted. folds: constants by kind of fold; of ``none``, those of the fit.
        validations: one a kind of fold.
    """

    fit: Fit | None
    folds: tuple[FoldConstants, ...]
    validations: tuple[Validation, ...]

    def validation(self, fold: str) -> Validation:
        """The validation of one kind of fold."""
        return next(v for v in self.validations if v.fold == fold)


def timed_cases(cases: Iterable[Case | Skip], *, evaluator: Evaluator) -> list[Case]:
    """The cases that a fit can use: they ran, a time was measured, and the strategy can be simulated."""
    usable = []
    for case in cases:
        if isinstance(case, Skip) or not case.ran or case.measured_s is None:
            continue
        try:
            evaluator.seconds([(case, SHIPPED)])
        except ShardwrightError:
            continue
        usable.append(case)
    return usable


def study(rows: Iterable[Measurement], *, folds: Sequence[str] = FOLDS, workers: int = 1, progress: Progress | None = None) -> Study:
    """Fit to all rows, fit without each fold, predict each fold with the constants that have not seen it.

    Args:
        folds: kinds of fold; ``none`` predicts with the shipped constants. workers: processes.
    """
    cases = [to_case(row) for row in rows]
    whole, fitted = None, []
    if any(fold != "none" for fold in folds):
        with evaluator(workers=workers) as simulate:
            usable = timed_cases(cases, evaluator=simulate)
            whole = fit(usable, evaluator=simulate, progress=progress)
            fitted = [FoldConstants(fold="none", values=(("", whole.constants),))]
            fitted += [leave_out(usable, whole, fold=fold, evaluator=simulate, progress=progress) for fold in folds if fold != "none"]
    return Study(fit=whole, folds=tuple(fitted), validations=_judged(cases, folds=folds, fitted=fitted, progress=progress))


def recall(rows: Iterable[Measurement], *, known: dict[str, FoldConstants], folds: Sequence[str] = FOLDS) -> Study:
    """As `study`, with constants that were fitted before."""
    cases = [to_case(row) for row in rows]
    fitted = [known[fold] for fold in folds if fold != "none"]
    return Study(fit=None, folds=tuple(fitted), validations=_judged(cases, folds=folds, fitted=fitted, progress=None))


def _judged(
    cases: Sequence[Case | Skip], *, folds: Sequence[str], fitted: Sequence[FoldConstants], progress: Progress | None
) -> tuple[Validation, ...]:
    constants = {group.fold: group for group in (*fitted, FoldConstants(fold="none"))}
    return tuple(validate(cases, predict=partial(_predict, group=constants[fold]), fold=fold, progress=progress) for fold in folds)


def _predict(case: Case, *, group: FoldConstants) -> Prediction:
    return predict_case(case, constants=group.of(case))
