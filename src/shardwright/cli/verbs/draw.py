"""``shardwright draw``: draw a plan as text or SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api import compute_plan_picture as draw_plan
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.report.pictures.plan_picture_to_json import picture_document
from shardwright.report.pictures.plan_svg import plan_svg
from shardwright.report.pictures.plan_text import PlanText


def draw(
    source: Annotated[
        str,
        Argument(
            metavar="PLAN", help='Plan file, file in plan notation, or grid such as "tp8 pp4".'
        ),
    ],
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help=(
                "Catalog name, or path of a Hugging Face config.json; not for a plan file, which"
                " has its own."
            ),
        ),
    ] = "",
    *,
    devices: Annotated[
        int,
        Option(
            "--devices",
            min=0,
            help=(
                "Number of devices of a grid; dp takes what the other degrees leave. 0 means their"
                " product."
            ),
        ),
    ] = 0,
    global_batch: Annotated[
        int,
        Option(
            "--global-batch",
            min=0,
            help=(
                "Global batch size of a grid, in sequences; 0 means one microbatch per pipeline"
                " stage."
            ),
        ),
    ] = 0,
    cluster: Annotated[
        str,
        Option(
            "--cluster",
            help=(
                "Simulate the step of a grid or a notation on this cluster, and draw it; not for a"
                " plan file, which has its own."
            ),
        ),
    ] = "",
    seq_len: Annotated[
        int,
        Option("--seq-len", min=0, help="Sequence length in tokens, with --cluster: 8192."),
    ] = 0,
    runtime: Annotated[
        str,
        Option(
            "--runtime",
            help="Training framework and version; `shardwright catalog runtimes` lists them.",
            show_default="the usual one of the devices",
        ),
    ] = "",
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Picture to write: .svg.")
    ] = None,
    form: shared_options.AnswerForm,
) -> None:
    """Draw PLAN: devices x layers, the split tree of each stage, schedules and the simulated step.

    The simulated step is drawn for a plan file or with --cluster: its timeline, memory against
    capacity, nodes, and bytes sent over each tier. With -o FILE the picture is SVG, else it is on
    the screen.
    """
    screen.check_writable(output)
    screen.output_ending(output, forms=(".svg",), what="a picture")
    with screen.progress(form, doing=screen.SIMULATING):
        picture = draw_plan.draw(
            source,
            model=model,
            devices=devices,
            global_batch=global_batch,
            cluster=cluster,
            seq_len=seq_len,
            runtime=runtime,
        )
    if output is not None:
        screen.save(output, plan_svg(picture))
    screen.print_answer(
        form,
        document=lambda: picture_document(picture),
        line=lambda: (
            f"{len(picture.rows)} rows, {len(picture.columns)} columns, {len(picture.cells)}"
            " cells\n"
        ),
        picture=lambda: PlanText(picture=picture) if output is None else None,
    )


main = verb(draw, name="draw")
