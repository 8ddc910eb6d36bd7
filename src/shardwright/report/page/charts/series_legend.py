"""The legend of a chart: a swatch in the colour of each series with its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.sentences import value_element
from shardwright.report.page.markup.series_swatch import append_swatch


def append_legend(
    parent: Element, document: Any, names: Sequence[str], *, marks_name: str = ""
) -> None:
    """Append a legend: one entry for each series, and one for vertical lines.

    Args:
        names: JSON pointers of the series' names, in the order of their colours.
        marks_name: JSON pointer of the words for the vertical lines; empty = none.
    """
    legend = SubElement(parent, "figcaption", {"class": "legend"})
    for number, pointer in enumerate(names):
        entry = SubElement(legend, "span", {"class": "legend-entry"})
        append_swatch(entry, number=number)
        value_element(entry, document, pointer)
    if marks_name:
        entry = SubElement(legend, "span", {"class": "legend-entry"})
        SubElement(entry, "span", {"class": "swatch mark-swatch", "aria-hidden": "true"})
        value_element(entry, document, marks_name)
