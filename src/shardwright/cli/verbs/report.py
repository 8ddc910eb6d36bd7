"""``shardwright report``: write an answer's file as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from shardwright.api.report.report_content_of_answer_file import (
    add_what_if,
    make_report,
    report_document,
)
from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import keyboard_interrupt
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import UsageError
from shardwright.report.page.report_page import report_html
from shardwright.report.page.terminal_screen_of_report_views import render_report, report_line
from shardwright.search.parallel.engine_by_name import engine_of

WITH_WHAT_IF: Final = ("plan", "simulation")
"""Kinds of files with a request whose changes can be searched."""


def report(
    path: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help=(
                "File that `plan`, `simulate`, `compare`, `advise` or `serve-simulate` wrote with"
                " -o."
            ),
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        Option("--output", "-o", metavar="FILE", help="Page to write: .html."),
    ] = None,
    what_if: Annotated[
        bool,
        Option(
            "--what-if",
            help=(
                "Also search the best plans with other batches, lengths, numbers of devices,"
                " bandwidths, memory sizes and prices: about fifty searches."
            ),
        ),
    ] = False,
    training_cost: shared_options.CostFlags,
    form: shared_options.AnswerForm,
) -> int:
    """Write the answer in FILE as one HTML page, which needs no network and no JavaScript.

    Without -o the contents are listed on the screen; with --json they are printed. Ctrl-C ends the
    searches of --what-if and keeps the plans that were found.
    """
    screen.check_writable(output)
    screen.output_ending(output, forms=(".html",), what="a report")
    prices = parse_memory_and_cost.read_prices(training_cost.price)
    with screen.progress(form, doing=screen.SIMULATING) as progress:
        contents = make_report(
            path,
            tokens=parse_memory_and_cost.read_tokens(training_cost.tokens),
            prices=prices,
            progress=progress,
        )
    if what_if:
        if contents.kind not in WITH_WHAT_IF:
            raise UsageError(
                f"--what-if searches the plans of a request, and a {contents.kind} file has none",
                hint="drop it, or give a file of `shardwright plan -o`",
            )
        with (
            keyboard_interrupt.stop_search_on_interrupt(),
            screen.progress(form) as progress,
            engine_of() as engine,
        ):
            contents = add_what_if(contents, path, prices=prices, engine=engine, progress=progress)
    document = report_document(contents)
    if output is not None:
        screen.save(output, report_html(document))
    screen.print_answer(
        form,
        document=lambda: document,
        line=lambda: report_line(document),
        picture=lambda: render_report(document) if output is None else None,
    )
    return keyboard_interrupt.exit_code_of_answer()


main = verb(report, name="report")
