"""Rules of a legal strategy, and the violations that a check returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A rule that a strategy breaks.

    Args:
        rule: the rule's id, such as ``grid.devices``.
        message: one line with the numbers.
        hint: advice to the user.
        path: place in the plan, such as ``lane main / stage 3``; empty for a grid.
    """

    rule: str
    message: str
    hint: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRule:
    """A condition that every legal grid meets.

    Args:
        rule: the rule's id, such as ``grid.devices``.
        holds: (grid, facts) -> True if the grid keeps the rule. The search calls it with columns in
            place of the grid's numbers and gets a column, so it has no `if`, `and`, `or`, `not`.
        message, hint: texts for a grid that breaks the rule.
        after: id of another rule; while that rule is broken, this one is not reported.
    """

    rule: str
    holds: Callable[[Any, Any], Any]
    message: Callable[[Any, Any], str]
    hint: str | Callable[[Any], str] = ""
    after: str = ""


def raise_first(violations: Iterable[Violation]) -> None:
    """Raise the first violation as a StrategyError; nothing if there is none."""
    for broken in violations:
        raise StrategyError(broken.message, hint=broken.hint, rule=broken.rule, path=broken.path)
