"""What a general plan is to PyTorch: a grid, and a table where its order is no named one."""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.ir.graph import Model
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.match import grid_of
from shardwright.strategy.plan.order import Named, Table
from shardwright.strategy.plan.plan import Plan

PLACED = ("1f1b", "interleaved-1f1b", "zb-v", "hanayo")
"""A schedule of every placement of one lane: one chunk a rank, several in a loop, a V, waves."""


def grid_form(plan: Plan, *, model: Model) -> tuple[Grid, Table | None] | None:
    """The grid whose stages are the plan's, and the plan's own table if it has one; None if there
    is no such grid.

    A table says the order; where its stages are, the grid's schedule says, which is any that puts
    chunks there.
    """
    found = grid_of(plan, model=model)
    if found is not None:
        return found, None
    table = plan.orders[0] if len(plan.orders) == 1 else None
    if not isinstance(table, Table):
        return None
    for name in PLACED:
        found = grid_of(
            replace(plan, orders=(Named(schedule=name, lanes=table.lanes),)), model=model
        )
        if found is not None:
            return found, table
    return None
