"""What a check of a strategy returns: broken rules as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule.

    Args:
        rule: its id, such as ``grid.devices``. message: one line with the numbers. hint: what to do.
        path: where in the plan, such as ``lane main / stage 3``; empty for a grid.
    """

    rule: str
    message: str
    hint: str = ""
    path: str = ""
