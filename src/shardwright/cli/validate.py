"""``shardwright validate``: predicted against measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.cli.light_typer import Argument, Option
from shardwright.errors import UsageError
from shardwright.files.text import to_text
from shardwright.report.pictures.scatter_plot import scatter_svg
from shardwright.report.screens.accuracy_screen import judged_line, points_of, render_validation
from shardwright.report.serving.serving_accuracy_screen import render_serving, serving_judged_line
from shardwright.validation.errors.accuracy_page import accuracy_page
from shardwright.validation.errors.errors_by_fold import Study
from shardwright.validation.errors.prediction_errors import validation_json
from shardwright.validation.fits.held_out_folds import FOLDS, fold_text, read_folds
from shardwright.validation.serving.accuracy_page import serving_page
from shardwright.validation.serving.empty_table import COLUMNS as SERVING_COLUMNS
from shardwright.validation.serving.empty_table import serving_template
from shardwright.validation.serving.errors_by_fold import ServingStudy
from shardwright.validation.serving.fit_constants import ServingSlopes, read_slopes, slopes_text
from shardwright.validation.serving.measured_rows import is_serving_table
from shardwright.validation.serving.prediction_errors import FOLDS as SERVING_FOLDS
from shardwright.validation.serving.prediction_errors import require_serving_fold, serving_json
from shardwright.validation.serving.validate_serving import serving_accuracy, serving_facts
from shardwright.validation.tables.empty_table import COLUMNS
from shardwright.validation.tables.empty_table import template as template_text
from shardwright.validation.tables.table_facts import Facts
from shardwright.validation.validate_training import accuracy, facts_of

SERVING: Final = "serving"

Measurements = Annotated[
    list[Path] | None,
    Argument(
        metavar="MEASUREMENTS.csv...",
        help="CSV tables of measured runs, of training or of serving.",
    ),
]
Fold = Annotated[
    str,
    Option(
        "--fold",
        help=(
            "Hold out of the fit, for each row, the rows of the same model, source or accelerator"
            " (serving: model or version); or none."
        ),
    ),
]
FactsFolder = Annotated[
    Path | None,
    Option(
        "--facts",
        metavar="FOLDER",
        help="Folder of facts about the tables (.toml); by default the folder facts beside each.",
    ),
]
RuntimeName = Annotated[
    str,
    Option(
        "--runtime", help="Runtime, or serving engine, of rows whose table and facts name none."
    ),
]
Folds = Annotated[
    Path | None,
    Option(
        "--folds",
        metavar="FILE",
        help="Use the constants that --save-folds wrote instead of fitting.",
    ),
]
Template = Annotated[
    bool,
    Option(
        "--template",
        help=(
            "Print a table to fill in: the columns, and two rows; with --json what each means."
            " --template serving."
        ),
    ),
]
SaveFolds = Annotated[
    Path | None,
    Option("--save-folds", help="Write the constants fitted for each fold to this JSON file."),
]


def validate(
    paths: Measurements = None,
    *,
    fold: Fold = "none",
    facts: FactsFolder = None,
    runtime: RuntimeName = "",
    folds: Folds = None,
    save_folds: SaveFolds = None,
    template: Template = False,
    output: flags.Output = None,
    form: flags.AnswerForm,
) -> None:
    """Predict every measured run that is fully described, and show the prediction errors.

    -o writes JSON if the name ends in .json, and if it ends in .md a report over all folds, with a
    scatter plot (.svg) beside it.
    """
    if template:
        of_serving = [str(path) for path in paths or ()] == [SERVING]
        columns, text = (
            (SERVING_COLUMNS, serving_template()) if of_serving else (COLUMNS, template_text())
        )
        meanings = {name: meaning for name, meaning, _ in columns}
        screen.print_lines(form, document=meanings, text=text)
        return
    if not paths:
        raise UsageError(
            "there is no table",
            hint="shardwright validate runs.csv; --template prints one to fill in",
        )
    for path in (output, save_folds):
        screen.check_writable(path)
    paged = screen.form_of(output, forms=(".json", ".md"), what="a validation") == ".md"
    if folds is not None and save_folds is not None:
        raise UsageError(
            "--folds fits nothing that --save-folds could store", hint="give one of them"
        )
    kinds_of_tables = {is_serving_table(path) for path in paths}
    if len(kinds_of_tables) > 1:
        raise UsageError(
            "tables of training and of serving in one call", hint="validate each kind by itself"
        )
    if True in kinds_of_tables:
        served = _serving(
            paths,
            fold=fold,
            facts=facts,
            engine=runtime,
            known=read_slopes(folds) if folds is not None else None,
            fitted=save_folds is not None,
            output=output,
            paged=paged,
            form=form,
        )
        if save_folds is not None and served.slopes is not None:
            screen.save(save_folds, slopes_text(served.slopes))
        return
    kinds = FOLDS if save_folds is not None or paged else (fold,)
    slopes = read_folds(folds) if folds is not None else None
    described = facts_of(*paths, folder=facts)
    with screen.progress(form) as report:
        study = accuracy(
            *paths, facts=described, folds=kinds, known=slopes, runtime=runtime, progress=report
        )
    validation = study.validation(fold)
    if save_folds is not None:
        screen.save(save_folds, fold_text(study.folds))
    if output is not None and paged:
        _save_page(output, study, facts=described)
    elif output is not None:
        screen.save(output, to_text(validation_json(validation)))
    screen.print_answer(
        form,
        document=lambda: validation_json(validation),
        line=lambda: f"{judged_line(validation)}\n",
        picture=lambda: render_validation(validation),
    )


def _serving(
    paths: list[Path],
    *,
    fold: str,
    facts: Path | None,
    engine: str,
    known: ServingSlopes | None,
    fitted: bool,
    output: Path | None,
    paged: bool,
    form: flags.AnswerForm,
) -> ServingStudy:
    """`validate` of tables of served configurations. `known`: slopes of all folds; `fitted`: they
    are asked for; `paged`: a page is.
    """
    described = serving_facts(*paths, folder=facts)
    require_serving_fold(fold)
    kinds = SERVING_FOLDS if paged or fitted else (fold,)
    with screen.progress(form) as report:
        study = serving_accuracy(
            *paths, facts=described, folds=kinds, engine=engine, known=known, progress=report
        )
    validation = study.validation(fold)
    if output is not None:
        screen.save(
            output,
            serving_page(study, facts=described) if paged else to_text(serving_json(validation)),
        )
    screen.print_answer(
        form,
        document=lambda: serving_json(validation),
        line=lambda: f"{serving_judged_line(validation)}\n",
        picture=lambda: render_serving(validation),
    )
    return study


def _save_page(path: Path, study: Study, *, facts: Facts) -> None:
    picture = path.with_suffix(".svg")
    points = points_of(study.validation("model"))
    if points:
        screen.save(picture, scatter_svg(points, title="Step time, each model held out", unit="s"))
    screen.save(path, accuracy_page(study, facts=facts, picture=picture.name if points else ""))


main = verb(validate, name="validate")
