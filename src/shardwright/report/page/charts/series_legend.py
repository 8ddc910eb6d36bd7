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
        entry = SubElement(legend, "span", {"class": "legend-entry"})
        SubElement(entry, "span", {"class": "swatch mark-swatch", "aria-hidden": "true"})
        value_element(entry, report_json, marks_name)


def append_swatch_entry(legend: Element, report_json: Any, pointer: str, *, number: int) -> None:
    """Append the legend entry of series `number`, whose name is at a JSON pointer."""
    entry = SubElement(legend, "span", {"class": "legend-entry"})
    append_swatch(entry, number=number)
    value_element(entry, report_json, pointer)


def append_limit_entry(legend: Element, name: str) -> None:
    """Append the legend entry of a dashed line, with its name."""
    entry = SubElement(legend, "span", {"class": "legend-entry"})
    SubElement(entry, "span", {"class": "swatch limit-swatch", "aria-hidden": "true"})
    append_words(entry, name)


def append_legend_words(parent: Element, entries: Sequence[tuple[int, str]]) -> None:
    """Append a legend of (colour of the series, words), for names that are not in the JSON."""
    legend = SubElement(parent, "p", {"class": "legend"})
    for number, words in entries:
        entry = SubElement(legend, "span", {"class": "legend-entry"})
        append_swatch(entry, number=number)
        append_words(entry, words)
