"""The certificate of a plan on a mixed cluster, on a terminal: the bound, each pool alone, what a device of each is worth."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.tables import plain_table
from shardwright.report.terminal import bound_lines, claimed, section
from shardwright.search.certificate import Certificate
from shardwright.search.frames import Dual, MixedPart


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
    return Group(alone, section("Certificate", Text("\n".join(lines))))


def _alone_table(certificate: Certificate, part: MixedPart) -> RenderableType:
    """Step of the best grid on one pool's devices, how much faster the plan is, and what a device more is worth to the plan."""
    worth = _tightest(part)
    rows = []
    for number, one in enumerate(part.alone):
        step = f"{one.step_time_s:.4g} s" if one.step_time_s is not None else "does not fit"
        times = f"{one.step_time_s / certificate.best_s:.2f} x" if one.step_time_s is not None else "-"
        seconds = f"{1e3 * worth.devices[number] * worth.limit_s / worth.samples:.3g} ms" if worth and worth.samples else "-"
        rows.append((f"{one.devices:,} x {one.name}", step, times, seconds, one.strategy))
    return plain_table(("devices", "best step alone", "this plan is faster", "a device is worth", "alone"), rows)


def _tightest(part: MixedPart) -> Dual | None:
    """The prices of the frame that is nearest to open."""
    return max((dual for one in part.closed for dual in one.duals), key=lambda dual: dual.samples, default=None)
