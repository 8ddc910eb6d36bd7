"""The certificate of a plan on a mixed cluster: bound, each pool alone, value of a device."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.pictures.time_cost_pareto_text import front_picture
from shardwright.report.screens.certificate_text import bound_lines, claim_text
from shardwright.report.terminal_line_wrapping import Indented
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import section
from shardwright.search.mixed_cluster_certificate import FrontPoint, MixedPart, ValuedPart
from shardwright.search.optimality_certificate import Certificate
from shardwright.units import format_count, format_dollars, format_percent, format_seconds


def render_mixed(certificate: Certificate, *, search_time_s: float = 0.0) -> RenderableType:
    """Screen of a mixed search's proof: gap to the bound, each pool alone, value of its devices."""
    c, part = certificate, certificate.mixed
    assert part is not None
    if part.valued is not None:
        return render_valued(c, part, part.valued, search_time_s=search_time_s)
    subspaces = sum(len(entry.duals) for entry in part.closed)
    lines = (
        claim_text(c, search_time_s=search_time_s),
        *bound_lines(c),
        _search_text(
            part,
            f"{subspaces:,} subspaces closed by dual prices, {part.tests:,} linear programs",
        ),
        (
            f"{c.enumerated:,} plans considered = {c.infeasible:,} infeasible + {c.bounded_b1:,}"
            f" bounded + {c.simulated:,} simulated"
        ),
        f"Space {c.digest[:12]}: {c.space}",
    )
    alone = section("Each part of the cluster alone", _alone_table(certificate, part))
    compositions_known = part.pipelines or part.runners
    compositions = (
        [
            section(
                "Pipelines of the plan, and the next best compositions found",
                _compositions_table(certificate, part),
            )
        ]
        if compositions_known
        else []
    )
    return Group(alone, *compositions, section("Certificate", Text("\n".join(lines))))


def _search_text(part: MixedPart, closed: str) -> str:
    """Sentence: number of pipelines searched and `closed`, words on the proof; or why none were."""
    if part.why_alone:
        return f"Grids of each kind of device alone: no pipelines over several, as {part.why_alone}"
    return f"{part.shapes:,} pipelines that replicas may be; {closed}"


def render_valued(
    c: Certificate, part: MixedPart, valued: ValuedPart, *, search_time_s: float
) -> RenderableType:
    """Screen of the proof for a cost objective or a budget, with the time-cost Pareto front."""
    lines = (
        _claim_text(c, valued, search_time_s=search_time_s),
        (
            f"Step {c.best_s:.6g} s; no plan of the space{_budget_text(valued)} takes less than"
            f" {c.lower_bound_s:.6g} s"
        ),
        _search_text(
            part, f"{len(valued.cells):,} cells of times, {part.tests:,} subspaces priced in them"
        ),
        (
            f"{c.enumerated:,} plans considered = {c.infeasible:,} infeasible + {c.bounded_b1:,}"
            f" bounded + {c.simulated:,} simulated"
        ),
        f"Space {c.digest[:12]}: {c.space}",
    )
    title = (
        "Pareto front of the time and cost of a step (numbers: plans found; dots: lower bound of"
        " the cost)"
    )
    front = (
        [section(title, front_picture(valued.front)), Indented(_front_table(valued.front))]
        if valued.front
        else []
    )
    pipelines = section("Pipelines of the plan", Text(part.pipelines))
    return Group(pipelines, *front, section("Certificate", Text("\n".join(lines))))


def _claim_text(c: Certificate, valued: ValuedPart, *, search_time_s: float) -> str:
    """The proven claim: the best value, its lower bound and the gap."""
    spent = f" Searched in {format_seconds(search_time_s)}." if search_time_s else ""
    if valued.objective == "time":
        return f"Fastest found{_budget_text(valued)}: gap {format_percent(c.gap, digits=2)}.{spent}"
    value, bound = (
        _amount_text(number, valued.unit) for number in (valued.value, valued.lower_bound)
    )
    gap = format_percent(valued.gap, digits=2)
    return (
        f"{value} a step; no plan of the space{_budget_text(valued)} takes less than {bound}, gap"
        f" {gap}.{spent}"
    )


def _budget_text(valued: ValuedPart) -> str:
    """Phrase on the budget in dollars an hour; empty without a budget."""
    return f" within {format_dollars(valued.budget)} an hour" if valued.budget else ""


def _amount_text(number: float, unit: str) -> str:
    """Format dollars (`unit` usd), or joules with a decimal prefix."""
    return format_dollars(number) if unit == "usd" else f"{format_count(number)}J"


def _front_table(front: Sequence[FrontPoint]) -> RenderableType:
    """Table of the Pareto front: step time, cost, lower bound of the cost, gap, pipelines."""
    rows = [
        (
            str(number),
            f"{point.step_time_s:.4g}",
            f"{point.value:.4g}",
            f"{point.lower_bound:.4g}",
            format_percent((point.value - point.lower_bound) / point.value),
            point.pipelines,
        )
        for number, point in enumerate(front, start=1)
    ]
    return plain_table(
        ("", "s/step", "$/step", "at least", "gap", "pipelines"), rows, right=(0, 1, 2, 3, 4)
    )


def _alone_table(certificate: Certificate, part: MixedPart) -> RenderableType:
    """Table by pool: best step on it alone, speed-up of the plan, seconds a device is worth."""
    rows = []
    for pool in part.alone:
        step = f"{pool.step_time_s:.4g} s" if pool.step_time_s is not None else "does not fit"
        speedup = (
            f"{pool.step_time_s / certificate.best_s:.2f} times"
            if pool.step_time_s is not None
            else "-"
        )
        seconds = format_seconds(pool.worth_s, digits=3) if pool.worth_s is not None else "-"
        rows.append((f"{pool.devices:,} x {pool.name}", step, speedup, seconds, pool.strategy))
    return plain_table(
        ("devices", "best step alone", "speed of this plan", "a device is worth", "alone"), rows
    )


def _compositions_table(certificate: Certificate, part: MixedPart) -> RenderableType:
    """Table of the plan and the next best compositions found, which are not proven to come next."""
    best = [("1", f"{certificate.best_s:.4g}", "", part.pipelines)] if part.pipelines else []
    rows = [
        (
            str(rank),
            f"{composition.step_time_s:.4g}",
            f"+{format_percent(composition.step_time_s / certificate.best_s - 1)}",
            composition.pipelines,
        )
        for rank, composition in enumerate(part.runners, start=2)
    ]
    return plain_table(("", "s/step", "slower", "pipelines"), [*best, *rows], right=(0, 1, 2))
