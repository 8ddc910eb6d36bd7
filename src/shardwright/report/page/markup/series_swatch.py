"""The colour of each series of a chart, as a style class and as a small square."""

from __future__ import annotations

from typing import Final
from xml.etree.ElementTree import Element, SubElement

_LAST_COLOUR: Final = 8
"""Number of the colour that all series from it on share."""


def series_class(number: int) -> str:
    """Style class of the colour of series `number`; those from the ninth on share one."""
    return f"series-{min(number, _LAST_COLOUR)}"


def append_swatch(parent: Element, *, number: int) -> None:
    """Append a small square in the colour of series `number`."""
    SubElement(parent, "span", {"class": f"swatch {series_class(number)}", "aria-hidden": "true"})
