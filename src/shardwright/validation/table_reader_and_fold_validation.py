"""Interface of a table reader (training or serving), and validation in several kinds of fold."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Generic

from shardwright.errors import UsageError, nearest
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import (
    SHIPPED_FOLD,
    ConstantsT,
    Fold,
    PredictionT,
    Progress,
    RunT,
)
from shardwright.validation.errors.prediction_errors import Validation, judge
from shardwright.validation.fits.cached_parallel_predictions import predictor
from shardwright.validation.tables.csv_rows import TableForm, read_table
from shardwright.validation.tables.skipped_rows import SkippedRow
from shardwright.validation.tables.table_facts_from_toml import TableFacts, facts_of
from shardwright.validation.tables.table_template import TemplateColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted(Generic[ConstantsT]):
    """Constants fitted to rows of tables: for each kind of fold, and each fold left out.

    Args:
        constants: kind of fold -> key of a fold -> constants fitted without it.
        report: intervals or slopes of the fit to all rows, for the page; None without them.
    """

    constants: Mapping[str, Mapping[str, ConstantsT]] = field(default_factory=dict)
    report: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Generic[RunT, PredictionT, ConstantsT]):
    """Predictions of all rows of tables in several kinds of fold, and the constants behind them."""

    fitted: Fitted[ConstantsT]
    validations: tuple[Validation[RunT, PredictionT], ...]

    def validation(self, fold: str) -> Validation[RunT, PredictionT]:
        """Compared rows, failures and skipped rows in the kind of fold with this name."""
        return next(found for found in self.validations if found.fold == fold)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReader(Generic[RunT, PredictionT, ConstantsT]):
    """The parts in which tables of training and tables of serving differ.

    Columns, conversion of rows, prediction, fit and page.

    Args:
        form: columns of the table.
        template: columns of the empty table that people fill in.
        folds: kinds of fold by name; ``none`` is the first.
        of: end of the sentence about an unknown kind of fold.
        predict: prediction of a run under constants.
        identity: key of a run; runs with equal keys have one prediction.
        to_run: (row, facts=, default=) -> the run of a row, or the skipped row; `default` is the
            runtime or engine of rows for which neither they nor the facts name one.
        fit: (runs, folds=, facts=, stored=, workers=, progress=) -> constants fitted without each
            fold of the kinds `folds`; with `stored`, from `read_stored`, nothing is fitted anew.
        require_default: raises where the runtime of the command line is unknown.
        read_stored: content of a file with the text of `stored_text`.
        to_json: a validation as plain values.
        page: accuracy page in Markdown; `picture` is the name of a scatter plot.
    """

    form: TableForm[Any]
    template: tuple[TemplateColumn, ...]
    folds: Mapping[str, Fold[RunT]]
    of: str = ""
    shipped: ConstantsT
    to_run: Callable[..., RunT | SkippedRow]
    require_default: Callable[[str], Any] = str
    predict: Callable[[RunT, ConstantsT], PredictionT]
    identity: Callable[[RunT], Hashable] = id
    fit: Callable[..., Fitted[ConstantsT]]
    read_stored: Callable[[Path], Any]
    stored_text: Callable[[Fitted[ConstantsT]], str]
    to_json: Callable[[Validation[RunT, PredictionT]], dict[str, Any]]
    page: Callable[..., str]

    def fold_named(self, name: str) -> Fold[RunT]:
        """Kind of fold with this name; UsageError if there is none.

        Raises:
            UsageError: no kind of fold has that name.
        """
        if name not in self.folds:
            hint = nearest(name[:40], self.folds)
            raise UsageError(f"unknown fold {name[:40]!r}{self.of}", hint=hint)
        return self.folds[name]

    def facts(self, *paths: Path | str, folder: Path | str | None = None) -> TableFacts:
        """Read the facts in `folder`, or else in the folders ``facts`` beside the tables.

        Raises:
            DataError: a file of facts cannot be read.
        """
        return facts_of(
            map(Path, paths),
            form=self.form,
            folder=None if folder is None else Path(folder),
        )

    def runs(
        self, *paths: Path | str, facts: TableFacts, default: str = ""
    ) -> tuple[RunT | SkippedRow, ...]:
        """Read all tables; convert each row to a run to predict or to a skipped row.

        Raises:
            DataError: a table cannot be read. RuntimeModelError: unknown `default`.
        """
        if default:
            self.require_default(default)
        return tuple(
            self.to_run(row, facts=facts, default=default)
            for path in paths
            for row in read_table(path, form=self.form)
        )

    def study(
        self,
        rows: Sequence[RunT | SkippedRow],
        *,
        facts: TableFacts,
        folds: Sequence[str] = (),
        stored: Any = None,
        workers: int = 1,
        progress: Progress | None = None,
    ) -> Study[RunT, PredictionT, ConstantsT]:
        """Fit constants and predict all runs, in the named kinds of fold (all kinds by default).

        Args:
            stored: constants or slopes that were fitted before, from `read_stored`.
            workers: number of processes.

        Raises:
            UsageError: unknown kind of fold. DataError: `stored` lacks one.
        """
        kinds = [self.fold_named(name) for name in folds or self.folds]
        runs = [row for row in rows if not isinstance(row, SkippedRow)]
        fitted = self.fit(
            runs,
            folds=[fold.name for fold in kinds if fold.name != SHIPPED_FOLD],
            facts=facts,
            stored=stored,
            workers=workers,
            progress=progress,
        )

        def task(run: RunT, *, fold: Fold[RunT]) -> tuple[RunT, ConstantsT]:
            """(run as the fold predicts it, constants fitted without its fold, or shipped ones)."""
            predicted_run = fold.predicted_as(run) if fold.predicted_as else run
            if fold.name == SHIPPED_FOLD:
                return predicted_run, self.shipped
            held_out = fitted.constants[fold.fitted_as or fold.name]
            return predicted_run, held_out.get(fold.key(run), self.shipped)

        with predictor(self.predict, workers=workers, identity=self.identity) as predictions:
            # All constants of a run in a row: its plan is laid out once.
            tasks = {(id(run), fold.name): task(run, fold=fold) for run in runs for fold in kinds}
            predictions.outcomes([*tasks.values()], progress=progress)

            def predict(run: RunT, *, fold: str) -> PredictionT:
                """Cached prediction of a run in one kind of fold."""
                (prediction,) = predictions.results([tasks[id(run), fold]])
                return prediction

            validations = tuple(
                judge(rows, predict=partial(predict, fold=fold.name), key=fold.key, fold=fold.name)
                for fold in kinds
            )
        return Study(fitted=fitted, validations=validations)
