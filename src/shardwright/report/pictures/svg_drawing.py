"""An SVG drawing surface for text, rectangles and lines, without scripts or fonts."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

FONT: Final = 11
LETTER: Final = 0.62 * FONT
"""Width of a character of a monospace font, rounded up."""
LINE: Final = 16
PAD: Final = 6
MARGIN: Final = 20
INK: Final = "#222"
FAINT: Final = "#777"


@dataclass(slots=True)
class SvgSheet:
    """The SVG elements drawn so far, and the largest x that they reach."""

    parts: list[str]
    right: float = 0.0

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        colour: str = INK,
        bold: bool = False,
        middle: bool = False,
    ) -> None:
        """Draw text that begins at `x`, or is centred there, on the baseline `y`."""
        weight = ' font-weight="bold"' if bold else ""
        anchor = ' text-anchor="middle"' if middle else ""
        self.parts.append(
            f'<text x="{coordinate(x)}" y="{coordinate(y)}"'
            f' fill="{colour}"{weight}{anchor}>{escape(words)}</text>'
        )
        self.right = max(self.right, x + len(words) * LETTER * (0.5 if middle else 1.0))

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        kind: str = "",
        title: str = "",
    ) -> None:
        """Draw a framed rectangle; `kind` is its CSS class, `title` its tooltip."""
        css_class = f' class="{kind}"' if kind else ""
        inside = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self.parts.append(
            f'<rect{css_class} x="{coordinate(x)}" y="{coordinate(y)}" width="{coordinate(width)}"'
            f' height="{coordinate(height)}" fill="{fill}" stroke="{FAINT}"'
            f' stroke-width="0.5"{inside}'
        )
        self.right = max(self.right, x + width)

    def bar(
        self, x: float, y: float, width: float, height: float, *, fill: str, kind: str, title: str
    ) -> None:
        """Draw a frameless rectangle whose width is a quantity, with a precision of 0.001."""
        self.parts.append(
            f'<rect class="{kind}" x="{x:.3f}" y="{coordinate(y)}" width="{width:.3f}"'
            f' height="{coordinate(height)}" fill="{fill}"><title>{escape(title)}</title></rect>'
        )
        self.right = max(self.right, x + width)

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a thin line between two points."""
        path = f"M{coordinate(x1)} {coordinate(y1)}L{coordinate(x2)} {coordinate(y2)}"
        self.parts.append(f'<path d="{path}" stroke="{FAINT}" stroke-width="0.8"/>')


def coordinate(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
