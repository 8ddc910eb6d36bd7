"""The legend of a chart: a swatch in the colour of each series with its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.sentences_with_json_values import append_words, value_element
from shardwright.report.page.markup.series_swatch import append_swatch


def append_legend(
    parent: Element, report_json: Any, names: Sequence[str], *, marks_name: str = ""
) -> None:
    """Append a legend: a series for each JSON pointer to a name, and one of marks if `marks_name`.

    Args:
        names: JSON pointers of the series' names, in the order of their colours.
        marks_name: JSON pointer of the words for the vertical lines; empty = none.
    """
    legend = SubElement(parent, "figcaption", {"class": "legend"})
    for number, pointer in enumerate(names):
        append_swatch_entry(legend, report_json, pointer, number=number)
    if marks_name:
        value_element(append_line_entry(legend, style="mark-swatch"), report_json, marks_name)


def append_swatch_entry(legend: Element, report_json: Any, pointer: str, *, number: int) -> None:
    """Append the legend entry of series `number`, whose name is at a JSON pointer."""
    value_element(_append_colour_entry(legend, number=number), report_json, pointer)


def append_line_entry(legend: Element, name: str = "", *, style: str) -> Element:
    """Append the legend entry of a line, with its name; returns the entry.

    Args:
        style: class of the line's sample: ``front-swatch``, ``limit-swatch`` or ``mark-swatch``.
    """
    entry = SubElement(legend, "span", {"class": "legend-entry"})
    SubElement(entry, "span", {"class": f"swatch {style}", "aria-hidden": "true"})
    append_words(entry, name)
    return entry


def append_legend_words(parent: Element, entries: Sequence[tuple[int, str]]) -> None:
    """Append a legend of (colour of the series, words), for names that are not in the JSON."""
    legend = SubElement(parent, "p", {"class": "legend"})
    for number, words in entries:
        append_words(_append_colour_entry(legend, number=number), words)


def _append_colour_entry(legend: Element, *, number: int) -> Element:
    """Append a legend entry without name, in the colour of series `number`; returns it."""
    entry = SubElement(legend, "span", {"class": "legend-entry"})
    append_swatch(entry, number=number)
    return entry
