"""``shardwright guide``: rules of thumb with the user's numbers, judged by searched plans."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Annotated

from shardwright.api.guide.make_guide import guide_document, make_guide
from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.parsing.option_declarations import Option, group
from shardwright.cli.parsing.verb_from_function import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import InfeasibleError
from shardwright.files.canonical_json import to_text
from shardwright.report.screens.guide_screen import guide_line, render_guide


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


def guide(
    model: shared_options.Model,
    cluster: shared_options.Cluster,
    *,
    job: shared_options.JobFlags,
    platform: shared_options.PlatformFlags,
    limits: GuideLimits,
    pins: shared_options.PinFlags,
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> int:
    """Show which rules of thumb hold for MODEL on CLUSTER, and what the others cost.

    Each rule has its formula with your numbers. A rule is judged by two searches: the best plan,
    and the best plan that follows the rule.
    """
    screen.check_writable(output)
    screen.output_ending(output, forms=(".json",), what="a guide")
    request = replace(
        shared_options.read_request(model, cluster, job=job, platform=platform, pins=pins),
        max_devices=limits.max_devices,
        headroom=parse_memory_and_cost.read_headroom(limits.headroom),
    )
    with screen.progress(form) as report:
        made = make_guide(request, time_limit_s=limits.time_limit, progress=report)
    if output is not None:
        screen.save(output, to_text(guide_document(made)))
    screen.print_answer(
        form,
        document=lambda: guide_document(made),
        line=lambda: guide_line(made),
        picture=lambda: render_guide(made),
    )
    return 0 if made.best.step_s is not None else InfeasibleError.exit_code


main = verb(guide, name="guide")
