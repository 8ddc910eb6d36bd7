"""The area of a chart as static SVG: its labelled axes, and a drawing whose units are thousandths.

The area is as wide as the page. The drawing is stretched to it, while text and lines keep their
size, so labels can be read on any screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.markup.sentences_with_json_values import require_no_digits
from shardwright.report.page.markup.value_at_json_pointer import value_at

UNITS: Final = 1000.0
"""Width and height of the drawing in its own units."""


@dataclass(frozen=True, slots=True)
class PlotArea:
    """SVG elements of a chart: `labels` takes percentages of the area, `drawing` its own units."""

    labels: Element
    drawing: Element


def append_plot_area(parent: Element, *, height: int, description: str) -> PlotArea:
    """Append an empty chart of `height` pixels; returns its two layers.

    Args:
        description: words for readers that do not see the chart.
    """
    svg = SubElement(
        parent,
        "svg",
        {"class": "plot", "role": "img", "aria-label": description, "height": str(height)},
    )
    # The style sheet pads the picture for the labels, and the inner pictures fill what is left.
    inner = {"width": "100%", "height": "100%"}
    stretched = {"viewBox": f"0 0 {UNITS:g} {UNITS:g}", "preserveAspectRatio": "none"}
    return PlotArea(SubElement(svg, "svg", inner), SubElement(svg, "svg", inner | stretched))


def append_vertical_axis(
    area: PlotArea, report_json: Any, pointer: str, *, places: Sequence[float]
) -> None:
    """Append name, ticks, grid lines of the axis at a JSON pointer; `places`: fractions of height.

    Args:
        places: height of each tick above the lower edge, as a fraction of the area.
    """
    _append_axis_name(area, report_json, f"{pointer}/name", {"x": "-60", "y": "-10"})
    for number, place in enumerate(places):
        level = f"{100.0 * (1.0 - place):.2f}%"
        SubElement(
            area.labels,
            "line",
            {"class": "grid", "x1": "0", "x2": "100%", "y1": level, "y2": level},
        )
        style = {"x": "-6", "y": level, "dy": "4", "text-anchor": "end"}
        form = value_at(report_json, f"{pointer}/form")
        append_value(area.labels, report_json, f"{pointer}/ticks/{number}", form, style)


def append_horizontal_axis(
    area: PlotArea, report_json: Any, pointer: str, *, places: Sequence[float]
) -> None:
    """Append name and ticks of the axis at a JSON pointer; `places`: fractions of the width.

    Args:
        places: distance of each tick from the left edge, as a fraction of the area.
    """
    for number, place in enumerate(places):
        anchor = "start" if place < 0.02 else "end" if place > 0.98 else "middle"
        style = {"x": f"{100.0 * place:.2f}%", "y": "100%", "dy": "16", "text-anchor": anchor}
        form = value_at(report_json, f"{pointer}/form")
        append_value(area.labels, report_json, f"{pointer}/ticks/{number}", form, style)
    style = {"x": "100%", "y": "100%", "dy": "32", "text-anchor": "end"}
    _append_axis_name(area, report_json, f"{pointer}/name", style)


def append_value(
    parent: Element, report_json: Any, pointer: str, form: str, attributes: dict[str, str]
) -> None:
    """Append the SVG text of the JSON value at a pointer, in a number format."""
    label = SubElement(parent, "text", {"data-leaf": pointer, "data-form": form, **attributes})
    label.text = formatted(value_at(report_json, pointer), form)


def append_line_label(area: PlotArea, words: str, *, place: float) -> None:
    """Append words at the right edge beside a horizontal line at a fraction of the height.

    They are above the line, and below it near the upper edge.
    """
    distance = "14" if place > 0.9 else "-4"
    level = f"{100.0 * (1.0 - place):.2f}%"
    style = {"x": "100%", "y": level, "dy": distance, "text-anchor": "end"}
    SubElement(area.labels, "text", style).text = require_no_digits(words)


def _append_axis_name(
    area: PlotArea, report_json: Any, pointer: str, attributes: dict[str, str]
) -> None:
    """Append the name of the axis at a JSON pointer, in the colour of notes."""
    style = {"class": "axis-name", "data-leaf": pointer, "data-form": "text", **attributes}
    SubElement(area.labels, "text", style).text = formatted(value_at(report_json, pointer), "text")
