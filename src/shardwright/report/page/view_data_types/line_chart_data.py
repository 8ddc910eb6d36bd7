"""Data of a line chart: values of its two axes with round ticks, and one series for each line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from math import ceil, floor, log, log10
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

MOST_TICKS: Final = 6
"""Most ticks of an axis, so that their labels have room on a narrow screen."""
_BINARY_FORM: Final = "bytes"
"""Format whose round numbers are multiples of powers of two, as it shows binary units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """An axis that reaches from its first tick to its last.

    Args:
        name: quantity in words.
        form: format of its numbers, a name of `markup.number_formats.FORMATS`.
        ticks: ascending values that are labelled.
        values: of the horizontal axis, the ascending position of each point of the series; empty
            for a vertical axis.
        logarithmic: True = equal distances are equal ratios; all values are positive.
    """

    name: str
    form: str
    ticks: tuple[float, ...]
    values: tuple[float, ...] = ()
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """One line: its name, and a value for each position of the horizontal axis (None = a gap)."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A line chart.

    Args:
        steps: True = a value holds until the next position; False = straight lines between points.
        capacity: value of the horizontal line that no series may exceed; None = no such line.
        marks: values of the horizontal axis with a vertical line.
        marks_name: what happens there, for the legend; empty = no marks.
    """

    x: ChartAxis
    y: ChartAxis
    series: tuple[ChartSeries, ...]
    steps: bool = False
    capacity: float | None = None
    marks: tuple[float, ...] = ()
    marks_name: str = ""


def round_ticks(
    values: Sequence[float], *, form: str = "number", most: int = MOST_TICKS
) -> tuple[float, ...]:
    """At most `most` round numbers at equal steps that enclose `values`; binary steps for bytes.

    The distance is 1, 2, 2.5 or 5 times a power of ten; of bytes a power of two. If all values are
    equal, two ticks or more surround them.

    Args:
        values: at least one finite number.
        form: format of the numbers: ``bytes`` makes numbers round in binary units.
        most: most ticks, at least 3.
    """
    low, high = min(values), max(values)
    spread = (high - low) or abs(high) or 1.0
    step = next(
        step
        for step in _round_distances(spread / most, binary=form == _BINARY_FORM)
        if ceil(high / step) - floor(low / step) < most
    )
    first, last = floor(low / step), ceil(high / step)
    return tuple(
        float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)
    )


def _round_distances(least: float, *, binary: bool) -> Iterator[float]:
    """Yield powers of two, or 1, 2, 2.5 and 5 times powers of ten, ascending from below `least`."""
    if binary:
        yield from (2.0**power for power in count(floor(log(least, 2.0))))
    for power in count(floor(log10(least))):
        yield from (factor * 10.0**power for factor in (1.0, 2.0, 2.5, 5.0))


def round_ticks_of_ratios(values: Sequence[float], *, most: int = MOST_TICKS) -> tuple[float, ...]:
    """Powers of two in equal ratios that enclose positive `values`, for a logarithmic axis."""
    low, high = floor(log(min(values), 2.0)), ceil(log(max(values), 2.0))
    stride = max(ceil((high - low) / (most - 1)), 1)
    exponents = takewhile(lambda exponent: exponent < high + stride, count(low, stride))
    ticks = tuple(2.0**exponent for exponent in exponents)
    return ticks if len(ticks) > 1 else (*ticks, ticks[0] * 2.0)
