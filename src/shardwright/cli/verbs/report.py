"""``shardwright report``: write an answer's file as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api.report.make_report import make_report, report_document
from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.parsing.option_declarations import Option
from shardwright.cli.parsing.verb_from_function import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.report.page.report_page import report_html
from shardwright.report.screens.report_summary_screen import render_report, report_line


def report(
    path: shared_options.PlanFile,
    *,
    output: Annotated[
        Path | None,
        Option("--output", "-o", metavar="FILE", help="Page to write: .html."),
    ] = None,
    training_cost: shared_options.CostFlags,
    form: shared_options.AnswerForm,
) -> None:
    """Write the answer of PLAN as one HTML page, which needs no network and no JavaScript.

    Without -o the contents are listed on the screen; with --json they are printed.
    """
    screen.check_writable(output)
    screen.output_ending(output, forms=(".html",), what="a report")
    with screen.progress(form, doing=screen.SIMULATING) as progress:
        contents = make_report(
            path,
            tokens=parse_memory_and_cost.read_tokens(training_cost.tokens),
            prices=parse_memory_and_cost.read_prices(training_cost.price),
            progress=progress,
        )
    document = report_document(contents)
    if output is not None:
        screen.save(output, report_html(document))
    screen.print_answer(
        form,
        document=lambda: document,
        line=lambda: report_line(document),
        picture=lambda: render_report(document) if output is None else None,
    )


main = verb(report, name="report")
