"""Whether a strategy is legal for a problem, the runtime's own rules included."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import StrategyError
from shardwright.program.problem import Problem
from shardwright.program.rule_violations import grid_violations, plan_violations
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.violation import Violation


def check_grid(problem: Problem, grid: Grid) -> None:
    """Raise the first rule that `grid` breaks for `problem`, the schedule's and the runtime's own
    included.
    """
    _raise_first(grid_violations(problem, grid))


def check_plan(problem: Problem, plan: Plan) -> None:
    """Raise the first rule that `plan` breaks for `problem`, the runtime's own included; not yet
    whether its orders can run.
    """
    _raise_first(plan_violations(problem, plan))


def _raise_first(found: Iterator[Violation]) -> None:
    for broken in found:
        raise StrategyError(broken.message, hint=broken.hint, rule=broken.rule, path=broken.path)
