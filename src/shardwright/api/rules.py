"""Checks that a strategy is legal for a problem, with the runtime's rules."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import StrategyError
from shardwright.program.legal import grid_violations, plan_violations
from shardwright.program.problem import Problem
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.violation import Violation


def check_grid(problem: Problem, grid: Grid) -> None:
    """Raise the first rule that `grid` breaks for `problem`, with those of the schedule and the
    runtime.
    """
    _raise_first(grid_violations(problem, grid))


def check_plan(problem: Problem, plan: Plan) -> None:
    """Raise the first rule that `plan` breaks for `problem`, with those of the runtime; deadlock of
    its orders is not checked.
    """
    _raise_first(plan_violations(problem, plan))


def _raise_first(violations: Iterator[Violation]) -> None:
    """Raise the first violation as a StrategyError, if there is one."""
    for broken in violations:
        raise StrategyError(broken.message, hint=broken.hint, rule=broken.rule, path=broken.path)
