"""A horizontal bar divided into shares, with a legend, as static SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.series_swatch import series_class

_WIDTH: Final = 1000
_HEIGHT: Final = 36


def append_share_bar(parent: Element, shares: Sequence[float], *, description: str) -> None:
    """Append a bar of one part for each share, a fraction of the full width; negative shares are 0.

    The colour of part `k` is that of the style class ``series-k``; parts from the ninth on share
    one colour.

    Args:
        shares: fractions of the whole; negative ones have no width.
        description: words for readers that do not see the bar.
    """
    figure = SubElement(parent, "figure")
    svg = SubElement(
        figure,
        "svg",
        {
            "viewBox": f"0 0 {_WIDTH} {_HEIGHT}",
            "role": "img",
            "aria-label": description,
            "preserveAspectRatio": "none",
            "class": "share-bar",
        },
    )
    left = 0.0
    for number, share in enumerate(shares):
        width = max(share, 0.0) * _WIDTH
        attributes = {"x": f"{left:.1f}", "y": "0", "width": f"{width:.1f}"}
        style = {"height": str(_HEIGHT), "class": series_class(number)}
        SubElement(svg, "rect", attributes | style)
        left += width
