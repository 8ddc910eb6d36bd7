"""Picture of a guide's rules: a bar for the time that each costs, marks for the other choices."""

from __future__ import annotations

from collections.abc import Callable
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
from shardwright.report.page.charts.plot_area import append_value
from shardwright.report.pictures.guide.rule_losses_picture_content import RuleLoss, RuleLosses

_LEFT: Final = 9.0
_RIGHT: Final = WIDTH - 16.0
_ALL_HOLD: Final = 0.0005
"""Largest loss that prints as 0.0 %."""


def append_rule_loss_bars(
    parent: Element, guide_json: Any, *, picture: RuleLosses, question: str
) -> None:
    """Append the picture as SVG; bars are as long as the losses, other choices are circles.

    The scale ends at the largest loss of a rule. A choice beyond it is a triangle at the edge.
    """
    description = (
        "Each rule has a bar as long as the time it costs. The guide has the same numbers."
    )
    svg = append_frame(parent, title=question, description=description)
    low, high = _scale(picture)

    def place(loss: float) -> float:
        """Distance of a loss from the left edge; that of the edge for lower ones."""
        return _LEFT + (max(loss, low) - low) / (high - low) * (_RIGHT - _LEFT)

    _append_legend(svg)
    y = 3.0 * LINE
    for row in picture.rows:
        last = append_wrapped_value(svg, guide_json, f"{row.pointer}/question", y, letters=46)
        is_word = row.outcome not in ("loses", "gains")
        append_value(
            svg,
            guide_json,
            f"{row.pointer}/verdict/{'outcome' if is_word else 'loss'}",
            "text" if is_word else "percent" if row.outcome == "loses" else "signed_percent",
            {"x": str(WIDTH - 4), "y": f"{y:g}", "text-anchor": "end"},
        )
        y = last + LINE
        append_line(svg, "thin", x=(_LEFT, _RIGHT), y=(y - 4, y - 4))
        append_line(svg, "own", x=(place(0.0), place(0.0)), y=(y - 10, y + 2))
        _append_marks(svg, row, y - 4, place=place, high=high)
        y += 1.5 * LINE
    set_height(svg, y - LINE)


def _scale(picture: RuleLosses) -> tuple[float, float]:
    """Losses at the left and right end: 0 or the lowest, and the largest of a rule, else of all."""
    losses = [row.loss for row in picture.rows if row.loss is not None]
    high = max([*losses, 0.0])
    if high < _ALL_HOLD:
        high = max([*(loss for row in picture.rows for loss in row.others), _ALL_HOLD])
    return min([*losses, 0.0]), high


def _append_legend(svg: Element) -> None:
    """Append what bar, circle, triangle and line are."""
    SubElement(svg, "rect", {"class": "loss", "x": "4", "y": "4", "width": "16", "height": "8"})
    append_words(svg, 24, 12, "the rule's advice")
    append_circle(svg, "other", 140, 8)
    append_words(svg, 148, 12, "another choice")
    _append_triangle(svg, 252, 8)
    append_words(svg, 262, 12, "beyond the scale")
    append_line(svg, "own", x=(9, 9), y=(18, 30))
    append_words(svg, 24, 12 + LINE, "as fast as the best plan; to the right slower")


def _append_marks(
    svg: Element, row: RuleLoss, y: float, *, place: Callable[[float], float], high: float
) -> None:
    """Append the bar of a rule and the marks of its other choices, centred at `y`."""
    if row.loss:
        start, end = sorted((place(0.0), place(row.loss)))
        shape = {"x": start, "y": y - 4, "width": end - start, "height": 8}
        kind = "loss" if row.loss > 0 else "has"
        SubElement(svg, "rect", {"class": kind, **{k: f"{v:.2f}" for k, v in shape.items()}})
    for loss in row.others:
        if loss > high:
            _append_triangle(svg, WIDTH - 10, y)
        else:
            append_circle(svg, "other", place(loss), y)


def _append_triangle(svg: Element, x: float, y: float) -> None:
    """Append a triangle that points to the right."""
    points = f"{x:g},{y - 5:g} {x + 7:g},{y:g} {x:g},{y + 5:g}"
    SubElement(svg, "polygon", {"class": "other", "points": points})
