"""SVG scatter plot of predicted against measured values, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass

SIZE: Final = 560
MARGIN: Final = 56
LEGEND: Final = 170
BAND: Final = 0.1
COLOURS: Final = (
    "#1b6ca8", "#d1495b", "#2e933c", "#8f3985", "#e08e0b", "#17858b",
    "#6b4226", "#c2185b", "#5c6bc0", "#7a8b00", "#455a64", "#9c6644",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterPoint:
    """One dot: group (colour), measured and predicted value in the same unit, and its tooltip."""

    group: str
    measured: float
    predicted: float
    label: str


def scatter_svg(points: Sequence[ScatterPoint], *, title: str, unit: str) -> str:
    """SVG plot of measured (x) and predicted (y) on log axes, with the diagonal and a 10 % band.

    Values must be positive.
    """
    values = [v for p in points for v in (p.measured, p.predicted)]
    low, high = floor(2 * log10(min(values))) / 2, ceil(2 * log10(max(values))) / 2
    span = max(high - low, 0.5)

    def place(value: float) -> float:
        """Distance in pixels of a value from the low end of a logarithmic axis."""
        return (log10(value) - low) / span * SIZE

    groups = sorted({p.group for p in points})
    colour = {g: COLOURS[i % len(COLOURS)] for i, g in enumerate(groups)}
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE + 2 * MARGIN + LEGEND}"'
            f' height="{SIZE + 2 * MARGIN}" font-family="sans-serif" font-size="12">'
        ),
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN - 24}" font-size="15">{escape(title)}</text>',
        f'<g transform="translate({MARGIN},{MARGIN})">',
        f'<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>',
        _band(span),
        *_ticks(low, low + span),
        *(_dot(p, place=place, colour=colour[p.group]) for p in points),
        (
            f'<text x="{SIZE / 2}" y="{SIZE + 42}" text-anchor="middle">measured,'
            f" {escape(unit)}</text>"
        ),
        (
            f'<text transform="translate(-42,{SIZE / 2}) rotate(-90)"'
            f' text-anchor="middle">predicted, {escape(unit)}</text>'
        ),
        *_legend(groups, colour=colour),
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _band(span: float) -> str:
    """SVG of the diagonal predicted = measured and its 10 % band; `span`: decades of an axis."""
    wide = log10(1 + BAND) / span * SIZE
    corners = (
        f"0,{SIZE - wide:.1f} {SIZE - wide:.1f},0 {SIZE},0 {SIZE},{wide:.1f} {wide:.1f},{SIZE}"
        f" 0,{SIZE}"
    )
    return (
        f'<polygon points="{corners}" fill="#eee"/><line x1="0" y1="{SIZE}" x2="{SIZE}" y2="0"'
        ' stroke="#555"/>'
    )


def _ticks(low: float, high: float) -> list[str]:
    """SVG of tick marks at powers of ten on both axes, which reach from 10**low to 10**high."""
    parts = []
    for exponent in range(ceil(low), floor(high) + 1):
        at = (exponent - low) / (high - low) * SIZE
        text = f"{10.0**exponent:g}"
        parts.append(
            f'<line x1="{at:.1f}" y1="{SIZE}" x2="{at:.1f}" y2="{SIZE + 5}" stroke="#999"/>'
        )
        parts.append(f'<text x="{at:.1f}" y="{SIZE + 20}" text-anchor="middle">{text}</text>')
        parts.append(
            f'<line x1="-5" y1="{SIZE - at:.1f}" x2="0" y2="{SIZE - at:.1f}" stroke="#999"/>'
        )
        parts.append(f'<text x="-8" y="{SIZE - at + 4:.1f}" text-anchor="end">{text}</text>')
    return parts


def _dot(point: ScatterPoint, *, place: Callable[[float], float], colour: str) -> str:
    """SVG circle of one point at its measured and predicted value, with its tooltip."""
    x, y = place(point.measured), SIZE - place(point.predicted)
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"'
        f' fill-opacity="0.6"><title>{escape(point.label)}</title></circle>'
    )


def _legend(groups: Sequence[str], *, colour: Mapping[str, str]) -> list[str]:
    """SVG lines with the colour and the name of each group of points."""
    parts = []
    for index, group in enumerate(groups):
        y = 12 + 20 * index
        parts.append(f'<circle cx="{SIZE + 18}" cy="{y}" r="5" fill="{colour[group]}"/>')
        parts.append(f'<text x="{SIZE + 30}" y="{y + 4}">{escape(group)}</text>')
    return parts
