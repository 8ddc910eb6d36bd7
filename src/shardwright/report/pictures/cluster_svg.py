"""SVG picture of a cluster: boxes within boxes, the network outside and nodes inside.

It has no scripts and no fonts of its own.
"""

from __future__ import annotations

from html import escape
from typing import Final

from shardwright.report.pictures.cluster_picture_content import Branch, ClusterPicture
from shardwright.report.pictures.fill_colours_of_numbered_items import PALETTE
from shardwright.report.pictures.svg_drawing import (
    FAINT,
    FONT,
    LETTER,
    LINE,
    MARGIN,
    PAD,
    SvgSheet,
    coordinate,
)
from shardwright.strategy.text.replace_unprintable_characters import printable

GAP: Final = 8
MAX_WORDS: Final = 200


def cluster_svg(picture: ClusterPicture) -> str:
    """Draw a cluster's tree as nested SVG boxes of class ``unit`` or ``node``, zone links below."""
    sheet = SvgSheet(parts=[])
    y = float(MARGIN + LINE)
    cluster = picture.cluster
    sheet.text(
        MARGIN,
        y,
        f"{printable(cluster.expression, length=MAX_WORDS)}:"
        f" {printable(cluster.described(), length=MAX_WORDS)}",
        bold=True,
    )
    width = _box_width(picture.tree)
    y = _box(sheet, picture.tree, MARGIN, y + LINE, width)
    for link in picture.links:
        y += LINE
        sheet.text(MARGIN, y, printable(link, length=MAX_WORDS), colour=FAINT)
    across, down = coordinate(sheet.right + MARGIN), coordinate(y + MARGIN)
    head = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{across}" height="{down}" viewBox="0 0'
            f' {across} {down}" font-family="monospace" font-size="{FONT}">'
        ),
        f"<title>{escape(printable(cluster.expression, length=MAX_WORDS))}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    return "\n".join([*head, *sheet.parts, "</svg>"]) + "\n"


def cluster_page(picture: ClusterPicture) -> str:
    """HTML page with the SVG picture of a cluster."""
    title = escape(printable(picture.cluster.expression, length=MAX_WORDS))
    head = f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
    return f"{head}<body>\n{cluster_svg(picture)}</body>\n</html>\n"


def _title(branch: Branch) -> str:
    """Title of a branch's box, with the number of equal units that it stands for."""
    return printable(
        f"{branch.count:,} x {branch.title}" if branch.count > 1 else branch.title, length=MAX_WORDS
    )


def _box_width(branch: Branch) -> float:
    """Width of a branch's box in pixels: enough for its longest text and for the boxes inside."""
    words = max(map(len, (_title(branch), *branch.lines))) * LETTER + 2 * PAD
    return max([words, *(_box_width(inner) + 2 * GAP for inner in branch.inside)])


def _box(sheet: SvgSheet, branch: Branch, x: float, y: float, width: float) -> float:
    """Draw a branch and its inner boxes, top left corner at (x, y); returns the y below the box."""
    place = len(sheet.parts)
    below = y + LINE
    sheet.text(x + PAD, below, _title(branch), bold=True)
    for line in branch.lines:
        below += LINE
        sheet.text(x + PAD, below, printable(line, length=MAX_WORDS))
    for inner in branch.inside:
        below = _box(sheet, inner, x + GAP, below + GAP, width - 2 * GAP)
    below += GAP
    # Drawn first, so that it is behind its words.
    fill = PALETTE[branch.level % len(PALETTE)]
    kind = "unit" if branch.level else "node"
    sheet.rect(x, y, width, below - y, fill=fill, kind=kind, title=_title(branch))
    sheet.parts.insert(place, sheet.parts.pop())
    return below
