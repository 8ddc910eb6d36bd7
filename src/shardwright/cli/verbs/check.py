"""``shardwright check``: recompute a plan file and its certificate, and compare."""

from __future__ import annotations

from typing import Annotated

from rich.console import Group

from shardwright.api import prove_or_train_plan as run_plan
from shardwright.api import verify_plan_file_by_repetition as verify_stored_answers
from shardwright.cli.declare_engine_and_workers_options import EngineFlags
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.report.screens.verified_plan_file_screen import (
    checked_document,
    checked_line,
    proof_document,
    render_checked,
    render_proof,
)
from shardwright.search.parallel.engine_by_name import engine_of


def check(
    path: shared_options.PlanFile,
    *,
    execute: Annotated[
        bool,
        Option(
            "--execute",
            help=(
                "Also run a small model under the plan, and compare its loss and gradients with"
                " those of the unsplit model."
            ),
        ),
    ] = False,
    processes: EngineFlags,
    form: shared_options.AnswerForm,
) -> None:
    """Recompute every number of a plan file and the search behind it, and compare."""
    saved = read_saved(path)
    with (
        engine_of(processes.engine, workers=processes.workers) as engine,
        screen.progress(form) as report,
    ):
        recheck = verify_stored_answers.check_file(saved, engine=engine, progress=report)
        proof = run_plan.prove_execution(saved, progress=report) if execute else None
    screen.print_answer(
        form,
        document=lambda: (
            checked_document(recheck) | ({"execution": proof_document(proof)} if proof else {})
        ),
        line=lambda: f"{checked_line(recheck)}\n",
        picture=lambda: Group(render_checked(recheck), *([render_proof(proof)] if proof else [])),
    )


main = verb(check, name="check")
