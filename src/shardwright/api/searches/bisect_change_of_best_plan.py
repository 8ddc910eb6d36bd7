"""Bisection for the place on an axis of searched positions where the best plan changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Position = TypeVar("Position")


def bisect_change(
    low: Position,
    high: Position,
    *,
    middle_of: Callable[[Position, Position], Position | None],
    is_changed: Callable[[Position], bool],
) -> tuple[Position, Position]:
    """Nearest two positions between which the best plan changes, as far as they are searched.

    Between `low` and `high` the plan may change more than once; this is one of the changes.

    Args:
        low, high: positions before and behind the change.
        middle_of: position between two positions; None ends the bisection.
        is_changed: True of a position behind the change.
    """
    while (middle := middle_of(low, high)) is not None:
        low, high = (low, middle) if is_changed(middle) else (middle, high)
    return low, high
