"""Contents of a notebook's card of a general plan."""

from __future__ import annotations

from typing import Final

from shardwright.errors import StrategyError
from shardwright.report.page.view_data_types.notebook_card_of_general_plan import (
    PlanCard,
    PlanLaneRow,
)
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.print_plan import print_plan

MOST_LINES: Final = 60
"""Lines of the notation that a card shows; a table of a large pipeline has thousands."""


def plan_card(plan: Plan) -> PlanCard:
    """The notebook card of a general plan: counts, lanes, and first lines of its notation."""
    lines = _notation_lines(plan)
    shown = lines[:MOST_LINES]
    return PlanCard(
        devices=plan.devices,
        samples=sum(lane.samples for lane in plan.lanes if lane.role is Role.TRAIN),
        stages=sum(len(lane.stages) for lane in plan.lanes),
        zero_rules=len(plan.shards),
        lanes=tuple(_lane_row(lane, _order_name(plan, lane.name)) for lane in plan.lanes),
        lines=len(lines),
        notation="\n".join(shown) if shown else None,
        shown_lines=len(shown),
    )


def _lane_row(lane: Lane, order: str) -> PlanLaneRow:
    """Row of a lane for the plan card: role, samples, microbatches, stages and order."""
    return PlanLaneRow(
        name=lane.name,
        role=lane.role.value,
        samples=lane.samples,
        microbatches=lane.microbatches,
        stages=len(lane.stages),
        order=order,
    )


def _order_name(plan: Plan, lane: str) -> str:
    """Name of the schedule of a lane's pipeline, ``table``, or ``-`` where it has none."""
    for order in plan.orders:
        if lane in order.lanes:
            return order.schedule if isinstance(order, NamedOrder) else "table"
    return "-"


def _notation_lines(plan: Plan) -> list[str]:
    """Lines of the plan in the general notation; none where it cannot express a name."""
    try:
        return print_plan(plan).splitlines()
    except StrategyError:
        return []
