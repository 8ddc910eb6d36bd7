"""``shardwright guide``: rules of thumb with the user's numbers, judged by searched plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

from shardwright.api.guide.make_guide import guide_document, make_guide
from shardwright.api.guide.make_serving_guide_of_request import make_serving_guide
from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option, group
from shardwright.cli.parsing.parse_token_and_sequence_counts import read_count
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import InfeasibleError, UsageError
from shardwright.files.canonical_json import to_text
from shardwright.report.guide.agent_skill_file import agent_skill
from shardwright.report.guide.guide_html_page import guide_html
from shardwright.report.guide.guide_markdown_page import guide_markdown
from shardwright.report.guide.guide_pictures import guide_pictures, picture_file
from shardwright.report.guide.guide_screen import guide_line, render_guide
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import Guide

SKILL_FILE: Final = "SKILL.md"
WRITERS: Final[dict[str, Callable[[Guide, str], str]]] = {
    ".html": lambda made, _: guide_html(guide_document(made)),
    ".md": lambda made, name: guide_markdown(made, pictures=quote(name)),
    ".json": lambda made, _: to_text(guide_document(made)),
}
"""Function that makes the text of a file, by its ending; it reads the file's name without that."""


@group(shared_options.LIMITS)
class GuideLimits:
    """Options that limit the plans and the time of the guide's searches."""

    max_devices: Annotated[
        int,
        Option("--max-devices", metavar="N", min=0, help="Most devices of a plan; 0 means all."),
    ] = 0
    headroom: Annotated[
        str,
        Option(
            "--headroom",
            metavar="PERCENT",
            help="Share of each device's memory that plans leave free.",
        ),
    ] = "5%"
    time_limit: Annotated[
        float,
        Option(
            "--time-limit",
            metavar="SECONDS",
            min=0.0,
            help="Judge no further rule after this many seconds, and name the rules left out.",
        ),
    ] = inf


@group("Serving")
class ServingFlags:
    """Options of the guide for serving."""

    serving: Annotated[
        bool,
        Option(
            "--serving",
            help=(
                "Guide for serving: --seq-len is the length of prompt and answer, --global-batch"
                " the number of requests in flight. Deployments are simulated, not searched."
            ),
        ),
    ] = False
    osl: Annotated[
        str,
        Option(
            "--osl",
            metavar="N",
            help="With --serving: tokens of an answer, 256.",
            show_default="an eighth of --seq-len",
        ),
    ] = ""


def guide(
    model: shared_options.Model,
    cluster: shared_options.Cluster,
    *,
    job: shared_options.JobFlags,
    platform: shared_options.PlatformFlags,
    limits: GuideLimits,
    serving: ServingFlags,
    pins: shared_options.PinFlags,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also write a page (.html), .md with two .svg, or .json.",
        ),
    ] = None,
    agent: Annotated[
        Path | None,
        Option(
            "--agent",
            metavar="DIR",
            help="Also write SKILL.md, facts and commands for coding agents, into this folder."
            " It is made if it does not exist.",
        ),
    ] = None,
    form: shared_options.AnswerForm,
) -> int:
    """Show which rules of thumb hold for MODEL on CLUSTER, and what the others cost.

    Each rule has its formula with your numbers. A rule is judged by two searches: the best plan,
    and the best plan that follows the rule.
    """
    if serving.osl and not serving.serving:
        raise UsageError("--osl is for --serving", hint="drop it, or add --serving")
    screen.check_writable(output)
    ending = screen.output_ending(output, forms=(".html", ".md", ".json"), what="a guide")
    if agent is not None:
        _require_folder(agent)
    request = replace(
        shared_options.read_request(model, cluster, job=job, platform=platform, pins=pins),
        max_devices=limits.max_devices,
        headroom=parse_memory_and_cost.read_headroom(limits.headroom),
    )
    with screen.progress(form) as report:
        made = (
            make_serving_guide(
                request,
                answer=read_count(serving.osl, flag="--osl") if serving.osl else None,
                progress=report,
            )
            if serving.serving
            else make_guide(request, time_limit_s=limits.time_limit, progress=report)
        )
    if output is not None:
        screen.save(output, WRITERS[ending](made, output.stem))
    if output is not None and ending == ".md":
        document = guide_document(made)
        for picture in guide_pictures(document):
            file = output.with_name(f"{output.stem}-{picture.name}.svg")
            screen.save(file, picture_file(picture, document))
    if agent is not None:
        agent.mkdir(exist_ok=True)
        screen.save(agent / SKILL_FILE, agent_skill(made))
    screen.print_answer(
        form,
        document=lambda: guide_document(made),
        line=lambda: guide_line(made),
        picture=lambda: render_guide(made),
    )
    return 0 if made.best.step_s is not None else InfeasibleError.exit_code


def _require_folder(path: Path) -> None:
    """Raise UsageError unless `path` is a folder, or can be made in one.

    Raises:
        UsageError: it is a file, or its parent is no folder.
    """
    if (path.exists() and not path.is_dir()) or not path.parent.is_dir():
        raise UsageError(
            f"cannot write into {path}: it is no folder, and its parent has none",
            hint="name a folder, or a new one in a folder that exists",
        )


main = verb(guide, name="guide")
