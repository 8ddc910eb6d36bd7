"""The certificate of a plan on a mixed cluster, on a terminal: the bound, each pool alone, what a device of each is worth."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.tables import plain_table
from shardwright.report.terminal import bound_lines, claimed, section
from shardwright.search.certificate import Certificate
from shardwright.search.frames import MixedPart
from shardwright.units import format_percent, format_seconds


def render_mixed(certificate: Certificate, *, search_time_s: float = 0.0) -> RenderableType:
    """How far the plan is from the bound, what each part of the cluster does alone, and what its devices are worth."""
    c, part = certificate, certificate.mixed
    assert part is not None
    frames = sum(len(one.duals) for one in part.closed)
    lines = (
        claimed(c, search_time_s=search_time_s),
        *bound_lines(c),
        f"{part.shapes:,} pipelines that replicas may be; {frames:,} frames of the space closed by prices, {part.tests:,} linear programs",
        f"{c.enumerated:,} plans looked at = {c.infeasible:,} infeasible + {c.bounded_b1:,} bounded + {c.simulated:,} simulated",
        f"Space {c.digest[:12]}: {c.space}",
    )
    alone = section("Each part of the cluster alone", _alone_table(certificate, part))
    told = part.pipelines or part.runners
    runners = [section("Pipelines of the plan, and the next best that were found", _runners_table(certificate, part))] if told else []
    return Group(alone, *runners, section("Certificate", Text("\n".join(lines))))


def _alone_table(certificate: Certificate, part: MixedPart) -> RenderableType:
    """Step of the best grid on one pool's devices, how much faster the plan is, and what a device more is worth to the plan."""
    rows = []
    for one in part.alone:
        step = f"{one.step_time_s:.4g} s" if one.step_time_s is not None else "does not fit"
        times = f"{one.step_time_s / certificate.best_s:.2f} x" if one.step_time_s is not None else "-"
        seconds = format_seconds(one.worth_s, digits=3) if one.worth_s is not None else "-"
        rows.append((f"{one.devices:,} x {one.name}", step, times, seconds, one.strategy))
    return plain_table(("devices", "best step alone", "this plan is faster", "a device is worth", "alone"), rows)


def _runners_table(certificate: Certificate, part: MixedPart) -> RenderableType:
    """The plan and the fastest found of other compositions, which are not proven to come next."""
    best = [("1", f"{certificate.best_s:.4g}", "", part.pipelines)] if part.pipelines else []
    rows = [
        (str(rank), f"{one.step_time_s:.4g}", f"+{format_percent(one.step_time_s / certificate.best_s - 1)}", one.pipelines)
        for rank, one in enumerate(part.runners, start=2)
    ]
    return plain_table(("", "s/step", "slower", "pipelines"), [*best, *rows], right=(0, 1, 2))
