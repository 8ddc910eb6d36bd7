"""Show the answer of a search of general plans: file, JSON document, one line or screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Group

from shardwright.api.general import GeneralAnswer, stored_general
from shardwright.api.joint import unsearched_of_joint
from shardwright.api.mixed import unsearched_of_mixed
from shardwright.api.problems import problem_of
from shardwright.cli import fit, interrupt, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.beside import Beside
from shardwright.cli.frameworks import frameworks_of
from shardwright.files.faces import filed
from shardwright.files.stored import document_of, file_text
from shardwright.files.text import to_text
from shardwright.report.screens.joint_search_screen import render_general
from shardwright.search.answer import Unsearched
from shardwright.search.joint.find import JointAnswer
from shardwright.search.limit import STOP
from shardwright.search.mixed.find_fastest import MixedAnswer
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation, strategy_text
from shardwright.search.summary import answer_line, misfit_text


def show(
    request: Request,
    answer: GeneralAnswer,
    *,
    cost: Callable[[Simulation], Beside] | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the answer to `output` and standard output, and end with its exit code."""
    stored = stored_general(answer)
    document = document_of(stored)
    left = _unsearched(answer) if (as_json or not quiet) and not STOP.is_set() else None
    if output is not None:
        screen.save(output, file_text(stored, output))
    beside = frameworks_of(stored) + (Beside() if cost is None else cost(stored.simulation))
    if as_json:
        searched = {} if left is None else {"unsearched": filed(left, names={})}
        screen.write(
            to_text(
                {**document, "search_time_s": answer.search_time_s, **searched, **beside.document}
            )
        )
    elif quiet:
        misfit = misfit_text(stored.prediction, classes=stored.classes)
        screen.write(
            answer_line(
                strategy_text(stored.simulation), step_time_s=answer.step_time_s, misfit=misfit
            )
        )
    else:
        model = problem_of(request).model
        shown = render_general(
            stored.simulation,
            stored.certificate,
            model=model,
            search_time_s=answer.search_time_s,
            left=left,
        )
        screen.show(Group(shown, *beside.sections))
    raise typer.Exit(interrupt.code() or fit.exit_code(stored.prediction))


def _unsearched(answer: GeneralAnswer) -> Unsearched | None:
    """The options that a search of a joint or mixed space left at one value; None for other
    searches.
    """
    if isinstance(answer, JointAnswer):
        return unsearched_of_joint(answer)
    return unsearched_of_mixed(answer) if isinstance(answer, MixedAnswer) else None
