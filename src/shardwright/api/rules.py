"""Checks that a strategy is legal for a problem, with the runtime's rules."""

from __future__ import annotations

from shardwright.program.legal import grid_violations, plan_violations
from shardwright.program.problem import Problem
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.violation import raise_first


def check_grid(problem: Problem, grid: Grid) -> None:
    """Raise the first rule that `grid` breaks for `problem`, with those of the schedule and the
    runtime.
    """
    raise_first(grid_violations(problem, grid))


def check_plan(problem: Problem, plan: Plan) -> None:
    """Raise the first rule that `plan` breaks for `problem`, with those of the runtime; deadlock of
    its orders is not checked.
    """
    raise_first(plan_violations(problem, plan))
