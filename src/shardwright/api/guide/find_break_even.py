"""Find by searches where the best plan changes along an axis: two plans on either side."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.guide_rule import BreakEvenQuestion
from shardwright.api.guide.search_cached_plans import BestPlan, PlanSearches, searched_plan
from shardwright.api.searches.bisect_change_of_best_plan import bisect_change
from shardwright.report.page.view_data.guide_rules_and_verdicts import BreakEven

UNITS: Final = {
    "sequence length": "tokens",
    "global batch": "sequences a step",
    "devices": "devices",
}


def find_break_even(question: BreakEvenQuestion, searches: PlanSearches) -> BreakEven:
    """Bisect for neighbouring values where the best plan gains a property; one None at an end.

    The ends are searched first. The property may come and go in between; then this is one of its
    changes. A value at which nothing fits does not have the property.
    """
    values, unit = question.values, UNITS[question.axis]

    def plan_at(place: int) -> BestPlan:
        """The best plan at the value number `place`."""
        return searches.best(question.request_at(values[place]))

    def has(place: int) -> bool:
        """True if the best plan at the value number `place` has the property."""
        grid = plan_at(place).grid
        return grid is not None and question.has(grid)

    def middle_of(low: int, high: int) -> int | None:
        """Number of the value in the middle; None between neighbours or after the time limit."""
        return None if high - low < 2 or searches.is_late else (low + high) // 2

    below: int | None = None
    above: int | None = None
    last = len(values) - 1
    if has(0):
        above = 0
        sentence = f"{question.change} already at {values[0]:,} {unit}."
    elif not has(last):
        below = last
        sentence = f"{question.change}: at no searched value up to {values[last]:,} {unit}."
    else:
        low, high = bisect_change(0, last, middle_of=middle_of, is_changed=has)
        sentence = f"{question.change} from {values[high]:,} {unit} on, and not at {values[low]:,}."
        below, above = low, high
    return BreakEven(
        axis=question.axis,
        change=question.change,
        below=None if below is None else values[below],
        above=None if above is None else values[above],
        plan_below=None if below is None else searched_plan(plan_at(below)),
        plan_above=None if above is None else searched_plan(plan_at(above)),
        sentence=sentence,
    )
