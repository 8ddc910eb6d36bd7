"""Print and save the answer of ``shardwright plan``.

A run with --quiet alone does not import this module.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Group

from shardwright.api.searches import gain_of_unsearched_options as unsearched_options
from shardwright.cli.parsing.shared_options import AnswerForm
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.cli.terminal.additional_sections_and_json_fields_record import ExtraAnswers
from shardwright.files.canonical_json import to_text
from shardwright.files.dataclass_to_json import to_json_value
from shardwright.files.plan_and_simulation_file_contents import (
    file_text,
    plan_document,
    stored_answer,
)
from shardwright.report.screens.plan_screen import render_answer
from shardwright.search.search_answer import Answer
from shardwright.search.search_time_limit import STOP
from shardwright.search.simulated_strategy import Simulation


def show(
    answer: Answer,
    *,
    cost: Callable[[Simulation], ExtraAnswers] | None,
    output: Path | None,
    form: AnswerForm,
) -> None:
    """Save a grid search's answer to `output`, if given; print JSON or a screen unless --quiet.

    Args:
        cost: makes additional sections of the answer; None = none.
    """
    stored = stored_answer(answer)
    left_axes = (
        None
        if (form.quiet and not form.as_json) or STOP.is_set()
        else unsearched_options.unsearched_of(answer)
    )
    if output is not None:
        screen.save(output, file_text(stored, output))
    beside = ExtraAnswers() if cost is None else cost(stored.simulation)
    if form.as_json:
        searched = {
            "search_time_s": answer.search_time_s,
            "unsearched": to_json_value(left_axes, names={}),
        }
        screen.write(to_text({**plan_document(answer), **searched, **beside.document}))
    elif not form.quiet:
        screen.show(Group(render_answer(answer, left=left_axes), *beside.sections))
