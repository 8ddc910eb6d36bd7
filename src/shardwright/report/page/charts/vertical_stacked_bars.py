"""Vertical bars divided into items, each with a line at its limit, as static SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.charts.line_chart import places_on_axis
from shardwright.report.page.charts.plot_area import (
    UNITS,
    append_plot_area,
    append_value,
    append_vertical_axis,
)
from shardwright.report.page.charts.series_legend import append_line_entry, append_swatch_entry
from shardwright.report.page.markup.series_swatch import series_class
from shardwright.report.page.markup.value_at_json_pointer import value_at

HEIGHT: Final = 300
"""Height in pixels, with axes."""
MOST_LABELS: Final = 6
"""Most bars whose names are written below, so that they do not touch on a phone."""
_WIDEST: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedBar:
    """One bar.

    Args:
        name: JSON pointer of its name.
        sizes: values of its items from below, in the unit of the axis.
        limit: value of the line across it.
    """

    name: str
    sizes: Sequence[float]
    limit: float


def append_stacked_bars(
    parent: Element,
    report_json: Any,
    axis_pointer: str,
    bars: Sequence[StackedBar],
    *,
    items: Sequence[str],
    limit_name: str,
    description: str,
) -> None:
    """Append stacked bars over the axis at a pointer; `items`: JSON pointers to the names of parts.

    Args:
        items: JSON pointers of the names of the items, whose colours are the series'.
        limit_name: words for the lines across the bars.
        description: words for readers that do not see the chart.
    """
    figure = SubElement(parent, "figure")
    area = append_plot_area(figure, height=HEIGHT, description=description)
    axis = value_at(report_json, axis_pointer)
    append_vertical_axis(
        area, report_json, axis_pointer, places=places_on_axis(axis, axis["ticks"])
    )
    slot = UNITS / len(bars)
    width = min(0.7 * slot, _WIDEST)
    stride = -(-len(bars) // MOST_LABELS)
    for number, bar in enumerate(bars):
        middle = (number + 0.5) * slot
        _append_bar(area.drawing, axis, bar, left=middle - width / 2, width=width, slot=slot)
        if number % stride == 0:
            style = {"x": f"{middle / 10:.2f}%", "y": "100%", "dy": "16", "text-anchor": "middle"}
            append_value(area.labels, report_json, bar.name, "text", style)
    legend = SubElement(figure, "figcaption", {"class": "legend"})
    for number, pointer in enumerate(items):
        append_swatch_entry(legend, report_json, pointer, number=number)
    append_line_entry(legend, limit_name, style="limit-swatch")


def _append_bar(
    drawing: Element, axis_json: Any, bar: StackedBar, *, left: float, width: float, slot: float
) -> None:
    """Append a bar's stacked rectangles and its limit line as wide as `slot`; in drawing units."""
    level = 0.0
    for number, size in enumerate(bar.sizes):
        bottom, top = places_on_axis(axis_json, [level, level + size])
        level += size
        if size:
            place = {
                "x": f"{left:.2f}",
                "y": f"{UNITS * (1 - top):.2f}",
                "width": f"{width:.2f}",
                "height": f"{UNITS * (top - bottom):.2f}",
            }
            SubElement(drawing, "rect", place | {"class": series_class(number)})
    height = f"{UNITS * (1 - places_on_axis(axis_json, [bar.limit])[0]):.2f}"
    middle = left + width / 2
    ends = {"x1": f"{middle - slot / 2:.2f}", "x2": f"{middle + slot / 2:.2f}"}
    SubElement(drawing, "line", {"class": "limit", "y1": height, "y2": height} | ends)
