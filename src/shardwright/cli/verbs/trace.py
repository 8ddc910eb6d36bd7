"""``shardwright trace``: show how each device spends a step, simulated and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from shardwright.api import trace_simulated_step as trace_step
from shardwright.api.plan_and_problem_from_file import stored_plan
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import UsageError
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.files.trace_file import read_measured, trace_text
from shardwright.program.step_trace import StepTrace
from shardwright.report.screens.step_trace_screen import (
    comparison_document,
    render_comparison,
    render_trace,
    trace_document,
)
from shardwright.search.answer_summary_text import answer_line

MOST_DEVICES: Final = 4096
"""Most devices of a trace; each is a process in it."""


def trace(
    path: shared_options.PlanFile,
    *,
    devices: Annotated[
        str,
        Option(
            "--devices", metavar="0,8-15", help="Devices to trace; by default one of each class."
        ),
    ] = "",
    compare: Annotated[
        Path | None,
        Option(
            "--compare", metavar="TRACE", help="Measured trace of the same plan, to compare with."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Write the trace to this file, for ui.perfetto.dev."),
    ] = None,
    form: shared_options.AnswerForm,
) -> None:
    """Simulate one step of a plan file and show how each device spends the step.

    With --compare, next to a measured step.
    """
    screen.check_writable(output)
    chosen = read_devices(devices)
    if chosen and compare is not None:
        raise UsageError(
            "--devices and --compare do not go together",
            hint="a comparison has the devices that were measured",
        )
    stored = stored_plan(read_saved(path))
    if compare is not None:
        comparison = trace_step.compare_traces(stored, read_measured(compare))
        traces: tuple[StepTrace, ...] = comparison.simulated, comparison.measured
        document, shown = comparison_document(comparison), render_comparison(comparison)
    else:
        simulated = trace_step.trace(stored, devices=chosen)
        traces = (simulated,)
        document, shown = trace_document(simulated), render_trace(simulated)
    if output is not None:
        screen.save(output, trace_text(*traces))
    screen.print_answer(
        form,
        document=lambda: document,
        line=lambda: "".join(
            answer_line(step.origin.value, step_time_s=step.step_s) for step in traces
        ),
        picture=lambda: shown,
    )


def read_devices(text: str) -> tuple[int, ...]:
    """Parse --devices: ``"0,8-15"`` as sorted device numbers.

    Raises:
        UsageError: the text is not a list of devices, or has more than `MOST_DEVICES`.
    """
    devices: set[int] = set()
    for word in text.split(",") if text else ():
        first, dash, last = (part.strip() for part in word.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(word) > 20:
            raise UsageError(
                f"--devices {text[:40]!r} is no list of devices", hint="such as 0,8-15"
            )
        low, high = int(first), int(last or first)
        if not 0 <= high - low < MOST_DEVICES:
            raise UsageError(
                f"--devices {word[:40]} has {max(high - low + 1, 0):,} devices",
                hint=f"1 to {MOST_DEVICES}",
            )
        devices |= set(range(low, high + 1))
    return tuple(sorted(devices))


main = verb(trace, name="trace")
