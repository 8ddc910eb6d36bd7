"""Raise the first rule that a strategy breaks, including the rules of the runtime."""

from __future__ import annotations

from shardwright.program.strategy_rule_violations import grid_violations, plan_violations
from shardwright.program.training_problem import Problem
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.rule_violations import raise_first


def check_grid(problem: Problem, grid: Grid) -> None:
    """Raise the first rule that `grid` breaks for `problem`, also of its schedule and runtime."""
    raise_first(grid_violations(problem, grid))


def check_plan(problem: Problem, plan: Plan) -> None:
    """Raise the first rule that `plan` breaks for `problem`, including runtime rules.

    Whether its schedules can run without deadlock is not checked.
    """
    raise_first(plan_violations(problem, plan))
