"""The answer of a search of general plans, joint or exact, on a terminal."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.model.ir.graph import Model
from shardwright.program.orders.rows import TABLE_SEARCH
from shardwright.report.terminal import certificate_text, render_simulation
from shardwright.search.certificate import Certificate
from shardwright.search.simulation import Simulation
from shardwright.strategy.plan.order import Named, Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.notation import print_plan
from shardwright.units import format_percent, format_seconds


def render_general(simulation: Simulation, certificate: Certificate, *, model: Model, search_time_s: float = 0.0) -> RenderableType:
    """The plan, its time and memory, its notation (orders found by a joint search as one to be searched again), and the certificate."""
    parts: list[RenderableType] = [render_simulation(simulation)]
    if simulation.grid is None and simulation.plan is not None:
        plan, name = (simulation.plan, "exact") if certificate.joint is None else (_open(simulation.plan), "joint")
        parts.append(Text("\n" + print_plan(plan, name=name, model=model)))
    return Group(*parts, render_certificate(certificate, search_time_s=search_time_s))


def _open(plan: Plan) -> Plan:
    """`plan` with each table as an order that is to be found."""
    orders = tuple(Named(schedule=TABLE_SEARCH, lanes=order.lanes) if isinstance(order, Table) else order for order in plan.orders)
    return replace(plan, orders=orders)


def render_certificate(certificate: Certificate, *, search_time_s: float = 0.0) -> RenderableType:
    """Why no member of a space of general plans is better."""
    c, joint = certificate, certificate.joint
    if joint is None:
        return Group(Text("\nCertificate"), certificate_text(certificate, search_time_s=search_time_s))
    words = "Optimal: nothing in the space is faster" if c.gap == 0 else f"Nothing in the space takes less than {c.lower_bound_s:.4g} s"
    spent = f" Searched in {format_seconds(search_time_s)}." if search_time_s else ""
    cut = "" if joint.complete else " The time limit cut in."
    lines = (
        f"{words}.{spent}{cut}",
        f"{c.enumerated:.4g} members in {joint.pipelines:,} pipelines = {c.infeasible:,} infeasible + {c.bounded_b0:.4g} bounded + "
        f"{c.bounded_b1:,} scored + {c.simulated:,} simulated; and {joint.grids:,} grids",
        f"Best {c.best_s:.6g} s, lower bound {c.lower_bound_s:.6g} s, gap {format_percent(c.gap, digits=2)}",
        f"Any plan whatever, in the space or not, takes at least {format_percent(1 - c.universal_gap)} of the best's time.",
        f"Space {c.digest[:12]}",
    )
    return Text("\nCertificate\n" + "\n".join(lines))
