"""Text plot of the plans on the time-cost Pareto front, with the proven lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

from rich.text import Text

from shardwright.report.terminal_line_wrapping import without_wrapping
from shardwright.search.mixed_cluster_certificate import FrontPoint
from shardwright.units import format_dollars, format_seconds

WIDTH: Final = 64
HEIGHT: Final = 14
BOUND: Final = "·"
AXIS: Final = 12
"""Characters of the axis labels on the left."""


def front_picture(front: Sequence[FrontPoint]) -> Text:
    """Plot plans (digits) by log seconds and dollars, with the lower bound of the cost as dots.

    Seconds run to the right, dollars upwards.
    """
    low, high = min(point.lower_bound for point in front), max(point.value for point in front)
    rows = [[" "] * WIDTH for _ in range(HEIGHT)]
    for column in range(WIDTH):
        bound = _bound_at(front, column)
        rows[_row(bound, low, high)][column] = BOUND
    for number, point in enumerate(front, start=1):
        rows[_row(point.value, low, high)][_column(point.step_time_s, front)] = _digit(number)
    marks = {0: format_dollars(high), HEIGHT - 1: format_dollars(low)}
    lines = [
        f"{marks.get(row, ''):>{AXIS}} │{''.join(cells).rstrip()}" for row, cells in enumerate(rows)
    ]
    first, last = (format_seconds(point.step_time_s) for point in (front[0], front[-1]))
    ends = f"{first}{last:>{WIDTH - len(first)}}" if len(front) > 1 else first
    return without_wrapping(
        Text("\n".join([*lines, f"{'':>{AXIS}} └{'─' * WIDTH}", f"{'':>{AXIS}}  {ends}"]))
    )


def _digit(number: int) -> str:
    """Character of a plan's number: 1 to 9, then a to z."""
    return "123456789abcdefghijklmnopqrstuvwxyz"[min(number, 35) - 1]


def _row(value: float, low: float, high: float) -> int:
    """Line of a value between `low` (bottom) and `high` (top line, 0) in the plot."""
    return round((high - value) / (high - low) * (HEIGHT - 1)) if high > low else HEIGHT - 1


def _column(seconds: float, front: Sequence[FrontPoint]) -> int:
    """Column of a step time in the plot, on a logarithmic scale."""
    first, last = front[0].step_time_s, front[-1].step_time_s
    return round(log(seconds / first) / log(last / first) * (WIDTH - 1)) if last > first else 0


def _bound_at(front: Sequence[FrontPoint], column: int) -> float:
    """Lower bound of cost at a column: that of the first front point at or right of the column.

    The next point of the front has this bound, for later times as well.
    """
    return next(
        (point.lower_bound for point in front if _column(point.step_time_s, front) >= column),
        front[-1].lower_bound,
    )
