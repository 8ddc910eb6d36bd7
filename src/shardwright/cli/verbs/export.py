"""``shardwright export``: write a plan as a framework's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api.exports.export_plan import export_plan, write_export
from shardwright.api.plan_and_problem_from_file import stored_plan
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.files.canonical_json import read_text
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.frameworks.export.launchers.registry import LAUNCHERS
from shardwright.frameworks.export.parse_host_file import parse_hosts
from shardwright.frameworks.registry import TARGETS
from shardwright.search.answer_summary_text import misfit_text


def export(
    path: Annotated[
        Path,
        Argument(metavar="PLAN", help="Plan file that `plan -o` or `simulate -o` wrote."),
    ],
    *,
    to: Annotated[
        str,
        Option(
            "--to",
            metavar="TARGET",
            help="; ".join(
                f"{t.name} {t.version}: {t.summary}" for t in map(TARGETS.load, TARGETS)
            ),
        ),
    ],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="Folder to write the files to.")
    ],
    launcher: Annotated[
        list[str] | None,
        Option(
            "--launcher",
            metavar="NAME",
            help=f"{'; '.join(f'{a.name}: {a.summary}' for a in LAUNCHERS.values())}. Repeatable.",
        ),
    ] = None,
    hosts: Annotated[
        Path | None,
        Option(
            "--hosts",
            metavar="FILE",
            help="Hosts of the cluster's nodes in their order, a name a line.",
        ),
    ] = None,
    image: Annotated[
        str,
        Option(
            "--image",
            metavar="NAME",
            help="Image of the launcher's containers.",
            show_default=False,
        ),
    ] = "",
    allow_lossy: Annotated[
        bool,
        Option(
            "--allow-lossy",
            help="Export also what the target does otherwise than the plan, and list it.",
        ),
    ] = False,
    form: shared_options.AnswerForm,
) -> None:
    """Write PLAN as a framework's own configuration, with a map of its ranks.

    Options that the framework lacks are rejected by name.
    """
    host_names = (
        parse_hosts(read_text(hosts, what="hosts", hint="a name a line"), name=str(hosts))
        if hosts is not None
        else ()
    )
    saved = read_saved(path)
    exported = export_plan(
        stored_plan(saved),
        target=to,
        allow_lossy=allow_lossy,
        launchers=launcher or (),
        hosts=host_names,
        image=image,
    )
    written = write_export(exported, output)
    if not saved.prediction.fits:
        screen.note(f"note: the plan {misfit_text(saved.prediction, classes=saved.classes)}")
    screen.print_lines(
        form,
        document={
            "target": exported.target.name,
            "version": exported.target.version,
            "files": [str(path) for path in written],
            "losses": [{"what": path.what, "instead": path.instead} for path in exported.losses],
        },
        text=f"{output}\n" if form.quiet else "".join(f"{path}\n" for path in written),
    )
    if not (form.as_json or form.quiet):
        for loss in exported.losses:
            screen.note(f"otherwise than planned: {loss.what}; instead: {loss.instead}")


main = verb(export, name="export")
