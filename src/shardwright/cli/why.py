"""``shardwright why``: a plan against another strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api import why as api
from shardwright.cli import flags, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.files.plan_file import parse_saved, read_saved, require_whole
from shardwright.files.text import to_text
from shardwright.report.screens.why_screen import render_why, why_document, why_line

Source = Annotated[
    str,
    typer.Argument(
        metavar="PLAN", help="A file that `plan -o` or `simulate -o` wrote; - = read it."
    ),
]
Other = Annotated[
    str,
    typer.Argument(
        metavar="STRATEGY",
        help=(
            'A change of the plan ("zero3", "tp4 dp16", "fsdp", "no recompute", "more tp"), or a'
            " strategy as `simulate` takes it."
        ),
    ),
]


def why(
    source: Source,
    strategy: Other,
    *,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Say what STRATEGY would gain and lose against PLAN, or why it cannot be, and where the search
    put it.
    """
    saved = (
        parse_saved(screen.given(source), name="standard input")
        if source == "-"
        else read_saved(Path(source))
    )
    require_whole(saved, name=source)
    with screen.progress(quiet=quiet or as_json, doing=screen.SIMULATING):
        found = api.why(saved, strategy)
    if as_json:
        screen.write(to_text(why_document(found)))
    elif quiet:
        screen.write(why_line(found))
    else:
        screen.show(render_why(found))


main = verb(why, name="why")
