"""The certificate of a plan on a mixed cluster, on a terminal: the bound, each pool alone, what a
device of each is worth.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.line_breaking import Indented
from shardwright.report.pictures.time_cost_front import front_picture
from shardwright.report.screens.plan_screen import bound_lines, claimed, section
from shardwright.report.table_style import plain_table
from shardwright.search.certificate import Certificate
from shardwright.search.mixed_certificate import FrontPoint, MixedPart, ValuedPart
from shardwright.units import format_count, format_dollars, format_percent, format_seconds


def render_mixed(certificate: Certificate, *, search_time_s: float = 0.0) -> RenderableType:
    """The proof of a mixed search: the gap to the bound, the best of each part of the cluster
    alone, and the value of its devices.
    """
    c, part = certificate, certificate.mixed
    assert part is not None
    if part.valued is not None:
        return render_valued(c, part, part.valued, search_time_s=search_time_s)
    subspaces = sum(len(one.duals) for one in part.closed)
    lines = (
        claimed(c, search_time_s=search_time_s),
        *bound_lines(c),
        _searched(
            part,
            f"{subspaces:,} subspaces closed by dual prices, {part.tests:,} linear programs",
        ),
        (
            f"{c.enumerated:,} plans looked at = {c.infeasible:,} infeasible + {c.bounded_b1:,}"
            f" bounded + {c.simulated:,} simulated"
        ),
        f"Space {c.digest[:12]}: {c.space}",
    )
    alone = section("Each part of the cluster alone", _alone_table(certificate, part))
    told = part.pipelines or part.runners
    runners = (
        [
            section(
                "Pipelines of the plan, and the next best that were found",
                _runners_table(certificate, part),
            )
        ]
        if told
        else []
    )
    return Group(alone, *runners, section("Certificate", Text("\n".join(lines))))


def _searched(part: MixedPart, closed: str) -> str:
    """Number of pipelines that were searched and what closes the search; or the reason why none
    were.
    """
    if part.why_alone:
        return f"Grids of each kind of device alone: no pipelines over several, as {part.why_alone}"
    return f"{part.shapes:,} pipelines that replicas may be; {closed}"


def render_valued(
    c: Certificate, part: MixedPart, valued: ValuedPart, *, search_time_s: float
) -> RenderableType:
    """The proof for an objective beside time or for a budget, and the front of time and cost."""
    lines = (
        _claimed(c, valued, search_time_s=search_time_s),
        (
            f"Step {c.best_s:.6g} s; no plan of the space{_within(valued)} takes less than"
            f" {c.lower_bound_s:.6g} s"
        ),
        _searched(
            part, f"{len(valued.cells):,} cells of times, {part.tests:,} subspaces priced in them"
        ),
        (
            f"{c.enumerated:,} plans looked at = {c.infeasible:,} infeasible + {c.bounded_b1:,}"
            f" bounded + {c.simulated:,} simulated"
        ),
        f"Space {c.digest[:12]}: {c.space}",
    )
    title = (
        "Time and cost of a step: plans that none found beats in both, and what no plan by their"
        " time is below"
    )
    front = (
        [section(title, front_picture(valued.front)), Indented(_front_table(valued.front))]
        if valued.front
        else []
    )
    pipelines = section("Pipelines of the plan", Text(part.pipelines))
    return Group(pipelines, *front, section("Certificate", Text("\n".join(lines))))


def _claimed(c: Certificate, valued: ValuedPart, *, search_time_s: float) -> str:
    """The proven claim about the request."""
    spent = f" Searched in {format_seconds(search_time_s)}." if search_time_s else ""
    if valued.objective == "time":
        return f"Fastest found{_within(valued)}: gap {format_percent(c.gap, digits=2)}.{spent}"
    value, bound = (_amount(number, valued.unit) for number in (valued.value, valued.lower_bound))
    gap = format_percent(valued.gap, digits=2)
    return (
        f"{value} a step; no plan of the space{_within(valued)} takes less than {bound}, gap"
        f" {gap}.{spent}"
    )


def _within(valued: ValuedPart) -> str:
    return f" within {format_dollars(valued.budget)} an hour" if valued.budget else ""


def _amount(number: float, unit: str) -> str:
    return format_dollars(number) if unit == "usd" else f"{format_count(number)}J"


def _front_table(front: Sequence[FrontPoint]) -> RenderableType:
    """A row a plan of the front: its step, what it costs, and how far that is from what any plan by
    its time costs at least.
    """
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
    """Step of the best grid on one pool's devices, how much faster the plan is, and what a device
    more is worth to the plan.
    """
    rows = []
    for one in part.alone:
        step = f"{one.step_time_s:.4g} s" if one.step_time_s is not None else "does not fit"
        times = (
            f"{one.step_time_s / certificate.best_s:.2f} x" if one.step_time_s is not None else "-"
        )
        seconds = format_seconds(one.worth_s, digits=3) if one.worth_s is not None else "-"
        rows.append((f"{one.devices:,} x {one.name}", step, times, seconds, one.strategy))
    return plain_table(
        ("devices", "best step alone", "this plan is faster", "a device is worth", "alone"), rows
    )


def _runners_table(certificate: Certificate, part: MixedPart) -> RenderableType:
    """The plan and the fastest found of other compositions, which are not proven to come next."""
    best = [("1", f"{certificate.best_s:.4g}", "", part.pipelines)] if part.pipelines else []
    rows = [
        (
            str(rank),
            f"{one.step_time_s:.4g}",
            f"+{format_percent(one.step_time_s / certificate.best_s - 1)}",
            one.pipelines,
        )
        for rank, one in enumerate(part.runners, start=2)
    ]
    return plain_table(("", "s/step", "slower", "pipelines"), [*best, *rows], right=(0, 1, 2))
