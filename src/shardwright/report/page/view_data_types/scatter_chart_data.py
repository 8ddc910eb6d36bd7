"""Data of a scatter chart: two axes, groups of points, and one list for each value of a point."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.line_chart_data import ChartAxis


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterGroup:
    """Points of one colour and shape.

    Args:
        name: what the points are, in words.
        series: number of the colour.
        solid: True = filled and large, False = small and pale.
    """

    name: str
    series: int
    solid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterPoints:
    """Points, a list for each value; entry `k` of all lists is one point.

    Args:
        x, y: values on the axes.
        label: words that name the point.
        group: place of its group in `ScatterChart.groups`.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    label: tuple[str, ...]
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterChart:
    """A scatter chart.

    Args:
        x, y: axes with ticks; their `values` are empty.
        groups: in the order in which they are drawn.
        line: (x, y) of the corners of a line through the chart; empty = no line.
        limit: value of `y` at the dashed horizontal line; None = no such line.
    """

    x: ChartAxis
    y: ChartAxis
    groups: tuple[ScatterGroup, ...]
    points: ScatterPoints
    line: tuple[tuple[float, float], ...] = ()
    limit: float | None = None


def corners_of_front(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Corners of the line that no point is below and left of, from the point of the least x."""
    corners: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not corners:
            corners.append((x, y))
        elif y < corners[-1][1]:
            corners += [(x, corners[-1][1]), (x, y)]
    return tuple(corners)
