"""``shardwright compare``: predict strategies or clusters side by side."""

from __future__ import annotations

from typing import Annotated

from shardwright.api import compare_strategies_and_clusters as compare_strategies
from shardwright.cli import prediction_exit_code_and_quiet_line as verdict
from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.report.screens.strategy_comparison_screen import (
    by_step_time,
    comparison_document,
    render_comparison,
)


def compare(
    model: shared_options.Model,
    clusters: Annotated[
        list[str],
        Argument(metavar="CLUSTER...", help="One or more clusters, as `plan` takes them."),
    ],
    *,
    strategy: Annotated[
        list[str] | None,
        Option(
            "--strategy",
            help=(
                'Strategy such as "tp8 dp16"; repeatable. Without any, the best plan of each'
                " cluster is searched."
            ),
        ),
    ] = None,
    job: shared_options.JobFlags,
    platform: shared_options.PlatformFlags,
    pins: shared_options.PinFlags,
    training_cost: shared_options.CostFlags,
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> int:
    """Predict strategies of MODEL, or the best plan of each CLUSTER, side by side with costs.

    The exit code is 6 if none fits.
    """
    screen.check_writable(output)
    texts = [screen.text_or_stdin(text) for text in strategy or ()]
    request = shared_options.read_request(model, clusters[0], job=job, platform=platform, pins=pins)
    with screen.progress(form, doing=screen.SIMULATING) as report:
        rows = compare_strategies.compare(
            request,
            clusters=clusters,
            strategies=texts,
            tokens=parse_memory_and_cost.read_tokens(training_cost.tokens),
            prices=parse_memory_and_cost.read_prices(training_cost.price),
            progress=report,
        )
    screen.print_answer(
        form,
        document=lambda: comparison_document(rows),
        line=lambda: verdict.simulation_line(by_step_time(rows)[0].simulation),
        picture=lambda: render_comparison(rows),
        output=output,
    )
    return verdict.exit_code(*(row.simulation.prediction for row in rows))


main = verb(compare, name="compare")
