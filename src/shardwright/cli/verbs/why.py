"""``shardwright why``: compare a plan with another strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api import explain_why_not_other_strategy as explain_choice
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.files.read_plan_and_simulation_files import (
    parse_saved,
    read_saved,
    require_breakdown_sum,
)
from shardwright.report.screens.plan_against_strategy_screen import (
    render_why,
    why_document,
    why_line,
)


def why(
    source: Annotated[
        str,
        Argument(
            metavar="PLAN",
            help="File written by `plan -o` or `simulate -o`, or - for standard input.",
        ),
    ],
    strategy: Annotated[
        str,
        Argument(
            metavar="STRATEGY",
            help=(
                'Change of the plan ("zero3", "tp4 dp16", "fsdp", "no recompute", "more tp"), or a'
                " strategy as `simulate` takes it."
            ),
        ),
    ],
    *,
    form: shared_options.AnswerForm,
) -> None:
    """Compare STRATEGY with PLAN: gains and losses, broken rules, and its fate in the search."""
    saved = (
        parse_saved(screen.text_or_stdin(source), name="standard input")
        if source == "-"
        else read_saved(Path(source))
    )
    require_breakdown_sum(saved, name=source)
    with screen.progress(form, doing=screen.SIMULATING):
        comparison = explain_choice.why(saved, strategy)
    screen.print_answer(
        form,
        document=lambda: why_document(comparison),
        line=lambda: why_line(comparison),
        picture=lambda: render_why(comparison),
    )


main = verb(why, name="why")
