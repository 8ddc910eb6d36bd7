"""All rows, all folds: the fit to everything, the constants of each fold, and what each predicts
for the rows it has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from shardwright.errors import DataError, ShardwrightError
from shardwright.hardware.catalog.constants import SHIPPED, Constants
from shardwright.lazy_dataclass import dataclass
from shardwright.simulator.prediction import Prediction
from shardwright.validation.errors.error_limits import selected
from shardwright.validation.errors.most_alike_runtime import as_neighbour
from shardwright.validation.errors.prediction_errors import Validation, judge
from shardwright.validation.fits.fit_constants import Fit, Progress, fit
from shardwright.validation.fits.held_out_folds import CONSTANTS_OF, FOLDS, FoldConstants, leave_out
from shardwright.validation.fits.predict_run import Evaluator, Runs, evaluator, predict_case
from shardwright.validation.tables.measured_run import Case, Skip
from shardwright.validation.tables.row_conditions import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Predictions of all rows in all folds.

    Args:
        fit: to all rows; None if nothing was fitted.
        folds: constants by kind of fold; of ``none``, those of the fit.
        validations: one a kind of fold.
    """

    fit: Fit | None
    folds: tuple[FoldConstants, ...]
    validations: tuple[Validation, ...]

    def validation(self, fold: str) -> Validation:
        """The validation of one kind of fold."""
        return next(v for v in self.validations if v.fold == fold)


def timed_cases(
    cases: Iterable[Case | Skip], *, evaluator: Evaluator, unfitted: Sequence[Selector] = ()
) -> list[Case]:
    """The cases that a fit can use: they ran, a time was measured, and the strategy can be
    simulated; without the `unfitted`.
    """
    usable = []
    for case in cases:
        if (
            isinstance(case, Skip)
            or not case.ran
            or case.measured_s is None
            or selected(case.measurement, *unfitted)
        ):
            continue
        try:
            evaluator.seconds([(case, SHIPPED)])
        except ShardwrightError:
            continue
        usable.append(case)
    return usable


def study(
    cases: Sequence[Case | Skip],
    *,
    folds: Sequence[str] = FOLDS,
    known: Mapping[str, FoldConstants] | None = None,
    unfitted: Sequence[Selector] = (),
    workers: int = 1,
    progress: Progress | None = None,
) -> Study:
    """Fit to all rows but the `unfitted`, fit without each fold, predict each fold with the
    constants that have not seen it.

    Args:
        cases: what `rows.to_case` made of the rows.
        folds: kinds of fold; ``none`` predicts with the shipped constants.
        known: constants of each kind of fold that were fitted before; nothing is fitted then.
        workers: processes.

    Raises:
        DataError: a kind of fold is not in `known`.
    """
    held = [fold for fold in folds if fold != "none" and fold not in CONSTANTS_OF]
    held += [
        wanted for fold in folds if (wanted := CONSTANTS_OF.get(fold, "")) and wanted not in held
    ]
    whole, fitted = None, []
    if known is not None:
        missing = next((fold for fold in held if fold not in known), "")
        if missing:
            raise DataError(
                f"no constants of {missing} folds were stored",
                hint="validate --save-folds stores all kinds",
            )
        fitted = [known[fold] for fold in held]
    elif held:
        with evaluator(workers=workers) as simulate:
            usable = timed_cases(cases, evaluator=simulate, unfitted=unfitted)
            whole = fit(usable, evaluator=simulate, progress=progress)
            fitted = [FoldConstants(fold="none", values=(("", whole.constants),))]
            fitted += [
                leave_out(usable, whole, fold=fold, evaluator=simulate, progress=progress)
                for fold in held
            ]
    constants = {group.fold: group for group in (*fitted, FoldConstants(fold="none"))}
    constants |= {fold: constants[CONSTANTS_OF[fold]] for fold in folds if fold in CONSTANTS_OF}
    predictions = Predictions([replace(constants[fold], fold=fold) for fold in folds])
    judged = tuple(
        judge(cases, predict=partial(predictions.of, fold=fold), fold=fold, progress=progress)
        for fold in folds
    )
    return Study(fit=whole, folds=tuple(fitted), validations=judged)


class Predictions:
    """Predictions of cases in kinds of folds: a run once with each of the constants, all of a case
    together, as its plan is laid once.
    """

    def __init__(self, groups: Sequence[FoldConstants]) -> None:
        self._groups = {group.fold: group for group in groups}
        self._runs = Runs()
        self._known: dict[tuple[int, Constants], Prediction | ShardwrightError] = {}

    def of(self, case: Case, *, fold: str) -> Prediction:
        """The prediction in one fold. Raises what `predict_case` does."""
        case = as_neighbour(case) if fold == "other base" else case
        run, wanted = self._runs.number(case), self._groups[fold].of(case)
        if (run, wanted) not in self._known:
            for constants in {group.of(case): None for group in self._groups.values()}:
                if (run, constants) not in self._known:
                    self._known[run, constants] = self._made(case, constants)
        found = self._known[run, wanted]
        if isinstance(found, ShardwrightError):
            raise found
        return found

    @staticmethod
    def _made(case: Case, constants: Constants) -> Prediction | ShardwrightError:
        try:
            return predict_case(case, constants=constants)
        except ShardwrightError as error:
            return error
