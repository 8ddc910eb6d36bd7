"""Frame, style and texts of a guide's pictures: SVG that is part of a page or a file of its own."""

from __future__ import annotations

import textwrap
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.markup.sentences_with_json_values import require_no_digits
from shardwright.report.page.markup.value_at_json_pointer import value_at

WIDTH: Final = 380
LINE: Final = 16
_SHOWN_WIDTH: Final = 520
"""Pixels on wide screens; narrow screens shrink the picture."""
_STYLE: Final = """
.guide-picture { --ink: #1c2430; --faint: #5a6675; --line: #cfd6df; --loss: #b0512f;
  --change: #2f6fb4; --paper: #fff; background: var(--paper); }
@media (prefers-color-scheme: dark) {
  .guide-picture { --ink: #e6ebf1; --faint: #a3afbd; --line: #3a4553; --loss: #e38762;
    --change: #6aa7e8; --paper: #12171e; }
}
figure > .guide-picture { max-width: 100%; height: auto; }
.guide-picture text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.guide-picture .faint { fill: var(--faint); }
.guide-picture .loss { fill: var(--loss); }
.guide-picture .thin { stroke: var(--line); }
.guide-picture .own, .guide-picture .range { stroke: var(--faint); }
.guide-picture .interval { stroke: var(--change); stroke-width: 6; }
.guide-picture .other { fill: var(--paper); stroke: var(--faint); stroke-width: 1.5; }
.guide-picture .has { fill: var(--change); stroke: var(--change); stroke-width: 1.5; }
.guide-picture .lacks { fill: var(--paper); stroke: var(--change); stroke-width: 1.5; }
"""


def append_frame(parent: Element, *, title: str, description: str) -> Element:
    """Append an empty picture; `set_height` follows when it is drawn."""
    svg = SubElement(
        parent,
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", "class": "guide-picture", "role": "img"},
    )
    SubElement(svg, "title").text = require_no_digits(title)
    SubElement(svg, "desc").text = require_no_digits(description)
    SubElement(svg, "style").text = _STYLE
    return svg


def set_height(svg: Element, height: float) -> None:
    """Set the picture's height, in its own units."""
    svg.set("viewBox", f"0 0 {WIDTH} {height:g}")
    svg.set("width", str(_SHOWN_WIDTH))
    svg.set("height", f"{height * _SHOWN_WIDTH / WIDTH:.0f}")


def append_wrapped_value(
    svg: Element, guide_json: Any, pointer: str, y: float, *, letters: int
) -> float:
    """Append the text at a pointer in lines of at most `letters`; returns the last baseline."""
    text = SubElement(svg, "text", {"data-leaf": pointer, "data-form": "text"})
    lines = textwrap.wrap(formatted(value_at(guide_json, pointer), "text"), letters)
    for number, line in enumerate(lines):
        part = SubElement(text, "tspan", {"x": "4", "y": f"{y + number * LINE:g}"})
        part.text = line if number == len(lines) - 1 else f"{line} "
    return y + (len(lines) - 1) * LINE


def append_words(svg: Element, x: float, y: float, words: str, *, anchor: str = "start") -> None:
    """Append words without digits, in the colour of notes."""
    style = {"class": "faint", "x": f"{x:g}", "y": f"{y:g}", "text-anchor": anchor}
    SubElement(svg, "text", style).text = require_no_digits(words)


def append_line(svg: Element, kind: str, *, x: tuple[float, float], y: tuple[float, float]) -> None:
    """Append a straight line of a style class."""
    ends = {"x1": x[0], "x2": x[1], "y1": y[0], "y2": y[1]}
    SubElement(svg, "line", {"class": kind, **{name: f"{at:.2f}" for name, at in ends.items()}})


def append_circle(svg: Element, kind: str, x: float, y: float) -> None:
    """Append a small circle of a style class."""
    SubElement(svg, "circle", {"class": kind, "cx": f"{x:.2f}", "cy": f"{y:g}", "r": "4"})
