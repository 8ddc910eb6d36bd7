"""Rules of strategies, and what a check returns: broken rules as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule.

    Args:
        rule: its id, such as ``grid.devices``.
        message: one line with the numbers.
        hint: what to do.
        path: where in the plan, such as ``lane main / stage 3``; empty for a grid.
    """

    rule: str
    message: str
    hint: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that a legal grid keeps.

    Args:
        rule: its id, such as ``grid.devices``.
        holds: whether a grid keeps it for what it is checked against; on columns in place of the
            grid's numbers, the column of that (so it has no `if`, `and`, `or`, `not` on them).
        message, hint: of a grid that breaks it.
        after: id of a rule that says enough where it is broken too.
    """

    rule: str
    holds: Callable[[Any, Any], Any]
    message: Callable[[Any, Any], str]
    hint: str | Callable[[Any], str] = ""
    after: str = ""
