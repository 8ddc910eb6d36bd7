"""The certificate of a plan for several states of a cluster, on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.screens.plan_screen import bound_lines, claimed, section
from shardwright.report.table_style import plain_table
from shardwright.search.certificate import Certificate
from shardwright.search.scenario_certificate import ScenariosPart, judged_by
from shardwright.units import format_percent


def render_scenarios(certificate: Certificate, *, search_time_s: float = 0.0) -> RenderableType:
    """The screen of a plan for scenarios: its time in each beside the fastest plan there, the next
    best plans, and the proof.
    """
    c, part = certificate, certificate.scenarios
    assert part is not None
    lines = (
        claimed(c, search_time_s=search_time_s),
        f"Judged by {judged_by(part.level)}",
        *bound_lines(c),
        (
            f"The {part.ranked:,} best plans of each scenario: {part.tried:,} simulated in all"
            f" scenarios, {part.ruled_out:,} ruled out"
        ),
        f"Space {c.digest[:12]}: {c.space}",
    )
    behind = (
        [section("Next best of the plans tried", _tried_table(c, part))] if part.next_best else []
    )
    return Group(
        section("Scenarios", _outcome_table(part)),
        *behind,
        section("Certificate", Text("\n".join(lines))),
    )


def _outcome_table(part: ScenariosPart) -> RenderableType:
    rows = [
        (
            one.name,
            format_percent(one.share),
            f"{one.step_time_s:.4g}",
            f"{one.best_s:.4g}",
            f"+{format_percent(one.step_time_s / one.best_s - 1)}",
            one.strategy,
        )
        for one in part.outcomes
    ]
    return plain_table(
        ("scenario", "of the time", "s/step", "best there", "slower", "which is"),
        rows,
        right=(1, 2, 3, 4),
    )


def _tried_table(certificate: Certificate, part: ScenariosPart) -> RenderableType:
    names = [one.name for one in part.outcomes]
    rows = [
        (
            f"{one.tail_s:.4g}",
            f"+{format_percent(one.tail_s / certificate.best_s - 1)}",
            *(f"{s:.4g}" for s in one.steps_s),
            one.strategy,
        )
        for one in part.next_best
    ]
    return plain_table(("judged", "slower", *names, "strategy"), rows, right=range(2 + len(names)))
