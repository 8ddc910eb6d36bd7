"""Contents of a notebook's card of a general plan."""

from __future__ import annotations

from shardwright.api.report.first_lines_of_plan_notation import first_lines_of_notation
from shardwright.report.page.view_data_types.notebook_card_of_general_plan import (
    PlanCard,
    PlanLaneRow,
)
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan


def plan_card(plan: Plan) -> PlanCard:
    """The notebook card of a general plan: counts, lanes, and first lines of its notation."""
    notation = first_lines_of_notation(plan)
    return PlanCard(
        devices=plan.devices,
        samples=sum(lane.samples for lane in plan.lanes if lane.role is Role.TRAIN),
        stages=sum(len(lane.stages) for lane in plan.lanes),
        zero_rules=len(plan.shards),
        lanes=tuple(_lane_row(lane, _order_name(plan, lane.name)) for lane in plan.lanes),
        lines=notation.lines,
        notation=notation.text,
        shown_lines=notation.shown,
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
