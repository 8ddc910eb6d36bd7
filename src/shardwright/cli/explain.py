"""``shardwright explain``: a plan file's answer, with the source of each number."""

from __future__ import annotations

from importlib import import_module

from rich.console import Group

from shardwright.api import simulations
from shardwright.cli import fit, flags, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.files.plan_file import read_saved, require_whole
from shardwright.files.stored import StoredPlan, document_of
from shardwright.files.text import to_text
from shardwright.report.screens.joint_search_screen import render_certificate
from shardwright.report.screens.plan_screen import render_explained, render_explanation
from shardwright.search.simulation import strategy_text
from shardwright.search.summary import answer_line, misfit_text


def explain(
    path: flags.PlanFile,
    *,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Print the answer of a plan file in full, with every input of the prediction and where it
    comes from.
    """
    saved = read_saved(path)
    require_whole(saved, name=str(path))
    answer = saved.answer if isinstance(saved, StoredPlan) else None
    if as_json:
        screen.write(to_text(document_of(saved)))
    elif quiet:
        misfit = misfit_text(saved.prediction, classes=saved.classes)
        screen.write(
            answer_line(
                strategy_text(saved.simulation),
                step_time_s=saved.prediction.step_time_s,
                misfit=misfit,
            )
        )
    elif answer is not None:
        screen.show(render_explanation(answer))
    else:
        screen.show(
            render_explained(saved.simulation, picture=simulations.small_picture(saved.simulation))
        )
        if isinstance(saved, StoredPlan):
            screen.show(render_certificate(saved.certificate))
        screen.show(
            Group(*import_module("shardwright.cli.frameworks").frameworks_of(saved).sections)
        )
    raise typer.Exit(fit.exit_code(saved.prediction))


main = verb(explain, name="explain")
