"""``shardwright advise``: time and memory of an existing launch, and changes to make it faster."""

from __future__ import annotations

from typing import Annotated

from shardwright.api.launches import launch_advice
from shardwright.api.request_to_problem import load_cluster
from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.parse_token_and_sequence_counts import read_batch, read_count
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import UsageError
from shardwright.frameworks.registry import READERS
from shardwright.report.screens.launch_advice_screen import (
    advice_document,
    advice_line,
    render_advice,
)
from shardwright.search.search_request import Request


def advise(
    files: Annotated[
        list[str],
        Argument(
            metavar="FILE... MODEL CLUSTER",
            help=(
                "Launch scripts and configuration files, then the model and the cluster as `plan`"
                " takes them."
            ),
        ),
    ],
    *,
    framework: Annotated[
        str,
        Option(
            "--from",
            metavar="FRAMEWORK",
            help=f"Of the files: {', '.join(READERS)}.",
            show_default="the one they are of",
        ),
    ] = "",
    values: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Value of a variable of a script. Repeatable."),
    ] = None,
    seq_len: Annotated[
        str,
        Option("--seq-len", metavar="N", help="Tokens of a sample, where the files do not say it."),
    ] = "",
    global_batch: shared_options.GlobalBatch = "",
    precision: shared_options.Precision = "",
    platform: shared_options.PlatformFlags,
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> None:
    """Predict the time and memory of a launch, and list the changes that would gain most.

    The launch trains MODEL on CLUSTER. The answer also names the limits of the step.
    """
    screen.check_writable(output)
    if len(files) < 3:
        raise UsageError(
            "files of a launch, then MODEL and CLUSTER",
            hint="shardwright advise pretrain.sh llama-3.1-70b h100-sxm:1024",
        )
    *paths, model, cluster = files
    length = read_count(seq_len, flag="--seq-len") if seq_len else 0
    reserve_bytes, reserve_fraction = parse_memory_and_cost.read_reserve(platform.memory_reserve)
    request = Request(
        model=model,
        cluster=cluster,
        seq_len=length,
        global_batch=read_batch(global_batch, "", seq_len=length or 1) if global_batch else 0,
        runtime=platform.runtime,
        precision=precision,
        profile=platform.profile,
        reserve_bytes=reserve_bytes,
        reserve_fraction=reserve_fraction,
    )
    variables = dict(_name_and_value(pair) for pair in values or [])
    launch, request = launch_advice.read_request(
        paths, request, cluster=load_cluster(cluster), framework=framework, given=variables
    )
    with screen.progress(form) as report:
        advice = launch_advice.advise(launch, request, progress=report)
    screen.print_answer(
        form,
        document=lambda: advice_document(launch, advice),
        line=lambda: advice_line(launch, advice),
        picture=lambda: render_advice(launch, advice),
        output=output,
    )


def _name_and_value(pair: str) -> tuple[str, str]:
    """Split the ``NAME=VALUE`` of --set into name and value."""
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise UsageError(f"--set {pair[:40]}", hint="--set NAME=VALUE")
    return name, value


main = verb(advise, name="advise")
