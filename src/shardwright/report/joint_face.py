"""The answer of a search of general plans, joint or exact: on screen and as a document."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.model.graph import Model
from shardwright.program.action_rows import TABLE_SEARCH
from shardwright.report.json_face import simulation_document
from shardwright.report.terminal import certificate_text, render_simulation
from shardwright.search.exact.find import ExactAnswer
from shardwright.search.joint.find import JointAnswer
from shardwright.strategy.notation import print_plan
from shardwright.strategy.order import Named, Table
from shardwright.strategy.plan import Plan
from shardwright.units import format_percent, format_seconds

General = JointAnswer | ExactAnswer


def joint_document(answer: General) -> dict[str, Any]:
    """The plan file: that of a simulation, which `check` verifies, and the certificate."""
    assert answer.simulation is not None
    return {**simulation_document(answer.simulation), "certificate": asdict(answer.certificate)}


def render_joint(answer: General, *, model: Model) -> RenderableType:
    """The plan, its time and memory, its notation (found orders as one to be searched again), and the certificate."""
    assert answer.simulation is not None
    parts: list[RenderableType] = [render_simulation(answer.simulation)]
    if isinstance(answer, ExactAnswer):
        parts.append(Text("\n" + print_plan(answer.plan, name="exact", model=model)))
        lines = certificate_text(answer.certificate, search_time_s=answer.search_time_s)
    else:
        if answer.best is not None and answer.simulation.plan is not None:
            parts.append(Text("\n" + print_plan(_open(answer.simulation.plan), name="joint", model=model)))
        lines = Text("\n".join(_certificate_lines(answer)))
    return Group(*parts, Text("\nCertificate"), lines)


def _open(plan: Plan) -> Plan:
    """`plan` with each table as an order that is to be found."""
    orders = tuple(Named(schedule=TABLE_SEARCH, lanes=order.lanes) if isinstance(order, Table) else order for order in plan.orders)
    return replace(plan, orders=orders)


def _certificate_lines(answer: JointAnswer) -> tuple[str, ...]:
    c = answer.certificate
    words = "Optimal: nothing in the space is faster." if c.gap == 0 else f"Nothing in the space takes less than {c.lower_bound_s:.4g} s."
    return (
        f"{words} Searched in {format_seconds(answer.search_time_s)}{'' if c.complete else ', cut off by the time limit'}.",
        f"{c.enumerated:.4g} members in {c.frames:,} frames = {c.infeasible:,} infeasible + {c.bounded:.4g} bounded + "
        f"{c.scored:,} scored + {c.simulated:,} simulated; and {c.grids:,} grids",
        f"Best {c.best_s:.6g} s, lower bound {c.lower_bound_s:.6g} s, gap {format_percent(c.gap, digits=2)}",
        f"Any plan whatever, in the space or not, takes at least {format_percent(1 - c.universal_gap)} of the best's time.",
        f"Space {c.digest[:12]}",
    )
