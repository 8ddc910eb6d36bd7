"""``shardwright simulate``: predict the step time and memory of one strategy."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

from rich.console import Group, RenderableType

from shardwright.api import simulate_strategy_and_verify_stored as simulate_strategy
from shardwright.cli import prediction_exit_code_and_quiet_line as verdict
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.files.plan_and_simulation_file_contents import (
    file_text,
    prediction_document,
    stored_simulation,
)
from shardwright.report.screens.plan_screen import render_simulation
from shardwright.search.simulated_strategy import Simulation


def simulate(
    model: shared_options.Model,
    cluster: shared_options.Cluster,
    *,
    strategy: Annotated[
        str,
        Option(
            "--strategy",
            help=(
                'Grid such as "tp8 pp16 vpp8 dp128 zero1", file in plan notation, file written by'
                " -o, or - for standard input."
            ),
        ),
    ],
    job: shared_options.JobFlags,
    platform: shared_options.PlatformFlags,
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> int:
    """Predict the step time and memory of MODEL on CLUSTER under one strategy.

    The exit code is 6 if the strategy does not fit.
    """
    screen.check_writable(output)
    request = shared_options.read_request(model, cluster, job=job, platform=platform)
    text = screen.text_or_stdin(strategy)
    with screen.progress(form, doing=screen.SIMULATING):
        simulation = simulate_strategy.simulation(request, strategy=text)
    if output is not None:
        screen.save(output, file_text(stored_simulation(simulation), output))
    screen.print_answer(
        form,
        document=lambda: prediction_document(simulation.prediction),
        line=lambda: verdict.simulation_line(simulation),
        picture=lambda: _picture(simulation),
    )
    return verdict.exit_code(simulation.prediction)


def _picture(simulation: Simulation) -> RenderableType:
    """Screen of a simulation; for a general plan also the frameworks that can run it."""
    shown = render_simulation(simulation, picture=simulate_strategy.small_picture(simulation))
    if simulation.grid is not None:
        return shown
    frameworks = import_module("shardwright.cli.terminal.exportable_frameworks_section")
    return Group(shown, *frameworks.frameworks_section(stored_simulation(simulation)).sections)


main = verb(simulate, name="simulate")
