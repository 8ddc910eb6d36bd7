"""The answer of a search over general plans (joint, exact or mixed) on a terminal."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.model.ir.model_graph import Model
from shardwright.program.orders.plan_action_rows import TABLE_SEARCH
from shardwright.report.screens.certificate_text import (
    bound_lines,
    certificate_text,
    claim_text,
    unsearched_parts,
)
from shardwright.report.screens.mixed_cluster_certificate_screen import render_mixed
from shardwright.report.screens.plan_in_cluster_scenarios_screen import render_scenarios
from shardwright.report.screens.plan_screen import render_simulation
from shardwright.report.terminal_line_wrapping import without_wrapping
from shardwright.report.titled_screen_sections import section
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_answer import Unsearched
from shardwright.search.simulated_strategy import Simulation
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.print_plan import print_plan

MANY_STRATEGIES = 10**15
"""A count from here on is shown with four digits."""


def render_general(
    simulation: Simulation,
    certificate: Certificate,
    *,
    model: Model,
    search_time_s: float = 0.0,
    left: Unsearched | None = None,
) -> RenderableType:
    """The screen of a general plan: time, memory, notation, certificate, unsearched options.

    Orders that a joint search found are printed as orders to be searched again.
    """
    parts: list[RenderableType] = [render_simulation(simulation)]
    if simulation.grid is None and simulation.plan is not None:
        plan, name = (
            (simulation.plan, simulation.name)
            if certificate.joint is None
            else (_with_searched_orders(simulation.plan), "joint")
        )
        parts.append(
            section(
                "The plan in notation",
                without_wrapping(Text(print_plan(plan, name=name, model=model).rstrip())),
            )
        )
    return Group(
        *parts,
        render_certificate(certificate, search_time_s=search_time_s),
        *unsearched_parts(left),
    )


def _with_searched_orders(plan: Plan) -> Plan:
    """Replace each explicit action table by the name of the order search, for a short notation."""
    orders = tuple(
        NamedOrder(schedule=TABLE_SEARCH, lanes=order.lanes) if isinstance(order, Table) else order
        for order in plan.orders
    )
    return replace(plan, orders=orders)


def render_certificate(certificate: Certificate, *, search_time_s: float = 0.0) -> RenderableType:
    """Section with a search's proof: of scenarios, of mixed devices, of pipelines, or of grids."""
    c, joint = certificate, certificate.joint
    if c.scenarios is not None:
        return render_scenarios(c, search_time_s=search_time_s)
    if c.mixed is not None:
        return render_mixed(c, search_time_s=search_time_s)
    if joint is None:
        return section("Certificate", certificate_text(certificate, search_time_s=search_time_s))
    cut = "" if joint.complete else " The time limit cut in."
    lines = (
        claim_text(c, search_time_s=search_time_s) + cut,
        (
            f"{_digits(c.enumerated)} strategies in {joint.pipelines:,} pipelines:"
            f" {_digits(c.infeasible)} do not fit in memory, {_digits(c.bounded_b0)} are ruled out"
            f" by a lower bound of their time, {c.bounded_b1:,} by the longest path of their order,"
            f" {c.simulated:,} simulated; and {joint.grids:,} grids"
        ),
        *(
            [
                "Pipelines have one value of axes that grids have several of:"
                f" {', '.join(f'{name}={value}' for name, value in joint.fixed)}"
            ]
            if joint.fixed
            else []
        ),
        *bound_lines(c),
        f"Space {c.digest[:12]}: {c.space}",
    )
    return section("Certificate", Text("\n".join(lines)))


def _digits(count: int) -> str:
    """Format a count with all digits, or from `MANY_STRATEGIES` on with four significant digits."""
    return f"{count:,}" if count < MANY_STRATEGIES else f"{count:.4g}"
