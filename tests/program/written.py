"""Plans with their orders written out."""

from __future__ import annotations

from dataclasses import replace

from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.orders.rows_to_order_table import order_table_of_rows
from shardwright.strategy.plan.plan import Plan


def written_out(plan: Plan) -> Plan:
    """`plan` with a table for each of its orders."""
    rows = action_rows(plan)
    return replace(
        plan,
        orders=tuple(
            order_table_of_rows(rows, plan=plan, order=i) for i in range(len(plan.orders))
        ),
    )
