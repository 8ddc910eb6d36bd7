"""Print the answer of a search over general plans: file, JSON document, one line or screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Group

from shardwright.api.request_to_problem import problem_of
from shardwright.api.searches.general_plan_file_content_and_verification import stored_general
from shardwright.api.table_of_general_plan_searches import GeneralSearch
from shardwright.cli import prediction_exit_code_and_quiet_line as verdict
from shardwright.cli.parsing.shared_options import AnswerForm
from shardwright.cli.terminal import keyboard_interrupt
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.cli.terminal.additional_sections_and_json_fields_record import ExtraAnswers
from shardwright.cli.terminal.exportable_frameworks_section import frameworks_section
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.plan_and_simulation_file_contents import document_of, file_text
from shardwright.report.screens.general_search_screen import render_general
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP
from shardwright.search.simulated_strategy import Simulation


def print_general(
    request: Request,
    answer: GeneralAnswer[Any],
    search: GeneralSearch,
    *,
    cost: Callable[[Simulation], ExtraAnswers] | None,
    output: Path | None,
    form: AnswerForm,
) -> int:
    """Write a general search's answer to `output`, print it; exit code 0, 130 (stop) or no fit."""
    stored = stored_general(answer)
    is_line = form.quiet and not form.as_json
    unsearched = None if is_line or STOP.is_set() else search.unsearched_options(answer)
    if output is not None:
        screen.save(output, file_text(stored, output))
    beside = frameworks_section(stored) + (
        ExtraAnswers() if cost is None else cost(stored.simulation)
    )
    searched = {} if unsearched is None else {"unsearched": to_json_value(unsearched, names={})}
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
                left=unsearched,
            ),
            *beside.sections,
        ),
    )
    return keyboard_interrupt.exit_code_of_answer() or verdict.exit_code(stored.prediction)
