"""``shardwright validate``: compare predictions with tables of measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import UsageError
from shardwright.files.canonical_json import to_text
from shardwright.report.pictures.prediction_scatter_plot import scatter_svg
from shardwright.report.screens.training_accuracy_screen import (
    judged_line,
    render_validation,
    scatter_points,
)
from shardwright.report.serving.serving_accuracy_screen import render_serving, serving_judged_line
from shardwright.validation.serving.serving_table_reader_with_prediction_and_fit import SERVED
from shardwright.validation.table_reader_and_fold_validation import Study
from shardwright.validation.tables.table_template import template_text
from shardwright.validation.training.training_table_reader_and_json import TRAINING
from shardwright.validation.validate_tables import accuracy, reader_of

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
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> None:
    """Predict every measured run that is fully described, and show the prediction errors.

    -o writes JSON if the name ends in .json, and if it ends in .md a report over all folds, with a
    scatter plot (.svg) beside it.
    """
    if template:
        reader = SERVED if [str(path) for path in paths or ()] == [SERVING] else TRAINING
        meanings = {name: meaning for name, meaning, _ in reader.template}
        screen.print_lines(form, document=meanings, text=template_text(reader.template))
        return
    if not paths:
        raise UsageError(
            "there is no table",
            hint="shardwright validate runs.csv; --template prints one to fill in",
        )
    for path in (output, save_folds):
        screen.check_writable(path)
    is_page = screen.output_ending(output, forms=(".json", ".md"), what="a validation") == ".md"
    if folds is not None and save_folds is not None:
        raise UsageError(
            "--folds fits nothing that --save-folds could store", hint="give one of them"
        )
    reader = reader_of(paths)
    reader.fold_named(fold)
    stored = reader.read_stored(folds) if folds is not None else None
    described = reader.facts(*paths, folder=facts)
    kinds = tuple(reader.folds) if save_folds is not None or is_page else (fold,)
    with screen.progress(form) as report:
        study = accuracy(
            reader,
            *paths,
            facts=described,
            folds=kinds,
            stored=stored,
            default=runtime,
            progress=report,
        )
    validation = study.validation(fold)
    if save_folds is not None:
        screen.save(save_folds, reader.stored_text(study.fitted))
    if output is not None and is_page:
        picture = _save_picture(output, study) if reader is TRAINING else ""
        screen.save(output, reader.page(study, facts=described, picture=picture))
    elif output is not None:
        screen.save(output, to_text(reader.to_json(validation)))
    line = judged_line if reader is TRAINING else serving_judged_line
    render = render_validation if reader is TRAINING else render_serving
    screen.print_answer(
        form,
        document=lambda: reader.to_json(validation),
        line=lambda: f"{line(validation)}\n",
        picture=lambda: render(validation),
    )


def _save_picture(page: Path, study: Study[Any, Any, Any]) -> str:
    """Write a scatter plot beside a report and return its file name; empty without step times."""
    points = scatter_points(study.validation("model"))
    if not points:
        return ""
    picture = page.with_suffix(".svg")
    screen.save(picture, scatter_svg(points, title="Step time, each model held out", unit="s"))
    return picture.name


main = verb(validate, name="validate")
