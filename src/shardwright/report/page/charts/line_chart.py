"""A line chart as static SVG, which the browser makes interactive, with its table of values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.plot_area import (
    UNITS,
    append_horizontal_axis,
    append_line_label,
    append_plot_area,
    append_vertical_axis,
)
from shardwright.report.page.charts.series_legend import append_legend
from shardwright.report.page.markup.series_swatch import series_class
from shardwright.report.page.markup.value_at_json_pointer import value_at
from shardwright.report.page.markup.value_tables import ArrayColumn, append_array_table

HEIGHT: Final = 300
"""Height in pixels, with axes."""


def append_line_chart(
    parent: Element, report_json: Any, pointer: str, *, description: str, height: int = HEIGHT
) -> None:
    """Append the line chart whose data (`line_chart_data.LineChart`) is at a pointer.

    The script ``line_chart.js`` replaces the picture with an interactive one of the same data.
    Series `k` has the colour ``--series-k``.

    Args:
        description: words for readers that do not see the chart.
    """
    chart = value_at(report_json, pointer)
    attributes = {"data-chart": "line", "data-source": pointer}
    figure = SubElement(parent, "figure", attributes)
    area = append_plot_area(figure, height=height, description=description)
    x, y = chart["x"], chart["y"]
    append_vertical_axis(area, report_json, f"{pointer}/y", places=places_on_axis(y, y["ticks"]))
    append_horizontal_axis(area, report_json, f"{pointer}/x", places=places_on_axis(x, x["ticks"]))
    across = places_on_axis(x, x["values"])
    for number, series in enumerate(chart["series"]):
        for run in _runs(series["values"]):
            heights = places_on_axis(y, [series["values"][place] for place in run])
            line = list(zip([across[place] for place in run], heights, strict=True))
            _append_line(area.drawing, _stairs(line) if chart["steps"] else line, number=number)
    if chart["capacity"] is not None:
        level = places_on_axis(y, [chart["capacity"]])[0]
        append_limit_line(area.drawing, level=level)
        append_line_label(area, "capacity", place=level)
    for place in places_on_axis(x, chart["marks"]):
        append_mark(area.drawing, place=place)
    append_legend(
        figure,
        report_json,
        [f"{pointer}/series/{k}/name" for k in range(len(chart["series"]))],
        marks_name=f"{pointer}/marks_name" if chart["marks"] else "",
    )


def append_line_table(parent: Element, report_json: Any, pointer: str, *, caption: str) -> Element:
    """Append the table of a line chart: a row for each position, a column for each series."""
    chart = value_at(report_json, pointer)
    columns = [
        ArrayColumn(
            values=f"{pointer}/x/values", heading=f"{pointer}/x/name", form=chart["x"]["form"]
        ),
        *(
            ArrayColumn(
                values=f"{pointer}/series/{number}/values",
                heading=f"{pointer}/series/{number}/name",
                form=chart["y"]["form"],
                colour=number,
            )
            for number in range(len(chart["series"]))
        ),
    ]
    return append_array_table(parent, report_json, columns, caption=caption)


def places_on_axis(axis_json: Any, values: Sequence[float]) -> list[float]:
    """Places of values on an axis, as fractions of its length; 0 is its first tick, 1 its last."""
    first, last = axis_json["ticks"][0], axis_json["ticks"][-1]
    if axis_json["logarithmic"]:
        return [log(value / first) / log(last / first) for value in values]
    return [(value - first) / (last - first) for value in values]


def append_limit_line(drawing: Element, *, level: float) -> None:
    """Append a dashed horizontal line at `level` above the lower edge, a fraction of the height."""
    height = f"{UNITS * (1.0 - level):.2f}"
    SubElement(
        drawing,
        "line",
        {"class": "limit", "x1": "0", "x2": f"{UNITS:g}", "y1": height, "y2": height},
    )


def append_mark(drawing: Element, *, place: float) -> None:
    """Append a dotted vertical line at `place` from the left edge, a fraction of the width."""
    across = f"{UNITS * place:.2f}"
    SubElement(
        drawing,
        "line",
        {"class": "mark", "x1": across, "x2": across, "y1": "0", "y2": f"{UNITS:g}"},
    )


def _runs(values: Sequence[float | None]) -> list[list[int]]:
    """Indices of the values that are not None, one list for each unbroken run."""
    runs: list[list[int]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(place)
    return [run for run in runs if run]


def _stairs(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a line whose value holds until the next position."""
    corners = [
        corner
        for (_, height), (right, following) in pairwise(line)
        for corner in ((right, height), (right, following))
    ]
    return [line[0], *corners]


def _append_line(drawing: Element, line: Sequence[tuple[float, float]], *, number: int) -> None:
    """Append the line through points that are given as fractions of the drawing."""
    if len(line) == 1:
        line = [line[0], line[0]]
    points = " ".join(f"{UNITS * across:.1f},{UNITS * (1.0 - up):.1f}" for across, up in line)
    SubElement(drawing, "polyline", {"class": f"line {series_class(number)}", "points": points})
