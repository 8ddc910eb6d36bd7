"""``shardwright draw``: a picture of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api import drawings
from shardwright.cli import flags, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.files.text import to_text
from shardwright.report.pictures.plan_picture_json import picture_document
from shardwright.report.pictures.plan_svg import plan_svg
from shardwright.report.pictures.plan_text import PlanText

Source = Annotated[
    str,
    typer.Argument(
        metavar="PLAN", help='Plan file, file in plan notation, or grid such as "tp8 pp4".'
    ),
]
DrawnModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Catalog name, or path of a Hugging Face config.json; a plan file has its own.",
    ),
]
Devices = Annotated[
    int,
    typer.Option(
        "--devices",
        min=0,
        help=(
            "Number of devices of a grid; dp takes what the other degrees leave. 0 means their"
            " product."
        ),
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        "--global-batch",
        min=0,
        help=(
            "Global batch size of a grid, in sequences; 0 means one microbatch per pipeline stage."
        ),
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        help=(
            "Simulate the step of a grid or a notation on it, and draw it; a plan file says its"
            " own."
        ),
    ),
]
SeqLen = Annotated[
    int, typer.Option("--seq-len", min=0, help="Tokens of a sequence, with --cluster.")
]


def draw(
    source: Source,
    model: DrawnModel = "",
    *,
    devices: Devices = 0,
    global_batch: Batch = 0,
    cluster: Cluster = "",
    seq_len: SeqLen = 0,
    runtime: flags.RuntimeName = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Picture to write: .svg.")
    ] = None,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Draw PLAN: devices x layers, the split tree of each stage and small orders; and, of a plan
    file or on a cluster, the simulated step: its timeline, memory against capacity, nodes, and what
    is sent over each tier. With -o FILE as SVG, else on the screen.
    """
    screen.check_writable(output)
    screen.form_of(output, forms=(".svg",), what="a picture")
    with screen.progress(quiet=quiet or as_json, doing=screen.SIMULATING):
        picture = drawings.draw(
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
    if as_json:
        screen.write(to_text(picture_document(picture)))
    elif quiet:
        screen.write(
            f"{len(picture.rows)} rows, {len(picture.columns)} columns, {len(picture.cells)}"
            " cells\n"
        )
    elif output is None:
        screen.show(PlanText(picture=picture))


main = verb(draw, name="draw")
