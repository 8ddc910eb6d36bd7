"""Find where the best plan changes along an axis: two plans on either side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwright.api.guide.best_plan_of_request import BestPlan, searched_plan
from shardwright.api.guide.break_even_axes import BREAK_EVEN_AXES
from shardwright.api.guide.guide_rule_and_advice_classes import BreakEvenQuestion
from shardwright.api.searches.bisect_change_of_best_plan import bisect_change
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    BreakEven,
    BreakEvenSide,
    GuidePlan,
)
from shardwright.search.search_request import Request


def find_break_even(
    question: BreakEvenQuestion,
    *,
    search: Callable[[Request], BestPlan],
    is_late: Callable[[], bool] = lambda: False,
) -> BreakEven:
    """Bisect for neighbouring values where the best searched plan gains or loses a property.

    A value at which nothing fits does not have the property.

    Args:
        search: function that finds the best plan of a request.
        is_late: True after the time limit, which ends the bisection.
    """

    def best_at(value: int) -> BestPlan:
        """The best plan at a value of the axis."""
        return search(question.request_at(value))

    def has(value: int) -> bool:
        """True if the best plan at a value has the property."""
        grid = best_at(value).grid
        return grid is not None and question.has(grid)

    return bisect_break_even(
        question.axis,
        question.values,
        question.change,
        has=has,
        plan_at=lambda value: searched_plan(best_at(value)),
        is_late=is_late,
    )


def bisect_break_even(
    axis: str,
    values: Sequence[int],
    change: str,
    *,
    has: Callable[[int], bool],
    plan_at: Callable[[int], GuidePlan],
    is_late: Callable[[], bool],
) -> BreakEven:
    """Neighbouring values between which a property of plans changes, or the end where it does not.

    The ends are examined first. The property may come and go in between; then this is one of its
    changes.

    Args:
        axis: name of the axis, of `BREAK_EVEN_AXES`.
        values: values in ascending order.
        change: the property in words.
        has: True of a value whose plan has the property.
        plan_at: contents of the guide for the plan at a value.
        is_late: True after the time limit, which ends the bisection.
    """
    text, last = BREAK_EVEN_AXES[axis].text, len(values) - 1
    at_first, at_last = has(values[0]), has(values[last])

    def middle_of(low: int, high: int) -> int | None:
        """Number of the value in the middle; None between neighbours or after the time limit."""
        return None if high - low < 2 or is_late() else (low + high) // 2

    places: tuple[int, ...]
    if at_first and at_last:
        places = (0,)
        sentence = f"{change} already at {text(values[0])}."
    elif not (at_first or at_last):
        places = (last,)
        sentence = f"{change}: at no searched value up to {text(values[last])}."
    else:
        places = bisect_change(
            0, last, middle_of=middle_of, is_changed=lambda place: has(values[place]) is at_last
        )
        below, above = (values[place] for place in places)
        sentence = (
            f"{change} from {text(above)} on, and not at {text(below)}."
            if at_last
            else f"{change} up to {text(below)}, and not at {text(above)}."
        )
    return BreakEven(
        axis=axis,
        unit=BREAK_EVEN_AXES[axis].unit,
        change=change,
        sides=tuple(
            BreakEvenSide(value=value, has=has(value), plan=plan_at(value))
            for value in (values[place] for place in places)
        ),
        sentence=sentence,
    )
