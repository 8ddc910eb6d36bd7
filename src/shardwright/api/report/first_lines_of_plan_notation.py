"""The first lines of a plan's text in the general notation."""

from __future__ import annotations

from typing import Final

from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.print_plan import print_plan

MOST_LINES: Final = 60
"""Most shown lines; the table of a large pipeline's order has thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLines:
    """The first lines of a plan's text.

    Args:
        text: the lines; None where the notation cannot express a name of the plan.
        shown: number of these lines.
        lines: number of all lines.
    """

    text: str | None
    shown: int
    lines: int


def first_lines_of_notation(
    plan: Plan, *, name: str = "plan", most: int = MOST_LINES
) -> FirstLines:
    """The first `most` lines of a plan's text; none where the notation cannot express a name.

    Args:
        name: name of the plan in its first line.
    """
    try:
        lines = print_plan(plan, name=name).splitlines()
    except StrategyError:
        lines = []
    shown = lines[:most]
    return FirstLines(text="\n".join(shown) or None, shown=len(shown), lines=len(lines))
