"""``shardwright cluster read`` and ``cluster show``: read a cluster from files, and draw one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api.read_cluster_inventories_or_compute_picture import (
    ALL_FORMATS,
    read_cluster,
    show_cluster,
)
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verbs
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import UsageError
from shardwright.report.pictures.cluster_picture_content import cluster_document
from shardwright.report.pictures.cluster_svg import cluster_page, cluster_svg
from shardwright.report.pictures.cluster_text import ClusterText
from shardwright.report.screens.cluster_read_screen import (
    cluster_facts_document,
    render_cluster_facts,
)

_DRAWINGS = {".svg": cluster_svg, ".html": cluster_page}


def read(
    files: Annotated[
        list[Path],
        Argument(
            metavar="FILE...",
            help=f"Files of one cluster: {', '.join(one.name for one in ALL_FORMATS)}.",
        ),
    ],
    *,
    nodes: Annotated[
        int,
        Option(
            "--nodes",
            metavar="N",
            min=0,
            help="Number of nodes, where no file lists them; 0 means one.",
        ),
    ] = 0,
    accelerator: Annotated[
        list[str] | None,
        Option(
            "--accelerator",
            metavar="NAME",
            help=(
                "Accelerator or instance of nodes whose files do not say; WORD=NAME for those that"
                " a file calls WORD. Repeatable."
            ),
        ),
    ] = None,
    link: Annotated[
        list[str] | None,
        Option(
            "--link",
            metavar="A~B=GBPS/MS",
            help="Link of two zones, e.g. east~west=25gbps/60ms. Repeatable.",
        ),
    ] = None,
    all_nodes: Annotated[
        bool,
        Option(
            "--all-nodes",
            help=(
                "Count nodes too that are down, drained, cordoned or not ready; they are left out"
                " else."
            ),
        ),
    ] = False,
    output: Annotated[
        Path | None,
        Option("--output", "-o", metavar="FILE", help="Cluster file (YAML) to write."),
    ] = None,
    form: shared_options.AnswerForm,
) -> None:
    """Read a cluster from topology, Slurm or Kubernetes files, as a cluster file to plan with.

    The answer lists the facts found with their places, and the assumptions. Several files
    complement each other; if they contradict each other, nothing is read.
    """
    screen.check_writable(output)
    with screen.progress(form, doing="read"):
        reading = read_cluster(
            files,
            accelerators=accelerator or (),
            nodes=nodes,
            links=link or (),
            all_nodes=all_nodes,
        )
    if output is not None:
        screen.save(output, reading.text)
    screen.print_answer(
        form,
        document=lambda: cluster_facts_document(reading),
        line=lambda: f"{reading.cluster.described()}\n",
        picture=lambda: render_cluster_facts(reading),
    )
    if output is None and not (form.as_json or form.quiet):
        screen.note("-o cluster.yaml writes the cluster file that this comes to")


def show(
    cluster: shared_options.Cluster,
    *,
    output: Annotated[
        Path | None,
        Option("--output", "-o", metavar="FILE", help="Picture to write: .svg or .html."),
    ] = None,
    form: shared_options.AnswerForm,
) -> None:
    """Draw CLUSTER as the planner sees it: network tiers, nodes, scale-up islands and links."""
    screen.check_writable(output)
    draw = _DRAWINGS.get(output.suffix.lower()) if output is not None else None
    if output is not None and draw is None:
        raise UsageError(
            f"cannot draw {output.name[:60]!r}", hint="-o picture.svg, or picture.html"
        )
    picture = show_cluster(cluster)
    if output is not None and draw is not None:
        screen.save(output, draw(picture))
    screen.print_answer(
        form,
        document=lambda: cluster_document(picture),
        line=lambda: f"{picture.cluster.described()}\n",
        picture=lambda: ClusterText(picture=picture) if output is None else None,
    )


main = verbs(
    {"read": read, "show": show},
    name="cluster",
    about="Read a cluster from files that people have of theirs, or draw one.",
)
