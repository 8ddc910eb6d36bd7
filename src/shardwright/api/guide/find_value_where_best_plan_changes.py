"""Find where the best plan changes along an axis: two plans on either side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from shardwright.api.guide.break_even_axis_units import BREAK_EVEN_AXES
from shardwright.api.searches.bisect_change_of_best_plan import bisect_change
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    BreakEven,
    BreakEvenSide,
    GuidePlan,
)

Plan = TypeVar("Plan")
"""Type of the plans that a question compares: a searched plan or a simulated deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenQuestion(Generic[Plan]):
    """Question where along an axis the best plan gets or loses a property.

    Args:
        axis: name of the axis, of `BREAK_EVEN_AXES`.
        values: whole numbers in ascending order, in the unit of the axis.
        plan_at: the best plan at a value of the axis, searched or simulated.
        has: the property of a plan.
        change: the property in words.
    """

    axis: str
    values: tuple[int, ...]
    plan_at: Callable[[int], Plan]
    has: Callable[[Plan], bool]
    change: str


def find_break_even(
    question: BreakEvenQuestion[Plan],
    *,
    contents: Callable[[Plan], GuidePlan],
    is_late: Callable[[], bool] = lambda: False,
) -> BreakEven:
    """Neighbouring values between which a property of plans changes, or the end where it does not.

    The ends are examined first. The property may come and go in between; then this is one of its
    changes.

    Args:
        contents: contents of the guide for a plan.
        is_late: True after the time limit, which ends the bisection.
    """
    values, change = question.values, question.change
    text, last = BREAK_EVEN_AXES[question.axis].text, len(values) - 1

    def has(value: int) -> bool:
        """True if the best plan at a value has the property."""
        return question.has(question.plan_at(value))

    def middle_of(low: int, high: int) -> int | None:
        """Number of the value in the middle; None between neighbours or after the time limit."""
        return None if high - low < 2 or is_late() else (low + high) // 2

    at_first, at_last = has(values[0]), has(values[last])
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
        axis=question.axis,
        unit=BREAK_EVEN_AXES[question.axis].unit,
        change=change,
        sides=tuple(
            BreakEvenSide(value=value, has=has(value), plan=contents(question.plan_at(value)))
            for value in (values[place] for place in places)
        ),
        sentence=sentence,
    )
