"""``shardwright check``: a plan file and its certificate, verified again."""

from __future__ import annotations

from typing import Annotated

from shardwright.api import checks, execution
from shardwright.cli import flags, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.files.plan_file import read_saved
from shardwright.files.text import to_text
from shardwright.report.screens.check_screen import (
    checked_document,
    checked_line,
    proof_document,
    render_checked,
    render_proof,
)
from shardwright.search.engine.choose import PROCESSES, engine_of


def check(
    path: flags.PlanFile,
    *,
    execute: Annotated[
        bool,
        typer.Option(
            "--execute",
            help=(
                "Also run a small model under the plan and compare its loss and gradients with"
                " those of the unsplit model."
            ),
        ),
    ] = False,
    engine: flags.EngineName = PROCESSES,
    workers: flags.Workers = 0,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Recompute every number of a plan file and the search behind it, and compare."""
    saved = read_saved(path)
    with (
        engine_of(engine, workers=workers) as working,
        screen.progress(quiet=quiet or as_json) as report,
    ):
        found = checks.check_file(saved, engine=working, progress=report)
        proof = execution.execution(saved, progress=report) if execute else None
    if as_json:
        screen.write(
            to_text(
                checked_document(found) | ({"execution": proof_document(proof)} if proof else {})
            )
        )
    elif quiet:
        screen.write(f"{checked_line(found)}\n")
    else:
        screen.show(render_checked(found))
        if proof:
            screen.show(render_proof(proof))


main = verb(check, name="check")
