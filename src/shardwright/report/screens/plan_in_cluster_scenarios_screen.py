"""The certificate of a plan for several cluster scenarios, on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.screens.certificate_text import bound_lines, claim_text
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import section
from shardwright.search.certificate_part_of_cluster_states import ScenariosPart, judged_by
from shardwright.search.optimality_certificate import Certificate
from shardwright.units import format_percent


def render_scenarios(certificate: Certificate, *, search_time_s: float = 0.0) -> RenderableType:
    """Screen of a plan for scenarios: its time in each against the best there, and the proof.

    With the next best plans.
    """
    c, part = certificate, certificate.scenarios
    assert part is not None
    lines = (
        claim_text(c, search_time_s=search_time_s),
        f"Judged by {judged_by(part.level)}",
        *bound_lines(c),
        (
            f"The {part.ranked:,} best plans of each scenario: {part.tried:,} simulated in all"
            f" scenarios, {part.ruled_out:,} ruled out"
        ),
        f"Space {c.digest[:12]}: {c.space}",
    )
    next_best = (
        [section("Next best of the plans tried", _tried_table(c, part))] if part.next_best else []
    )
    return Group(
        section("Scenarios", _outcome_table(part)),
        *next_best,
        section("Certificate", Text("\n".join(lines))),
    )


def _outcome_table(part: ScenariosPart) -> RenderableType:
    """Table of scenarios: share of time, step, best step in the scenario, slow-down."""
    rows = [
        (
            outcome.name,
            format_percent(outcome.share),
            f"{outcome.step_time_s:.4g}",
            f"{outcome.best_s:.4g}",
            f"+{format_percent(outcome.step_time_s / outcome.best_s - 1)}",
            outcome.strategy,
        )
        for outcome in part.outcomes
    ]
    return plain_table(
        ("scenario", "of the time", "s/step", "best there", "slower", "which is"),
        rows,
        right=(1, 2, 3, 4),
    )


def _tried_table(certificate: Certificate, part: ScenariosPart) -> RenderableType:
    """Table of the next best plans: judged seconds, slow-down, seconds in each scenario."""
    names = [plan.name for plan in part.outcomes]
    rows = [
        (
            f"{plan.tail_s:.4g}",
            f"+{format_percent(plan.tail_s / certificate.best_s - 1)}",
            *(f"{s:.4g}" for s in plan.steps_s),
            plan.strategy,
        )
        for plan in part.next_best
    ]
    return plain_table(("judged", "slower", *names, "strategy"), rows, right=range(2 + len(names)))
