"""Check of grids against the rules: the violations of one grid, and the legal rows of columns."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache, reduce
from types import FunctionType, SimpleNamespace
from typing import Any, cast

from shardwright.strategy.grid.chunk_placement_by_schedule import (
    GRID_SCHEDULES,
    WAVE,
    grid_schedule,
)
from shardwright.strategy.grid.expert_mesh import fold
from shardwright.strategy.grid.grid_rules import GENERAL_RULES, RULES, SCHEDULES, GridFacts
from shardwright.strategy.grid.layers_per_chunk import chunks_of, largest_chunk, unlike_stages
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.rule_violations import GridRule, Violation, raise_first


def _values_of_grid(grid: Grid, facts: GridFacts) -> SimpleNamespace:
    """Values that the rules read for one grid: its fields and the counts derived from them."""
    layout = grid_schedule(grid.schedule)
    return SimpleNamespace(
        **{name: getattr(grid, name) for name in (*Grid.__slots__, "devices", "ring", "edp")},
        largest=largest_chunk(grid, layers=facts.layers),
        unlike=unlike_stages(grid, layers=facts.layers),
        chunks=chunks_of(grid, layers=facts.layers),
        folds=grid.ep == grid.etp == 1 or fold(grid) is not None,
        searched=grid.schedule in SCHEDULES,
        interleaved=SCHEDULES.get(grid.schedule, False),
        is_1f1b=grid.schedule == "1f1b",
        known=grid.schedule in GRID_SCHEDULES,
        wave=layout.placement == WAVE,
        lanes=layout.lanes,
    )


@cache
def _readable(known: frozenset[str], judged: frozenset[str]) -> tuple[GridRule, ...]:
    """Rules that read only the `known` columns, without rules that read only `judged` columns."""
    facts = frozenset(field.name for field in fields(GridFacts))
    reads = [
        (rule, frozenset(cast(FunctionType, rule.holds).__code__.co_names) - facts)
        for rule in RULES
    ]
    return tuple(rule for rule, names in reads if names <= known and not names <= judged)


def legal_rows(
    columns: Mapping[str, Any], facts: GridFacts, *, judged: Collection[str] = ()
) -> Any:
    """True for each row whose columns break no rule, shape (rows,); plain True if no rule applies.

    Only rules that read no other columns apply, without rules that read only `judged` columns.
    """
    row = SimpleNamespace(**columns)
    return reduce(
        operator.and_,
        (rule.holds(row, facts) for rule in _readable(frozenset(columns), frozenset(judged))),
        True,
    )


def violations(grid: Grid, *, facts: GridFacts, general: bool = False) -> tuple[Violation, ...]:
    """Rules that a grid breaks, () = none; `general`: schedules for plans alone are legal too.

    Args:
        general: schedules that only general plans are lowered with are legal too; the rules of the
            schedules are in `schedules.check_grid_schedule_exists.order_violations`.
    """
    row = _values_of_grid(grid, facts)
    broken_rules: list[Violation] = []
    for rule in GENERAL_RULES if general and not row.searched else RULES:
        if not rule.holds(row, facts) and all(rule.after != broken.rule for broken in broken_rules):
            hint = rule.hint if isinstance(rule.hint, str) else rule.hint(row)
            broken_rules.append(
                Violation(rule=rule.rule, message=rule.message(row, facts), hint=hint)
            )
    return tuple(broken_rules)


def require_legal(grid: Grid, *, facts: GridFacts, general: bool = False) -> None:
    """Raise the first rule that a grid breaks, as a StrategyError; see `violations`.

    Raises:
        StrategyError: with the rule's id.
    """
    raise_first(violations(grid, facts=facts, general=general))
