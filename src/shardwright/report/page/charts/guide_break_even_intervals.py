"""Picture of a guide's break-evens: intervals on a logarithmic scale of multiples of own values."""

from __future__ import annotations

from math import log
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.guide_picture_svg import (
    LINE,
    WIDTH,
    append_circle,
    append_frame,
    append_line,
    append_words,
    append_wrapped_value,
    set_height,
)
from shardwright.report.page.markup.sentences_with_json_values import append_sentence
from shardwright.report.pictures.guide.break_evens_picture_content import BreakEvens

_LEFT: Final = 12.0
_RIGHT: Final = WIDTH - 12.0
_NARROW: Final = {1 / 4: "a quarter", 4.0: "four times"}
_WIDE: Final = {
    1 / 1000: "a thousandth",
    1 / 100: "a hundredth",
    1 / 10: "a tenth",
    10.0: "ten times",
    100.0: "a hundred times",
    1000.0: "a thousand times",
}
_MARGIN: Final = 45.0
"""Distance from an edge within which the word of a tick begins or ends at its tick."""
_LARGEST_NARROW: Final = 100.0
"""Largest over smallest value of a scale with `_NARROW` ticks."""


def append_break_even_intervals(
    parent: Element, guide_json: Any, *, picture: BreakEvens, question: str
) -> None:
    """Append the picture as SVG: for each break-even the values searched, from the own value on."""
    description = (
        "Each row shows where the best plan changes, as a multiple of your own value. The guide has"
        " the same numbers."
    )
    svg = append_frame(parent, title=question, description=description)
    factors = [1.0, *(factor for row in picture.rows for factor, _ in row.sides)]
    low, high = min(*factors, 0.5) / 1.2, max(*factors, 2.0) * 1.2

    def place(factor: float) -> float:
        """Distance of a multiple of the own value from the left edge."""
        return _LEFT + log(factor / low) / log(high / low) * (_RIGHT - _LEFT)

    _append_legend(svg)
    y = 4.5 * LINE
    ticks = _NARROW if high / low < _LARGEST_NARROW else _WIDE
    places = [(1.0, "yours"), *(tick for tick in ticks.items() if low <= tick[0] <= high)]
    for factor, words in places:
        x = place(factor)
        anchor = "start" if x < _MARGIN else "end" if x > WIDTH - _MARGIN else "middle"
        append_words(svg, x, 3.25 * LINE, words, anchor=anchor)
    for row in picture.rows:
        y = append_wrapped_value(svg, guide_json, f"{row.pointer}/change", y, letters=56) + LINE
        status = SubElement(svg, "text", {"class": "faint", "x": "4", "y": f"{y:g}"})
        append_sentence(status, guide_json, row.status, tag="tspan")
        y += LINE
        for factor, _ in places:
            kind = "own" if factor == 1.0 else "thin"
            append_line(svg, kind, x=(place(factor), place(factor)), y=(y - 10, y + 2))
        ends = [factor for factor, _ in row.sides]
        reach = place(min(1.0, *ends)), place(max(1.0, *ends))
        append_line(svg, "range", x=reach, y=(y - 4, y - 4))
        if len(ends) == 2:
            append_line(svg, "interval", x=(place(ends[0]), place(ends[1])), y=(y - 4, y - 4))
        for factor, has in row.sides:
            append_circle(svg, "has" if has else "lacks", place(factor), y - 4)
        y += 1.5 * LINE
    set_height(svg, y - LINE)


def _append_legend(svg: Element) -> None:
    """Append what circles and lines are."""
    append_circle(svg, "has", 12, 8)
    append_words(svg, 22, 12, "searched: has it")
    append_circle(svg, "lacks", 150, 8)
    append_words(svg, 160, 12, "searched: has it not")
    append_line(svg, "interval", x=(4, 20), y=(8 + LINE, 8 + LINE))
    append_words(svg, 24, 12 + LINE, "here it changes")
    append_line(svg, "range", x=(146, 166), y=(8 + LINE, 8 + LINE))
    append_words(svg, 170, 12 + LINE, "from your value to it")
