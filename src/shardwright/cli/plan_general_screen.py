"""Print the answer of a search of general plans: file, JSON document, one line or screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Group

from shardwright.api.general import stored_general
from shardwright.api.general_searches import GeneralSearch
from shardwright.api.problems import problem_of
from shardwright.cli import interrupt, screen, verdict
from shardwright.cli.beside import Beside
from shardwright.cli.flags import AnswerForm
from shardwright.cli.frameworks import frameworks_of
from shardwright.files.faces import filed
from shardwright.files.stored import document_of, file_text
from shardwright.report.screens.joint_search_screen import render_general
from shardwright.search.answer import GeneralAnswer
from shardwright.search.limit import STOP
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation


def print_general(
    request: Request,
    answer: GeneralAnswer[Any],
    search: GeneralSearch,
    *,
    cost: Callable[[Simulation], Beside] | None,
    output: Path | None,
    form: AnswerForm,
) -> int:
    """Write the answer to `output` and standard output; returns the exit code."""
    stored = stored_general(answer)
    is_line = form.quiet and not form.as_json
    left = None if is_line or STOP.is_set() else search.unsearched_options(answer)
    if output is not None:
        screen.save(output, file_text(stored, output))
    beside = frameworks_of(stored) + (Beside() if cost is None else cost(stored.simulation))
    searched = {} if left is None else {"unsearched": filed(left, names={})}
    screen.print_answer(
        form,
        document=lambda: {
            **document_of(stored),
            "search_time_s": answer.search_time_s,
            **searched,
            **beside.document,
        },
        line=lambda: verdict.simulation_line(stored.simulation),
        picture=lambda: Group(
            render_general(
                stored.simulation,
                stored.certificate,
                model=problem_of(request).model,
                search_time_s=answer.search_time_s,
                left=left,
            ),
            *beside.sections,
        ),
    )
    return interrupt.code() or verdict.exit_code(stored.prediction)
