"""Find by searches where the best plan changes along an axis: two plans on either side."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.guide_rule import BreakEvenQuestion
from shardwright.api.guide.search_cached_plans import BestPlan, PlanSearches, searched_plan
from shardwright.report.page.view_data.guide_rules_and_verdicts import BreakEven

UNITS: Final = {
    "sequence length": "tokens",
    "global batch": "sequences a step",
    "devices": "devices",
}


def find_break_even(question: BreakEvenQuestion, searches: PlanSearches) -> BreakEven:
    """Neighbouring values between which the best plan gets a property, or the end that decides.

    The ends are searched first. The property may come and go in between; then this is one of its
    changes. A value at which nothing fits does not have the property.
    """

    def plan_at(value: int) -> BestPlan:
        return searches.best(question.request_at(value))

    def has(value: int) -> bool:
        grid = plan_at(value).grid
        return grid is not None and question.has(grid)

    low, high = 0, len(question.values) - 1
    first, last = question.values[low], question.values[high]
    if has(first) or not has(last):
        everywhere = has(first)
        return BreakEven(
            axis=question.axis,
            change=question.change,
            below=None if everywhere else last,
            above=first if everywhere else None,
            plan_below=None if everywhere else searched_plan(plan_at(last)),
            plan_above=searched_plan(plan_at(first)) if everywhere else None,
            sentence=_one_sided_sentence(question, everywhere=everywhere),
        )
    while high - low > 1 and not searches.is_late:
        middle = (low + high) // 2
        low, high = (low, middle) if has(question.values[middle]) else (middle, high)
    below, above = question.values[low], question.values[high]
    unit = UNITS[question.axis]
    return BreakEven(
        axis=question.axis,
        change=question.change,
        below=below,
        above=above,
        plan_below=searched_plan(plan_at(below)),
        plan_above=searched_plan(plan_at(above)),
        sentence=f"{question.change} from {above:,} {unit} on, and not at {below:,}.",
    )


def _one_sided_sentence(question: BreakEvenQuestion, *, everywhere: bool) -> str:
    """The sentence where one end of the axis already decides."""
    first, last = question.values[0], question.values[-1]
    unit = UNITS[question.axis]
    if everywhere:
        return f"{question.change} already at {first:,} {unit}."
    return f"{question.change}: at no searched value up to {last:,} {unit}."
