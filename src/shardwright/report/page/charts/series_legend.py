"""The legend of a chart: a swatch in the colour of each series with its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.sentences import append_words, value_element
from shardwright.report.page.markup.series_swatch import append_swatch


def append_legend(parent: Element, document: Any, names: Sequence[str]) -> None:
    """Append a legend: one entry for each series.

    Args:
        names: JSON pointers of the series' names, in the order of their colours.
    """
    legend = SubElement(parent, "figcaption", {"class": "legend"})
    for number, pointer in enumerate(names):
        entry = SubElement(legend, "span", {"class": "legend-entry"})
        append_swatch(entry, number=number)
        value_element(entry, document, pointer)


def append_legend_words(parent: Element, entries: Sequence[tuple[int, str]]) -> None:
    """Append a legend of (colour of the series, words), for names that are not in the JSON."""
    legend = SubElement(parent, "p", {"class": "legend"})
    for number, words in entries:
        entry = SubElement(legend, "span", {"class": "legend-entry"})
        append_swatch(entry, number=number)
        append_words(entry, words)
