"""``shardwright validate``: predicted against measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright import api
from shardwright.calibrate.accuracy_page import accuracy_page
from shardwright.calibrate.validate import Validation, validation_json
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.errors import UsageError
from shardwright.report.accuracy import render_validation
from shardwright.report.json_face import to_text

Measurements = Annotated[list[Path], typer.Argument(metavar="MEASUREMENTS.csv...", help="Tables of measured runs.")]


def validate(
    paths: Measurements,
    *,
    fold: Annotated[str, typer.Option("--fold", help="Label rows by none, laboratory or accelerator.")] = "none",
    output: flags.Output = None,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Predict every measured run that is fully described, and show how far off the predictions are.

    The output file is JSON if its name ends in .json, and the accuracy page if it ends in .md.
    """
    screen.check_writable(output)
    if output is not None and output.suffix not in (".json", ".md"):
        raise UsageError(f"cannot tell what to write to {output}", hint="end the name in .json or .md")
    validation = api.validate(*paths, fold=fold)
    if output is not None:
        screen.save(output, _text(validation, suffix=output.suffix))
    if as_json:
        screen.write(_text(validation, suffix=".json"))
    elif not quiet:
        screen.show(render_validation(validation))


def _text(validation: Validation, *, suffix: str) -> str:
    return accuracy_page(validation) if suffix == ".md" else to_text(validation_json(validation))


main = verb(validate, name="validate")
