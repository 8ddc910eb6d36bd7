"""``shardwright validate``: predicted against measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.calibrate.accuracy import accuracy
from shardwright.calibrate.accuracy_page import accuracy_page
from shardwright.calibrate.folds import FOLDS, fold_text
from shardwright.calibrate.study import Study
from shardwright.calibrate.validate import validation_json
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.errors import UsageError
from shardwright.report.accuracy import points_of, render_validation
from shardwright.report.json_face import to_text
from shardwright.report.scatter import scatter_svg

Measurements = Annotated[list[Path], typer.Argument(metavar="MEASUREMENTS.csv...", help="Tables of measured runs.")]
Fold = Annotated[
    str, typer.Option("--fold", help="What is left out of the fit that a row is predicted with: none, model, source, accelerator.")
]
SaveFolds = Annotated[Path | None, typer.Option("--save-folds", help="Write the constants fitted for each fold to this JSON file.")]


def validate(
    paths: Measurements,
    *,
    fold: Fold = "none",
    save_folds: SaveFolds = None,
    output: flags.Output = None,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Predict every measured run that is fully described, and show how far off the predictions are.

    The output file is JSON if its name ends in .json; if it ends in .md, it is the accuracy page over all folds, with a scatter plot (.svg)
    beside it.
    """
    for path in (output, save_folds):
        screen.check_writable(path)
    if output is not None and output.suffix not in (".json", ".md"):
        raise UsageError(f"cannot tell what to write to {output}", hint="end the name in .json or .md")
    folds = FOLDS if save_folds is not None or (output is not None and output.suffix == ".md") else (fold,)
    with screen.progress(quiet=quiet) as report:
        study = accuracy(*paths, folds=folds, progress=report)
    validation = study.validation(fold)
    if save_folds is not None:
        screen.save(save_folds, fold_text(study.folds))
    if output is not None and output.suffix == ".md":
        _save_page(output, study)
    elif output is not None:
        screen.save(output, to_text(validation_json(validation)))
    if as_json:
        screen.write(to_text(validation_json(validation)))
    elif not quiet:
        screen.show(render_validation(validation))


def _save_page(path: Path, study: Study) -> None:
    picture = path.with_suffix(".svg")
    points = points_of(study.validation("model"))
    if points:
        screen.save(picture, scatter_svg(points, title="Step time, each model held out", unit="s"))
    screen.save(path, accuracy_page(study, picture=picture.name if points else ""))


main = verb(validate, name="validate")
