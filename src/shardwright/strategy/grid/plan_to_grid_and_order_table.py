"""The grid form of a general plan, with an order table where its order is not a named schedule."""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import Plan

PLACED = ("1f1b", "interleaved-1f1b", "zb-v", "hanayo")
"""A schedule of every placement of one lane: one chunk a rank, several in a loop, a V, waves."""


def grid_form(plan: Plan, *, model: Model) -> tuple[Grid, Table | None] | None:
    """(grid, order table or None) that give the plan's stages and order; None if no grid does.

    A table gives the order of actions only. The grid's schedule gives the placement of stages: the
    first of PLACED that matches.
    """
    grid = grid_of(plan, model=model)
    if grid is not None:
        return grid, None
    table = plan.orders[0] if len(plan.orders) == 1 else None
    if not isinstance(table, Table):
        return None
    for name in PLACED:
        grid = grid_of(
            replace(plan, orders=(NamedOrder(schedule=name, lanes=table.lanes),)), model=model
        )
        if grid is not None:
            return grid, table
    return None
