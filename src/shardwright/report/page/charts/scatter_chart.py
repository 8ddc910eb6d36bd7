"""A scatter chart as static SVG, which the browser makes interactive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.line_chart import append_limit_line, places_on_axis
from shardwright.report.page.charts.plot_area import (
    UNITS,
    append_horizontal_axis,
    append_line_label,
    append_plot_area,
    append_vertical_axis,
)
from shardwright.report.page.charts.series_legend import append_line_entry, append_swatch_entry
from shardwright.report.page.markup.series_swatch import series_class
from shardwright.report.page.markup.value_at_json_pointer import value_at

HEIGHT: Final = 420
"""Height in pixels, with axes."""


def append_scatter_chart(
    parent: Element,
    report_json: Any,
    pointer: str,
    *,
    description: str,
    limit: str = "",
    line: str = "",
    shared: str = "",
    notations: str = "",
) -> None:
    """Append the scatter chart at a pointer; `limit`, `line`: words; the others: pointers.

    The script ``scatter.js`` replaces the picture with an interactive one of the same data, and
    adds a list of all points. The tables of the view have the points that matter.

    Args:
        description: words for readers that do not see the chart.
        limit: words beside the dashed line.
        line: words of the legend that name the line; empty where there is none.
        shared: JSON pointer of words that belong to the label of each point; empty = none.
        notations: JSON pointer of a list whose object `k` has the ``notation`` of point `k`, which
            the browser shows below the chart; empty = none.
    """
    chart = value_at(report_json, pointer)
    view, _, name = pointer.rpartition("/")
    attributes = {"data-chart": "scatter", "data-source": view, "data-name": name}
    attributes |= {"data-shared": shared, "data-limit": limit}
    attributes |= {"data-notations": notations} if notations else {}
    figure = SubElement(parent, "figure", attributes)
    area = append_plot_area(figure, height=HEIGHT, description=description)
    x, y, points = chart["x"], chart["y"], chart["points"]
    append_vertical_axis(area, report_json, f"{pointer}/y", places=places_on_axis(y, y["ticks"]))
    append_horizontal_axis(area, report_json, f"{pointer}/x", places=places_on_axis(x, x["ticks"]))
    across, heights = places_on_axis(x, points["x"]), places_on_axis(y, points["y"])
    for number, group in enumerate(chart["groups"]):
        places = [place for place, of in enumerate(points["group"]) if of == number]
        style = f"points {series_class(group['series'])}{' solid' if group['solid'] else ''}"
        dots = "".join(f"{_place(across[place], heights[place])}h0" for place in places)
        if dots:
            SubElement(area.drawing, "path", {"class": style, "d": dots})
    if chart["line"]:
        corners = places_on_axis(x, [corner[0] for corner in chart["line"]])
        levels = places_on_axis(y, [corner[1] for corner in chart["line"]])
        SubElement(
            area.drawing,
            "path",
            {
                "class": "front",
                "d": "".join(_places(corners, levels)).replace("M", "L").replace("L", "M", 1),
            },
        )
    if chart["limit"] is not None:
        level = places_on_axis(y, [chart["limit"]])[0]
        append_limit_line(area.drawing, level=level)
        append_line_label(area, limit, place=level)
    _append_legend(figure, report_json, pointer, line=line)
    SubElement(
        SubElement(figure, "noscript"), "p", {"class": "note"}
    ).text = (
        "With JavaScript, the values of all marks are listed here; the option --json prints them."
    )


def _places(across: Sequence[float], heights: Iterable[float]) -> list[str]:
    """Path commands that move to each of some points."""
    return [_place(left, height) for left, height in zip(across, heights, strict=True)]


def _place(left: float, height: float) -> str:
    """SVG command "M x y" of a point in fractions of the drawing from its left and lower edges."""
    return f"M{UNITS * left:.0f} {UNITS * (1.0 - height):.0f}"


def _append_legend(figure: Element, report_json: Any, pointer: str, *, line: str) -> None:
    """Append a swatch and a name for each group that has points, and for the line."""
    chart = value_at(report_json, pointer)
    legend = SubElement(figure, "figcaption", {"class": "legend"})
    present = set(chart["points"]["group"])
    for number, group in enumerate(chart["groups"]):
        if number in present:
            name = f"{pointer}/groups/{number}/name"
            append_swatch_entry(legend, report_json, name, number=group["series"])
    if line and chart["line"]:
        append_line_entry(legend, line, style="front-swatch")
